"""Owns what providers with reasoning refuse: pure checks of a request's body, in the providers' words.

`given` is what the server said before: for the id of each call the reasoning, or the signature, that came with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["missing_reasoning", "missing_signature", "thinking_fault"]

THINKING = ("thinking", "redacted_thinking")
Block = dict[str, Any]


def thinking_fault(body: dict[str, Any], given: Mapping[str, Sequence[Block]]) -> str | None:
    """What Anthropic refuses: reasoning that is not as it came, and a turn without it while thinking is enabled."""
    messages = body["messages"]
    for number, message in enumerate(messages):
        for place, block in enumerate(message["content"]):
            at = f"messages.{number}.content.{place}"
            if block["type"] == "thinking" and not block.get("signature"):
                return f"{at}.thinking.signature: Field required"
            if block["type"] in THINKING and message["role"] != "assistant":
                return f"{at}: `thinking` blocks are only allowed in assistant messages"
            if block["type"] == "thinking" and block.get("signature", "").startswith("foreign"):
                return f"{at}: Invalid `signature` in `thinking` block"
    if (body.get("thinking") or {}).get("type") != "enabled" or not messages:
        return None
    begin = _begin_of_turn(messages)
    if begin is None:
        return None
    first = messages[begin]["content"][0]["type"]
    if first not in THINKING:
        return f"messages.{begin}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`."
    for later in range(begin, len(messages), 2):
        came = [block for block in messages[later]["content"] if block["type"] in THINKING]
        ids = [block["id"] for block in messages[later]["content"] if block["type"] == "tool_use"]
        wanted = [block for call_id in ids for block in given.get(call_id, ())]
        if came != wanted and any(call_id in given for call_id in ids):
            return f"messages.{later}: `thinking` or `redacted_thinking` blocks cannot be modified."
    return None


def _begin_of_turn(messages: Sequence[Block]) -> int | None:
    """The first answer of the turn that the last results belong to; a message of the user alone begins a new turn."""
    if not any(block["type"] == "tool_result" for block in messages[-1]["content"]):
        return None
    number = len(messages) - 2
    while number >= 2 and all(block["type"] == "tool_result" for block in messages[number - 1]["content"]):
        number -= 2
    return number


def missing_reasoning(body: dict[str, Any], given: Mapping[str, str]) -> str | None:
    """What DeepSeek and Kimi refuse: an answer with calls without the reasoning that led to them."""
    for number, message in enumerate(body["messages"]):
        calls = message.get("tool_calls") or ()
        if not calls:
            continue
        reasoning = message.get("reasoning_content")
        if not reasoning:
            return f"Missing `reasoning_content` field in the assistant message at message index {number}."
        if (wanted := given.get(calls[0]["id"])) is not None and reasoning != wanted:
            return "The `reasoning_content` in the thinking mode must be passed back to the API."
    return None


def missing_signature(body: dict[str, Any], given: Mapping[str, str]) -> str | None:
    """What Gemini refuses: an answer whose first call has no signature, or a call whose signature is another one."""
    for message in body["messages"]:
        for number, call in enumerate(message.get("tool_calls") or ()):
            signature = call.get("extra_content", {}).get("google", {}).get("thought_signature")
            if signature is None and number == 0:
                return f"Function call `{call['function']['name']}` is missing a `thought_signature`."
            if signature is not None and signature not in {given.get(call["id"]), "skip_thought_signature_validator"}:
                return "Thought signature is not valid"
    return None
