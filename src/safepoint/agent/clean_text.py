"""Owns text that can be sent and stored: no half of a character.

Python and JSON can hold half of a surrogate pair: a model server cuts an emoji in two, a file name is not UTF-8. No
such text can be encoded as UTF-8, so one of them in a conversation would make every later request fail. Pure functions.
"""

from typing import TypeVar

__all__ = ["REPLACEMENT", "clean_json", "clean_text", "is_clean", "split_half"]

T = TypeVar("T")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def is_clean(text: str) -> bool:
    """Whether a text has no half of a character."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean_text(text: str) -> str:
    """Return a text with the halves of each character joined, and single halves replaced."""
    if is_clean(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def split_half(text: str) -> tuple[str, str]:
    """Return a text without the first half of a character at its end, and that half."""
    return (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")


def clean_json(value: T) -> T:
    """Return a JSON value whose texts are all clean."""
    cleaned: object = value
    if isinstance(value, str):
        cleaned = clean_text(value)
    elif isinstance(value, list):
        cleaned = [clean_json(item) for item in value]
    elif isinstance(value, dict):
        cleaned = {clean_text(key): clean_json(item) for key, item in value.items()}
    return cleaned  # type: ignore[return-value]  # of the same type as the value, which no annotation can say
