"""Owns what servers with the chat templates of open models refuse: pure checks of a request's messages.

The rules are those of Devstral's and Gemma's templates, and of Mistral's API.
"""

import re
from itertools import pairwise
from typing import Any

__all__ = ["alternation_fault", "mistral_fault", "short_id_fault"]

ALTERNATE = (
    "After the optional system message, conversation roles must alternate user and assistant roles except for tool"
    " calls and results."
)
AFTER_TOOL = "Unexpected role 'user' after role 'tool'"
MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")


def alternation_fault(messages: list[dict[str, Any]]) -> str | None:
    """Devstral's rule, and Gemma's: users and plain answers in turns, and the user never right after a result."""
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    if any(message["role"] == "system" for message in rest):
        return "Only user, assistant and tool roles are supported, with the exception of an initial system message!"
    plain = [m for m in rest if m["role"] == "user" or (m["role"] == "assistant" and not m.get("tool_calls"))]
    if any((message["role"] == "user") != (number % 2 == 0) for number, message in enumerate(plain)):
        return ALTERNATE
    return _after_tool_fault(rest)


def _after_tool_fault(messages: list[dict[str, Any]]) -> str | None:
    after = any(a["role"] == "tool" and b["role"] not in ("tool", "assistant") for a, b in pairwise(messages))
    return AFTER_TOOL if after else None


def short_id_fault(messages: list[dict[str, Any]]) -> str | None:
    """The rule of Mistral Small's template."""
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    return "Tool call IDs should be alphanumeric strings with length >= 9!" if any(len(i) < 9 for i in ids) else None


def mistral_fault(messages: list[dict[str, Any]]) -> str | None:
    """Mistral's own API: the order of roles, and ids of nine letters and digits."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            if not MISTRAL_ID.fullmatch(call["id"]):
                return f"Tool call id was {call['id']} but must be a-z, A-Z, 0-9, with a length of 9."
    return _after_tool_fault(messages)
