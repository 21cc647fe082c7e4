"""Owns the arguments of tool calls: the text that a model wrote, and the JSON object that every provider accepts.

Providers refuse a conversation in which arguments are no JSON object, even if their own model wrote them. Python reads
more than JSON: NaN, Infinity, numbers beyond every float, halves of characters, objects nested without limit. Such
arguments are kept as text inside an object. Pure functions.
"""

import json
import math

from ..messages import ToolCall
from .clean_text import clean_json, clean_text, is_clean

__all__ = ["arguments_object", "arguments_text", "invalid_arguments", "is_valid", "valid_arguments"]

UNREADABLE = "unreadable"
MAX_DEPTH = 100  # SDKs and providers walk through the arguments by recursion


def is_valid(arguments: str) -> bool:
    """Whether every provider accepts these arguments. No text at all is an empty object."""
    return valid_arguments(arguments) == arguments


def valid_arguments(arguments: str) -> str:
    """Return arguments that every provider accepts: text that is no JSON object is kept inside one."""
    value = _parsed(arguments or "{}")
    if value is None:
        return json.dumps({UNREADABLE: clean_text(arguments)})
    if is_clean(arguments) and "\\u" not in arguments:
        return arguments
    cleaned = clean_json(value)
    return arguments if is_clean(arguments) and cleaned == value else json.dumps(cleaned, ensure_ascii=False)


def invalid_arguments(arguments: str) -> str | None:
    """Return what the model wrote instead of a JSON object, if `valid_arguments` had to wrap it; otherwise None."""
    if not arguments.startswith(f'{{"{UNREADABLE}"'):
        return None
    found = json.loads(arguments)
    return str(found[UNREADABLE]) if len(found) == 1 else None


def arguments_object(call: ToolCall) -> dict[str, object]:
    """Return the arguments of a call as an object."""
    if not call.arguments.strip():
        return {}
    value: dict[str, object] = json.loads(valid_arguments(call.arguments))
    return value


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as JSON text: as the model wrote them if that is an object."""
    return valid_arguments(call.arguments) if call.arguments.strip() else "{}"


def _parsed(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _too_deep(text, value) else None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _too_deep(text: str, value: object) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)  # type: ignore[attr-defined]
            if isinstance(item, dict | list)
        ]
    return False
