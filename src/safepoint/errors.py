"""Owns the root of every error Safepoint raises, and how any error is put into words. Knows nothing of what went wrong.

SafepointError
├── UsageError        the caller's mistake: what was wrong, which argument, what to do; also a ValueError
├── AbortError        you asked for a value, the work was aborted; .reason, .partial   (abort.reason)
│   └── AbortTimeout  … because its time was up; also a TimeoutError
├── RemoteError       an exception that happened elsewhere, known by its name and text
└── WireError         what came over the wire cannot be understood; also a ValueError
"""

__all__ = ["RemoteError", "SafepointError", "UsageError", "WireError"]

# Texts of errors go into records, receipts, events and logs. A tool may put a whole response into its error.
TEXT_LIMIT = 2_000


class SafepointError(Exception):
    """Root of every error that Safepoint raises by itself."""


class UsageError(SafepointError, ValueError):
    """The call was wrong: the message says what, which argument, and what to do instead."""


class RemoteError(SafepointError):
    """An exception from another process or machine, of which only the type's name and the text are known."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class WireError(SafepointError, ValueError):
    """What came over the wire cannot be understood: the message says what and why."""


def describe(error: BaseException) -> str:
    """An error in words for a note, a record or a log: `TypeName: text`, of bounded length.

    Never raises, whatever the error's own `__str__` does: the text of an error must not keep anybody from writing down
    that it happened.
    """
    name, text = name_of(error), text_of(error)
    return shorten(f"{name}: {text}" if text else name)


def name_of(error: BaseException) -> str:
    """The name of the error's type; for an error from elsewhere, the name it had there."""
    return error.type_name if isinstance(error, RemoteError) else type(error).__name__


def text_of(error: BaseException) -> str:
    """The whole text of an error, without its type. Never raises."""
    try:
        return error.message if isinstance(error, RemoteError) else str(error)
    except BaseException as problem:  # `__str__` raised, recursed without end, or did not return a string
        return f"(its text cannot be read: {type(problem).__name__})"


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, at most `limit` characters long; one that was cut says how long it was."""
    if len(text) <= limit:
        return text
    told = f"… ({len(text)} characters)"
    return text[: max(0, limit - len(told))] + told
