"""Owns the arguments of calls as providers accept them. Knows nothing of any provider's format."""

import json

from ..messages import ToolCall

__all__ = ["arguments_of", "arguments_text"]


def arguments_of(call: ToolCall) -> dict[str, object]:
    """Return the arguments of a call as an object.

    Providers refuse a history with anything else in that place, even if their own model wrote it. Arguments that are
    no JSON object are kept as text inside one.
    """
    if not call.arguments.strip():
        return {}
    arguments = _json_object(call.arguments)
    return {"unreadable": call.arguments} if arguments is None else arguments


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as JSON text: as the model wrote them if that is an object."""
    if _json_object(call.arguments) is not None:
        return call.arguments
    return json.dumps(arguments_of(call), ensure_ascii=False)


def _json_object(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
