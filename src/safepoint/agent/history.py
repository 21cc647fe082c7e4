"""Owns what a valid conversation is, for each provider's rules, and how an invalid one is repaired.

Providers refuse a conversation whose tool calls and results do not match. Such conversations come from outside: they
were cut off by a crash, edited by a program, or written by another library. `repair` makes one that every provider
accepts. It may only add what is known to be true: a call without a result gets one that says that its outcome is
unknown, never one that claims success or failure, because the model decides by it whether to do the work again.

A conversation that is valid already comes back unchanged, in the same order and with the same ids: ids of calls are
parts of idempotency keys and of the record, so that renaming one would let a call run twice. The order of the repair
matters for the same reason. Ids are made unique from the front to the back, and each result is matched with the call
of its own round before that call gets another id, or a repeated id would give the result of one call to another.

Pure functions over messages. Knows nothing of agents.
"""

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Literal, TypeAlias

from ..errors import SafepointError, UsageError
from ..messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolResult, UserMessage
from .model_text import NO_OUTPUT, UNKNOWN

__all__ = [
    "NAME",
    "HistoryError",
    "Rules",
    "invalid_arguments",
    "problems",
    "repair",
    "unique_id",
    "valid_arguments",
    "valid_name",
    "validate",
]

Rules: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]


class HistoryError(SafepointError):
    """A provider would refuse this conversation. The text lists every problem, with the number of its message."""


BEGINNING = UserMessage(text="(The beginning of this conversation is missing.)")
UNREADABLE = "unreadable"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def validate(messages: Sequence[Message], rules: Rules | None = None) -> None:
    """Check a conversation.

    Args:
        messages: The conversation.
        rules: The format whose rules count; by default all of them.

    Raises:
        HistoryError: A provider would refuse it.
        UsageError: There are no such rules.
    """
    known: tuple[Rules, ...] = ("openai-chat", "openai-responses", "anthropic")
    if rules is not None and rules not in known:
        raise UsageError(f"rules must be one of {', '.join(known)}, not {rules!r}")
    checked = known if rules is None else (rules,)
    found = [f"{name}: {problem}" for name in checked for problem in problems(messages, name)]
    if found:
        raise HistoryError("this conversation would be refused:\n  - " + "\n  - ".join(found))


def problems(messages: Sequence[Message], rules: Rules) -> Iterator[str]:
    """Yield everything that a provider with these rules would refuse."""
    yield from _pairs(messages)
    yield from _contents(messages)
    yield from _names(messages)
    if rules == "anthropic":  # both formats of OpenAI accept any order of user and assistant messages
        yield from _alternation(messages)


def _pairs(messages: Sequence[Message]) -> Iterator[str]:
    """Check that every call has exactly one result, right after its answer, and that every result has a call."""
    open_calls: dict[str, int] = {}
    known_ids: set[str] = set()
    for index, message in enumerate(messages):
        match message:
            case ToolResult(call_id=call_id):
                if open_calls.pop(call_id, None) is None:
                    yield f"message {index}: the result {call_id!r} answers no open call"
            case AssistantMessage(calls=calls):
                yield from _unanswered(open_calls, index)
                for call in calls:
                    if call.call_id in known_ids:
                        yield f"message {index}: the call id {call.call_id!r} was used before"
                    known_ids.add(call.call_id)
                open_calls = {call.call_id: index for call in calls}
            case SystemMessage() | UserMessage():
                yield from _unanswered(open_calls, index)
                open_calls = {}
    yield from _unanswered(open_calls, len(messages))


def _unanswered(open_calls: dict[str, int], index: int) -> Iterator[str]:
    for call_id, of_answer in open_calls.items():
        yield f"message {of_answer}: the call {call_id!r} has no result before message {index}"
    open_calls.clear()


def _contents(messages: Sequence[Message]) -> Iterator[str]:
    for index, message in enumerate(messages):
        match message:
            case AssistantMessage(text=text, calls=calls):
                if not text and not calls:
                    yield f"message {index}: an answer with neither text nor calls"
                for call in calls:
                    if not call.call_id or not call.name:
                        yield f"message {index}: a call without id or name"
                    if not _is_object(call.arguments):
                        yield f"message {index}: the arguments of {call.name!r} are not a JSON object"
            case UserMessage(text=text) | SystemMessage(text=text):
                if not text.strip():
                    yield f"message {index}: an empty {message.kind} message"
            case ToolResult(content=content):
                if not content.strip():
                    yield f"message {index}: an empty tool result"


def _names(messages: Sequence[Message]) -> Iterator[str]:
    for index, message in enumerate(messages):
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            if not NAME.fullmatch(call.name):
                yield f"message {index}: {call.name!r} is not a tool name (letters, digits, _ and -, at most 64)"


def _alternation(messages: Sequence[Message]) -> Iterator[str]:
    """Check that a user message comes first, that no two answers follow each other, and that none is blank.

    System messages do not count: they have a field of their own in the request.
    """
    turns = [(index, message) for index, message in enumerate(messages) if not isinstance(message, SystemMessage)]
    if turns and not isinstance(turns[0][1], UserMessage):
        yield f"message {turns[0][0]}: a conversation begins with a user message"
    for (_, before), (index, message) in pairwise(turns):
        if isinstance(before, AssistantMessage) and isinstance(message, AssistantMessage):
            yield f"message {index}: two answers in a row"
    for index, message in turns:
        if isinstance(message, AssistantMessage) and not message.calls and message.text and not message.text.strip():
            yield f"message {index}: an answer of white space"


def valid_name(name: str) -> str:
    """Return a name that every provider accepts, even for a tool that the model has invented."""
    return name if NAME.fullmatch(name) else NOT_IN_NAMES.sub("_", name)[:64]


def valid_arguments(arguments: str) -> str:
    """Return arguments that every provider accepts: text that is no JSON object is kept inside one."""
    return arguments if _is_object(arguments) else json.dumps({UNREADABLE: arguments})


def invalid_arguments(arguments: str) -> str | None:
    """Return what the model wrote instead of a JSON object, if `valid_arguments` had to wrap it; otherwise None."""
    if not arguments.startswith(f'{{"{UNREADABLE}"'):
        return None
    found = json.loads(arguments)
    return str(found[UNREADABLE]) if len(found) == 1 else None


def unique_id(call_id: str, used: Collection[str]) -> str:
    """Return this id, or one derived from it that is not in `used`."""
    if call_id and call_id not in used:
        return call_id
    return next(free for number in count() if (free := f"{call_id or 'call'}-{number}") not in used)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError):
        return False


def repair(messages: Iterable[Message]) -> list[Message]:
    """Return the conversation in a form that all providers accept. Valid parts do not change.

    Calls without a result get one with the status "unknown". Results without a call and empty messages are left out.
    Two answers in a row become one. The module docstring says why it works this way.
    """
    repaired: list[Message] = []
    remaining = deque(messages)
    used: set[str] = set()
    while remaining:
        message = remaining.popleft()
        match message:
            case AssistantMessage():
                results: list[ToolResult] = []
                while remaining and isinstance(remaining[0], ToolResult):
                    result = remaining.popleft()
                    assert isinstance(result, ToolResult)  # checked by the loop condition
                    results.append(result)
                if message.text.strip() or message.calls:
                    _add_answer(repaired, message, results, used)
            case UserMessage(text=text) | SystemMessage(text=text):
                repaired += [message] if text.strip() else []
            case ToolResult():
                pass  # there is no call before it
    first = next((index for index, message in enumerate(repaired) if not isinstance(message, SystemMessage)), None)
    if first is not None and not isinstance(repaired[first], UserMessage):
        repaired.insert(first, BEGINNING)
    return repaired


def _add_answer(
    repaired: list[Message], message: AssistantMessage, results: Sequence[ToolResult], used: set[str]
) -> None:
    last = next(
        (index for index in reversed(range(len(repaired))) if not isinstance(repaired[index], SystemMessage)), -1
    )
    previous = repaired[last] if last >= 0 else None
    if isinstance(previous, AssistantMessage):  # it has no calls, or their results would be in between
        text = "\n\n".join(filter(str.strip, (previous.text, message.text)))
        message = replace(message, text=text)
        del repaired[last]
    calls, results = _repaired_calls(message.calls, results, used)
    repaired.append(message if calls == message.calls else replace(message, calls=calls))
    repaired += results


def _repaired_calls(
    calls: tuple[ToolCall, ...], results: Sequence[ToolResult], used: set[str]
) -> tuple[tuple[ToolCall, ...], Sequence[ToolResult]]:
    """Return calls that every provider accepts, and one result for each: the first one with the id of the call."""
    unmatched = list(results)
    valid_calls: list[ToolCall] = []
    matched: list[ToolResult] = []
    for call in calls:
        result = next((each for each in unmatched if each.call_id == call.call_id), None)
        call = ToolCall(
            call_id=unique_id(call.call_id, used),
            name=valid_name(call.name) or "tool",
            arguments=valid_arguments(call.arguments),
        )
        used.add(call.call_id)
        valid_calls.append(call)
        if result is None:
            matched.append(UNKNOWN.result(call))
            continue
        unmatched.remove(result)
        result = result if result.content.strip() else replace(result, content=NO_OUTPUT)
        matched.append(result if result.call_id == call.call_id else replace(result, call_id=call.call_id))
    if tuple(valid_calls) == calls and {id(each) for each in matched} == {id(each) for each in results}:
        return calls, results  # nothing had to be repaired: keep the order in which the results came
    return tuple(valid_calls), matched
