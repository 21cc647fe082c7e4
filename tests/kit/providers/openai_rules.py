"""Owns what the Chat Completions API refuses: a pure check of a request's body, in the API's own words.

Stricter than the real one where other providers with this API are (arguments must be JSON objects, ids unique).
"""

import json
import re
from typing import Any

from tests.kit.providers.encoding import encoding_fault

__all__ = ["fault"]

ROLES = {"system", "developer", "user", "assistant", "tool"}
ORPHAN = (  # the spelling is the API's
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
)
MAX_ID = 64  # 40 at OpenAI itself
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def fault(body: dict[str, Any]) -> str | None:
    """What is wrong with a request, or None."""
    messages = body.get("messages")
    if found := encoding_fault(body):
        return found
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "you must provide a model parameter"
    if not isinstance(messages, list):
        return "Missing required parameter: 'messages'."
    if not messages:
        return _empty("messages")
    return (
        _tools_fault(body)
        or next(filter(None, map(_message_fault, range(len(messages)), messages)), None)
        or (_pairs_fault(messages))
    )


def _empty(what: str) -> str:
    return f"Invalid '{what}': empty array. Expected an array with minimum length 1, but got an empty array instead."


def _tools_fault(body: dict[str, Any]) -> str | None:
    tools = body.get("tools")
    if tools is None:
        return "'tool_choice' is only allowed when 'tools' are specified." if "tool_choice" in body else None
    if not tools:
        return _empty("tools")
    for number, tool in enumerate(tools):
        function = tool.get("function", {})
        if tool.get("type") != "function" or not NAME.fullmatch(str(function.get("name", ""))):
            return f"Invalid 'tools[{number}].function.name': string does not match pattern. Expected {NAME.pattern!r}."
        if function.get("parameters", {}).get("type") != "object":
            return (
                f"Invalid schema for function '{function['name']}': schema must be a JSON Schema of 'type: \"object\"'"
            )
    return None


def _message_fault(number: int, message: dict[str, Any]) -> str | None:
    role, at = message.get("role"), f"messages[{number}]"
    if role not in ROLES:
        return f"Invalid value: '{role}'. Supported values are: {sorted(ROLES)}."
    calls = message.get("tool_calls")
    content = message.get("content")
    if calls is not None:
        if role != "assistant":
            return f"Invalid '{at}': 'tool_calls' is only allowed in assistant messages."
        if not calls:
            return _empty(f"{at}.tool_calls")
        if found := next(filter(None, (_call_fault(f"{at}.tool_calls[{n}]", c) for n, c in enumerate(calls))), None):
            return found
    if content is None and calls is None:
        return "Invalid value for 'content': expected a string, got null."
    if content is not None and not isinstance(content, str):
        return f"Invalid type for '{at}.content': expected a string."
    if content == "" and role in ("assistant", "tool"):
        return f"Invalid '{at}.content': empty string."
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return f"Missing required parameter: '{at}.tool_call_id'."
    return None


def _call_fault(at: str, call: dict[str, Any]) -> str | None:
    function = call.get("function", {})
    if not call.get("id"):
        return f"Missing required parameter: '{at}.id'."
    if len(call["id"]) > MAX_ID:
        return f"Invalid '{at}.id': string too long. Expected a string with maximum length {MAX_ID}."
    if call.get("type") != "function" or not NAME.fullmatch(str(function.get("name", ""))):
        return f"Invalid '{at}.function.name': string does not match pattern. Expected {NAME.pattern!r}."
    try:
        arguments = json.loads(function["arguments"])
        good = isinstance(arguments, dict) and encoding_fault(arguments) is None
    except (KeyError, TypeError, ValueError):
        good = False
    return None if good else f"Invalid '{at}.function.arguments': expected a JSON object."


def _pairs_fault(messages: list[dict[str, Any]]) -> str | None:
    """Every call is answered by exactly one tool message, before anything else is said."""
    open_ids: list[str] = []
    seen: set[str] = set()
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return ORPHAN
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            break
        for call in message.get("tool_calls") or ():
            if call["id"] in seen:
                return f"Duplicate value for 'tool_call_id' of '{call['id']}' in 'messages[{number}]'."
            seen.add(call["id"])
            open_ids.append(call["id"])
    if not open_ids:
        return None
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
        f" The following tool_call_ids did not have response messages: {', '.join(open_ids)}"
    )
