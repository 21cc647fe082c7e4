"""Owns reading conversations that are written as the dicts of OpenAI's Chat Completions API.

Most programs keep their conversations in this form. What it says and a message cannot hold is refused with the number
of the message, so that nothing of a conversation is lost without a word. Knows nothing of agents and of providers.
"""

import json
from collections.abc import Iterable, Mapping

from .errors import UsageError, shorten
from .messages import AssistantMessage, FinishReason, Message, SystemMessage, ToolCall, ToolResult, UserMessage

__all__ = ["from_openai"]

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
ROLES = "system, developer, user, assistant and tool"


def from_openai(messages: Iterable[object]) -> list[Message]:
    """Read a conversation in the form of OpenAI's Chat Completions API.

    Args:
        messages: Dicts such as `{"role": "user", "content": "Hello"}`, or the message objects of the `openai` package.

    Returns:
        The messages, one for each dict, for `agent.run(history=…)`. The citations, the participants' names and the
        reasoning in them are left out.

    Raises:
        UsageError: This is no such conversation, or it has images, audio or files. The text says which message.
    """
    given: object = messages  # callers without a type checker give anything
    if isinstance(given, Mapping | str | bytes) or not isinstance(given, Iterable):
        wanted = 'messages must be a list of dicts such as {"role": "user", "content": "…"}'
        raise UsageError(f"{wanted}, not {shorten(repr(given), 100)}")
    names: dict[str, str] = {}  # of the tools, by the ids of the calls
    return [_message(item, f"message {index}", names) for index, item in enumerate(given)]


def _message(item: object, where: str, names: dict[str, str]) -> Message:
    fields = _fields(item, where)
    match fields.get("role"):
        case "system" | "developer":
            return SystemMessage(text=_text(fields.get("content"), where))
        case "user":
            return UserMessage(text=_text(fields.get("content"), where))
        case "assistant":
            return _answer(fields, where, names)
        case "tool":
            call_id = _string(fields, "tool_call_id", where)
            name = fields.get("name")
            return ToolResult(
                call_id=call_id,
                name=names.get(call_id) or (name if isinstance(name, str) and name else "tool"),
                content=_text(fields.get("content"), where),
            )
        case "function":
            raise UsageError(f'{where} has the role "function", which has no id of its call: write it as "tool"')
        case role:
            raise UsageError(f"{where} has the role {role!r}: the roles are {ROLES}")


def _fields(item: object, where: str) -> Mapping[str, object]:
    dump = getattr(item, "model_dump", None)  # an object of the openai package
    fields = dump() if callable(dump) and not isinstance(item, type) else item
    if not isinstance(fields, Mapping):
        raise UsageError(f"{where} must be a dict with role and content, not {shorten(repr(item), 100)}")
    return fields


def _answer(fields: Mapping[str, object], where: str, names: dict[str, str]) -> AssistantMessage:
    if fields.get("audio") is not None:
        raise UsageError(f"{where} has audio, which a message cannot hold: give its transcript as content")
    if fields.get("function_call") is not None:
        raise UsageError(f'{where} has a "function_call", which has no id: write it as "tool_calls"')
    content, refusal, listed = fields.get("content"), fields.get("refusal"), fields.get("tool_calls")
    if listed is not None and not isinstance(listed, list | tuple):
        raise UsageError(f"{where}: tool_calls must be a list, not {shorten(repr(listed), 100)}")
    calls = tuple(_call(call, f"{where}, call {index}") for index, call in enumerate(listed or ()))
    names.update((call.call_id, call.name) for call in calls)
    text = "" if content is None else _text(content, where)
    reason: FinishReason | None = None
    if isinstance(refusal, str) and refusal:
        text, reason = text or refusal, "refusal"
    return AssistantMessage(text=text, calls=calls, finish_reason=reason)


def _call(item: object, where: str) -> ToolCall:
    fields = _fields(item, where)
    if fields.get("type", "function") != "function":
        raise UsageError(f"{where} has the type {fields['type']!r}: only calls of functions can be read")
    function = fields.get("function")
    if not isinstance(function, Mapping):
        raise UsageError(f"{where} has no function: it must have id and function, with name and arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):  # as Ollama writes them
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str | None):
        raise UsageError(f"{where}: arguments must be JSON text, not {shorten(repr(arguments), 100)}")
    return ToolCall(
        call_id=_string(fields, "id", where), name=_string(function, "name", where), arguments=arguments or ""
    )


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise UsageError(f"{where}: content must be a text or a list of parts, not {shorten(repr(content), 100)}")
    return "".join(_part(part, f"{where}, part {index}") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    fields = _fields(part, where)
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise UsageError(f"{where} has the type {kind!r}: only text can be read")
    return _string(fields, TEXT_PARTS[kind], where)


def _string(fields: Mapping[str, object], key: str, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {key} must be a text, not {shorten(repr(value), 100)}")
    return value
