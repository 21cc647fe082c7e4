"""Owns what a valid conversation is, for each provider's rules, and how one from elsewhere is mended.

Pure functions over messages. A mended conversation never claims a success that nobody saw. Knows nothing of agents.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

from ..errors import SafepointError, UsageError
from ..run.messages import AssistantMessage, CallStatus, Message, SystemMessage, ToolCall, ToolResult, UserMessage

__all__ = ["INTERRUPTED", "NOT_RUN", "UNKNOWN", "HistoryError", "Rules", "Verdict", "problems", "repair", "validate"]

Rules: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]


class HistoryError(SafepointError):
    """A provider would refuse this conversation: the message lists every problem, with the place of the message."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a tool call that did not end by itself, in words that a model understands."""

    status: CallStatus
    text: str

    def result(self, call: ToolCall, note: str = "") -> ToolResult:
        """The call's one result."""
        text = f"{self.text} {note}".strip()
        return ToolResult(call_id=call.call_id, name=call.name, content=text, status=self.status)


NOT_RUN = Verdict("not_started", "This call was not started: the run was stopped before it.")
INTERRUPTED = Verdict("interrupted", "This call was interrupted: the run was stopped while it ran. It has no result.")
UNKNOWN = Verdict("unknown", "It is not known what became of this call: the run was stopped. It may have had effects.")


def validate(messages: Sequence[Message], rules: Rules | None = None) -> None:
    """Raises: HistoryError if a provider of these rules (or any, by default) would refuse the conversation."""
    known: tuple[Rules, ...] = ("openai-chat", "openai-responses", "anthropic")
    if rules is not None and rules not in known:
        raise UsageError(f"rules must be one of {', '.join(known)}, not {rules!r}")
    found = [f"{name}: {problem}" for name in ([rules] if rules else known) for problem in problems(messages, name)]
    if found:
        raise HistoryError("this conversation would be refused:\n  - " + "\n  - ".join(found))


def problems(messages: Sequence[Message], rules: Rules) -> Iterator[str]:
    """Everything a provider of these rules would refuse."""
    yield from _pairs(messages)
    yield from _contents(messages)
    match rules:
        case "openai-chat":
            yield from _roles(messages)
        case "openai-responses":
            yield from _names(messages)
        case "anthropic":
            yield from _alternation(messages)


def _pairs(messages: Sequence[Message]) -> Iterator[str]:
    """Every call has exactly one result, right after the answer that asked for it; no result without a call."""
    waiting: dict[str, int] = {}
    seen: set[str] = set()
    for place, message in enumerate(messages):
        match message:
            case ToolResult(call_id=call_id):
                if waiting.pop(call_id, None) is None:
                    yield f"message {place}: the result {call_id!r} answers no open call"
            case AssistantMessage(calls=calls):
                yield from _unanswered(waiting, place)
                for call in calls:
                    if call.call_id in seen:
                        yield f"message {place}: the call id {call.call_id!r} was used before"
                    seen.add(call.call_id)
                waiting = {call.call_id: place for call in calls}
            case SystemMessage() | UserMessage():
                yield from _unanswered(waiting, place)
                waiting = {}
    yield from _unanswered(waiting, len(messages))


def _unanswered(waiting: dict[str, int], place: int) -> Iterator[str]:
    for call_id, asked in waiting.items():
        yield f"message {asked}: the call {call_id!r} has no result before message {place}"
    waiting.clear()


def _contents(messages: Sequence[Message]) -> Iterator[str]:
    for place, message in enumerate(messages):
        match message:
            case AssistantMessage(text=text, calls=calls):
                if not text and not calls:
                    yield f"message {place}: an answer with neither text nor calls"
                for call in calls:
                    if not call.call_id or not call.name:
                        yield f"message {place}: a call without id or name"
                    if not _is_object(call.arguments):
                        yield f"message {place}: the arguments of {call.name!r} are not a JSON object"
            case UserMessage(text=text):
                if not text.strip():
                    yield f"message {place}: an empty user message"
            case ToolResult(content=content):
                if not content:
                    yield f"message {place}: an empty tool result"
            case SystemMessage():
                pass


def _roles(messages: Sequence[Message]) -> Iterator[str]:
    if messages and isinstance(messages[0], ToolResult):
        yield "message 0: a conversation cannot begin with a tool result"


def _names(messages: Sequence[Message]) -> Iterator[str]:
    for place, message in enumerate(messages):
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            if not call.name.replace("_", "").replace("-", "").isalnum() or len(call.name) > 64:
                yield f"message {place}: {call.name!r} is not a tool name (letters, digits, _ and -, at most 64)"


def _alternation(messages: Sequence[Message]) -> Iterator[str]:
    """A user begins, nobody speaks twice in a row, and the last word is not white space."""
    said = [message for message in messages if not isinstance(message, SystemMessage)]
    if said and not isinstance(said[0], UserMessage):
        yield f"message {messages.index(said[0])}: a conversation begins with a user message"
    for place, (before, message) in enumerate(pairwise(messages), 1):
        if isinstance(before, AssistantMessage) and isinstance(message, AssistantMessage):
            yield f"message {place}: two answers in a row"
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and not message.calls and message.text and not message.text.strip():
            yield f"message {place}: an answer of white space"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except ValueError:
        return False


def repair(messages: Iterable[Message]) -> list[Message]:
    """The conversation, mended: open calls are closed as unknown, stray results and empty messages are left out.

    Of what is valid nothing changes. Results come in the order of their calls.
    """
    mended: list[Message] = []
    rest = list(messages)
    used: set[str] = set()
    while rest:
        message = rest.pop(0)
        match message:
            case AssistantMessage():
                results: dict[str, ToolResult] = {}
                while rest and isinstance(rest[0], ToolResult):
                    result = rest.pop(0)
                    assert isinstance(result, ToolResult)  # for the type checker
                    results.setdefault(result.call_id, result)
                mended += _mended(message, results, used)
            case UserMessage(text=text) | SystemMessage(text=text):
                mended += [message] if text.strip() else []
            case ToolResult():
                pass  # it answers nothing
    return mended


def _mended(message: AssistantMessage, results: dict[str, ToolResult], used: set[str]) -> list[Message]:
    calls = [call for call in message.calls if call.call_id and call.name and call.call_id not in used]
    used |= {call.call_id for call in calls}
    closed = tuple(call if _is_object(call.arguments) else replace(call, arguments="{}") for call in calls)
    if not closed and not message.text.strip():
        return []
    if closed != message.calls:
        message = replace(message, calls=closed)
    return [message, *(_full(results.get(call.call_id) or UNKNOWN.result(call)) for call in closed)]


def _full(result: ToolResult) -> ToolResult:
    return result if result.content else replace(result, content="(no output)")
