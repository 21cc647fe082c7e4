"""Owns what single providers refuse in a conversation that others accept, and the conversation in the form they accept.

The rules are those that the providers state when they refuse a request, and that chat templates of open models check:
Mistral's and Gemma's want user and assistant in turns, with nothing but the assistant after the result of a call. A
conversation is stored in one form, with the ids that the models gave, because ids are parts of idempotency keys. Each
model adapts what it sends. Pure functions over messages that `history.repair` has made consistent.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Literal, TypeAlias

from ..messages import AssistantMessage, Message, SystemMessage, ToolResult, UserMessage
from .model_text import INTERRUPTED_MARK

__all__ = ["PROVIDERS", "Provider", "ProviderRules", "adapted", "order_problems"]

# `strict-alternation`: what every chat template of an open model accepts.
Provider: TypeAlias = Literal[
    "openai", "openai-responses", "anthropic", "gemini", "mistral", "ollama", "strict-alternation"
]
DERIVED_ID = 9  # characters; every provider accepts nine letters and digits
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """What a provider demands beyond calls with results and messages with text.

    Attributes:
        call_id: The ids of calls that it accepts.
        in_turns: Whether the user comes first, and no two answers follow each other.
        blank_text: Whether it accepts a text of white space beside calls.
        joined: Whether it refuses two messages of the user in a row, the user directly after a result, and instructions
            that do not come first.
    """

    call_id: re.Pattern[str]
    in_turns: bool = True
    blank_text: bool = True
    joined: bool = False


PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
ANY_ID = re.compile(r"(?s).+")
PROVIDERS: dict[Provider, ProviderRules] = {
    "openai": ProviderRules(re.compile(r"[A-Za-z0-9_-]{1,40}"), in_turns=False),
    "openai-responses": ProviderRules(PLAIN_ID, in_turns=False),
    "anthropic": ProviderRules(PLAIN_ID, blank_text=False),
    "gemini": ProviderRules(PLAIN_ID, blank_text=False),
    "mistral": ProviderRules(re.compile(r"[A-Za-z0-9]{9}"), joined=True),
    "ollama": ProviderRules(ANY_ID, joined=True),  # it gets no ids
    # A server gets back the ids that it gave. Mistral's templates refuse shorter ones, which only come from elsewhere.
    "strict-alternation": ProviderRules(re.compile(r"[!-~]{9,64}"), joined=True),
}


def order_problems(messages: Sequence[Message], rules: ProviderRules) -> Iterator[str]:
    """Yield what this provider would refuse beyond what all refuse."""
    for index, message in enumerate(messages):
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            if call.call_id and not rules.call_id.fullmatch(call.call_id):
                yield f"message {index}: the call id {call.call_id!r} is not accepted ({rules.call_id.pattern})"
    turns = [(index, message) for index, message in enumerate(messages) if not isinstance(message, SystemMessage)]
    if rules.in_turns:
        yield from _turn_problems(turns, rules)
    if not rules.joined:
        return
    for index, message in enumerate(messages):
        if index and isinstance(message, SystemMessage):
            yield f"message {index}: instructions that are not the first message"
    for (_, before), (index, message) in pairwise(turns):
        if isinstance(message, UserMessage) and isinstance(before, UserMessage):
            yield f"message {index}: two user messages in a row"
        if isinstance(message, UserMessage) and isinstance(before, ToolResult):
            yield f"message {index}: a user message right after a tool result"


def _turn_problems(turns: Sequence[tuple[int, Message]], rules: ProviderRules) -> Iterator[str]:
    if turns and not isinstance(turns[0][1], UserMessage):
        yield f"message {turns[0][0]}: a conversation begins with a user message"
    for (_, before), (index, message) in pairwise(turns):
        if isinstance(before, AssistantMessage) and isinstance(message, AssistantMessage):
            yield f"message {index}: two answers in a row"
    for index, message in turns:
        if not isinstance(message, AssistantMessage) or not message.text or message.text.strip():
            continue
        if not message.calls or not rules.blank_text:
            yield f"message {index}: an answer of white space"


def adapted(messages: Sequence[Message], rules: ProviderRules) -> list[Message]:
    """Return a repaired conversation in the form that this provider accepts."""
    found = list(messages)
    if rules.joined:
        found = _joined(found)
    return _with_ids(found, rules.call_id)


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Put instructions first, join user messages, and let the assistant speak between a result and the user."""
    systems = [message.text for message in messages if isinstance(message, SystemMessage)]
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        match message:
            case SystemMessage():
                continue
            case UserMessage(text=text) if isinstance(before, UserMessage):
                joined[-1] = UserMessage(text=f"{before.text}\n\n{text}")
                continue
            case UserMessage() if isinstance(before, ToolResult):
                joined.append(AssistantMessage(text=INTERRUPTED_MARK))
            case _:
                pass
        joined.append(message)
    return [*([SystemMessage(text="\n\n".join(systems))] if systems else []), *joined]


def _with_ids(messages: list[Message], accepted: re.Pattern[str]) -> list[Message]:
    """Replace the ids that this provider refuses. The same conversation always gets the same ids, for its caches."""
    ids = [call.call_id for message in messages if isinstance(message, AssistantMessage) for call in message.calls]
    refused = [call_id for call_id in ids if not accepted.fullmatch(call_id)]
    if not refused:
        return messages
    used = {*ids}
    names: dict[str, str] = {}
    for call_id in refused:
        names[call_id] = next(name for number in count() if (name := _derived(call_id, number)) not in used)
        used.add(names[call_id])
    return [_renamed(message, names) for message in messages]


def _derived(call_id: str, number: int) -> str:
    digest = hashlib.sha256(f"{number}:{call_id}".encode()).digest()
    return "".join(ALPHABET[byte % len(ALPHABET)] for byte in digest[:DERIVED_ID])


def _renamed(message: Message, names: dict[str, str]) -> Message:
    match message:
        case AssistantMessage(calls=calls) if calls:
            return replace(
                message, calls=tuple(replace(call, call_id=names.get(call.call_id, call.call_id)) for call in calls)
            )
        case ToolResult(call_id=call_id) if call_id in names:
            return replace(message, call_id=names[call_id])
        case _:
            return message
