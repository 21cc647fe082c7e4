"""Owns what a valid conversation is, for each provider's rules, and how one from elsewhere is mended.

Pure functions over messages. A mended conversation never claims a success that nobody saw. Knows nothing of agents.
"""

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Literal, TypeAlias

from ..errors import SafepointError, UsageError
from ..run.messages import AssistantMessage, CallStatus, Message, SystemMessage, ToolCall, ToolResult, UserMessage

__all__ = [
    "INTERRUPTED",
    "NAME",
    "NOT_RUN",
    "UNKNOWN",
    "HistoryError",
    "Rules",
    "SyntheticResult",
    "named",
    "problems",
    "readable",
    "repair",
    "unreadable",
    "unused",
    "validate",
]

Rules: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]


class HistoryError(SafepointError):
    """A provider would refuse this conversation: the message lists every problem, with the place of the message."""


@dataclass(frozen=True, slots=True)
class SyntheticResult:
    """What is said of a tool call that did not end by itself, in words that a model understands."""

    status: CallStatus
    text: str

    def result(self, call: ToolCall, note: str = "") -> ToolResult:
        """The call's one result."""
        text = f"{self.text} {note}".strip()
        return ToolResult(call_id=call.call_id, name=call.name, content=text, status=self.status)


NOT_RUN = SyntheticResult("not_started", "This call was not started: the run was stopped before it.")
INTERRUPTED = SyntheticResult(
    "interrupted", "This call was interrupted: the run was stopped while it ran. It has no result."
)
UNKNOWN = SyntheticResult(
    "unknown", "It is not known what became of this call: the run was stopped. It may have had effects."
)

BEGINNING = UserMessage(text="(The beginning of this conversation is missing.)")
UNREADABLE = "unreadable"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def validate(messages: Sequence[Message], rules: Rules | None = None) -> None:
    """Raises: HistoryError if a provider of these rules (or any, by default) would refuse the conversation."""
    known: tuple[Rules, ...] = ("openai-chat", "openai-responses", "anthropic")
    if rules is not None and rules not in known:
        raise UsageError(f"rules must be one of {', '.join(known)}, not {rules!r}")
    wanted = known if rules is None else (rules,)
    found = [f"{name}: {problem}" for name in wanted for problem in problems(messages, name)]
    if found:
        raise HistoryError("this conversation would be refused:\n  - " + "\n  - ".join(found))


def problems(messages: Sequence[Message], rules: Rules) -> Iterator[str]:
    """Everything a provider of these rules would refuse."""
    yield from _pairs(messages)
    yield from _contents(messages)
    yield from _names(messages)
    if rules == "anthropic":  # both formats of OpenAI take turns as they come
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
            case UserMessage(text=text) | SystemMessage(text=text):
                if not text.strip():
                    yield f"message {place}: an empty {message.kind} message"
            case ToolResult(content=content):
                if not content.strip():
                    yield f"message {place}: an empty tool result"


def _names(messages: Sequence[Message]) -> Iterator[str]:
    for place, message in enumerate(messages):
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            if not NAME.fullmatch(call.name):
                yield f"message {place}: {call.name!r} is not a tool name (letters, digits, _ and -, at most 64)"


def _alternation(messages: Sequence[Message]) -> Iterator[str]:
    """A user begins, nobody answers twice in a row, and no answer is white space. Instructions stand apart."""
    said = [(place, message) for place, message in enumerate(messages) if not isinstance(message, SystemMessage)]
    if said and not isinstance(said[0][1], UserMessage):
        yield f"message {said[0][0]}: a conversation begins with a user message"
    for (_, before), (place, message) in pairwise(said):
        if isinstance(before, AssistantMessage) and isinstance(message, AssistantMessage):
            yield f"message {place}: two answers in a row"
    for place, message in said:
        if isinstance(message, AssistantMessage) and not message.calls and message.text and not message.text.strip():
            yield f"message {place}: an answer of white space"


def named(name: str) -> str:
    """A name that every provider accepts, also for a tool that a model has made up."""
    return name if NAME.fullmatch(name) else NOT_IN_NAMES.sub("_", name)[:64]


def readable(arguments: str) -> str:
    """Arguments that every provider accepts: what is no JSON object is kept, inside one."""
    return arguments if _is_object(arguments) else json.dumps({UNREADABLE: arguments})


def unreadable(arguments: str) -> str | None:
    """What the model wrote instead of a JSON object, if `readable` had to keep it."""
    if not arguments.startswith(f'{{"{UNREADABLE}"'):
        return None
    found = json.loads(arguments)
    return str(found[UNREADABLE]) if len(found) == 1 else None


def unused(call_id: str, used: Collection[str]) -> str:
    """This id, or one made of it that no other call has."""
    if call_id and call_id not in used:
        return call_id
    return next(other for number in count() if (other := f"{call_id or 'call'}-{number}") not in used)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError):
        return False


def repair(messages: Iterable[Message]) -> list[Message]:
    """The conversation, mended for all providers: of what is valid nothing changes.

    Open calls are closed as unknown; stray results and empty messages are left out; two answers in a row become one.
    """
    mended: list[Message] = []
    rest = deque(messages)
    used: set[str] = set()
    while rest:
        message = rest.popleft()
        match message:
            case AssistantMessage():
                results: list[ToolResult] = []
                while rest and isinstance(rest[0], ToolResult):
                    result = rest.popleft()
                    assert isinstance(result, ToolResult)  # for the type checker
                    results.append(result)
                if message.text.strip() or message.calls:
                    _add_answer(mended, message, results, used)
            case UserMessage(text=text) | SystemMessage(text=text):
                mended += [message] if text.strip() else []
            case ToolResult():
                pass  # it answers nothing
    first = next((place for place, message in enumerate(mended) if not isinstance(message, SystemMessage)), None)
    if first is not None and not isinstance(mended[first], UserMessage):
        mended.insert(first, BEGINNING)
    return mended


def _add_answer(
    mended: list[Message], message: AssistantMessage, results: Sequence[ToolResult], used: set[str]
) -> None:
    before = next((place for place in reversed(range(len(mended))) if not isinstance(mended[place], SystemMessage)), -1)
    said = mended[before] if before >= 0 else None
    if isinstance(said, AssistantMessage):  # it had no calls: their results would stand in between
        text = "\n\n".join(filter(str.strip, (said.text, message.text)))
        message = replace(message, text=text)
        del mended[before]
    calls, answered = _mended(message.calls, results, used)
    mended.append(message if calls == message.calls else replace(message, calls=calls))
    mended += answered


def _mended(
    calls: tuple[ToolCall, ...], results: Sequence[ToolResult], used: set[str]
) -> tuple[tuple[ToolCall, ...], list[ToolResult]]:
    """Calls that every provider accepts, each with the first result that was meant for it."""
    left = list(results)
    good: list[ToolCall] = []
    answered: list[ToolResult] = []
    for call in calls:
        fits = (one for one in left if one.call_id == call.call_id)
        result = next(fits, None)
        call = ToolCall(
            call_id=unused(call.call_id, used), name=named(call.name) or "tool", arguments=readable(call.arguments)
        )
        used.add(call.call_id)
        good.append(call)
        if result is None:
            answered.append(UNKNOWN.result(call))
            continue
        left.remove(result)
        result = result if result.content.strip() else replace(result, content="(no output)")
        answered.append(result if result.call_id == call.call_id else replace(result, call_id=call.call_id))
    if tuple(good) == calls and {id(one) for one in answered} == {id(one) for one in results}:
        answered = list(results)  # nothing had to be mended: in the order in which they came
    return tuple(good), answered
