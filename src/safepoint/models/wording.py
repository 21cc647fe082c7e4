"""Owns the text that tells a model what did not end as planned: cut-off answers, calls without a result, bad JSON.

Without such a text a model assumes that everything it asked for was done. Knows nothing of any provider's format.
"""

import json

from ..messages import AssistantMessage, CallStatus, ToolCall, ToolResult

__all__ = ["arguments_of", "arguments_text", "assistant_text", "result_text"]

INTERRUPTED = "[interrupted]"
NO_OUTPUT = "(no output)"
STATUS_WORDS: dict[CallStatus, str] = {
    "failed": "This call failed.",
    "interrupted": "This call was interrupted before it had finished; it may have had an effect.",
    "not_started": "This call was not started; it had no effect.",
    "unknown": "It is not known whether this call finished, and whether it had an effect.",
}


def assistant_text(message: AssistantMessage) -> str:
    """Return the text of an answer, with a mark at the end if it was cut off."""
    if not message.interrupted:
        return message.text
    return f"{message.text} {INTERRUPTED}" if message.text else INTERRUPTED


def result_text(result: ToolResult) -> str:
    """Return the text of a call's result, never empty. Unless the call completed, it begins with its status."""
    if result.status == "completed":
        return result.content or NO_OUTPUT
    return "\n".join(filter(None, (STATUS_WORDS[result.status], result.content)))


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
