"""Owns what a provider is told of things that did not end as planned: cut-off text, calls without a result, bad JSON.

A model that is not told believes that everything it asked for was done. Knows nothing of any provider's format.
"""

import json
from typing import Any

from ..run.messages import AssistantMessage, CallStatus, ToolCall, ToolResult

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
    """What the model said, with a mark where it was cut off."""
    if not message.interrupted:
        return message.text
    return f"{message.text} {INTERRUPTED}" if message.text else INTERRUPTED


def result_text(result: ToolResult) -> str:
    """The result of a call; if it did not complete, its status in words comes first. Never empty."""
    if result.status == "completed":
        return result.content or NO_OUTPUT
    return "\n".join(filter(None, (STATUS_WORDS[result.status], result.content)))


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object: providers refuse a history with anything else, even if their model wrote it."""
    if not call.arguments.strip():
        return {}
    arguments = _object(call.arguments)
    return {"unreadable": call.arguments} if arguments is None else arguments


def arguments_text(call: ToolCall) -> str:
    """The arguments as JSON text, as the model wrote them where that is an object."""
    if _object(call.arguments) is not None:
        return call.arguments
    return json.dumps(arguments_of(call), ensure_ascii=False)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
