"""Owns what a valid conversation is, for each provider's rules, and how an invalid one is repaired.

Providers refuse a conversation whose tool calls and results do not match. Such conversations come from outside: they
were cut off by a crash, edited by a program, or written by another library. `repair` makes one that can be sent. It may
only add what is known to be true: a call without a result gets one that says that its outcome is unknown, never one
that claims success or failure, because the model decides by it whether to do the work again. A true result that came
late is put in its place.

A conversation that is valid already comes back unchanged, in the same order and with the same ids: ids of calls are
parts of idempotency keys and of the record, so that renaming one would let a call run twice. The order of the repair
matters for the same reason. Ids are made unique from the front to the back, and each result is matched with the call
of its own round before that call gets another id, or a repeated id would give the result of one call to another.

What only single providers demand is in `provider_rules.py`: `repair(messages, provider)` is what a model sends to it.

Pure functions over messages. Knows nothing of agents.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count

from ..errors import SafepointError, UsageError, shorten
from ..messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolResult, UserMessage
from .arguments import is_valid, valid_arguments
from .clean_text import clean_text, is_clean
from .model_text import UNKNOWN, assistant_text, result_text
from .provider_rules import PROVIDERS, Provider, adapted, order_problems

__all__ = [
    "NAME",
    "HistoryError",
    "problems",
    "repair",
    "unique_id",
    "valid_name",
    "validate",
]


class HistoryError(SafepointError):
    """A provider would refuse this conversation. The text lists every problem, with the number of its message."""


BEGINNING = UserMessage(text="(The beginning of this conversation is missing.)")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
DEFAULT_PROVIDERS: tuple[Provider, ...] = ("openai", "openai-responses", "anthropic")


def validate(messages: Sequence[Message], provider: Provider | None = None) -> None:
    """Check a conversation.

    Args:
        messages: The conversation.
        provider: Whose rules count: `openai`, `openai-responses`, `anthropic`, `gemini`, `mistral`, `ollama`, or
            `strict-alternation` for servers that use the chat template of an open model. By default the first three.

    Raises:
        HistoryError: A provider would refuse it.
        UsageError: There is no such provider.
    """
    checked = DEFAULT_PROVIDERS if provider is None else (_known(provider),)
    found = [f"{name}: {problem}" for name in checked for problem in problems(messages, name)]
    if found:
        raise HistoryError("this conversation would be refused:\n  - " + "\n  - ".join(found))


def _known(provider: Provider) -> Provider:
    if provider not in PROVIDERS:
        raise UsageError(f"provider must be one of {', '.join(PROVIDERS)}, not {provider!r}")
    return provider


def problems(messages: Sequence[Message], provider: Provider) -> Iterator[str]:
    """Yield everything that this provider would refuse."""
    yield from _pairs(messages)
    yield from _contents(messages)
    yield from _names(messages)
    yield from order_problems(messages, PROVIDERS[provider])


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
                    if not is_valid(call.arguments):
                        yield f"message {index}: the arguments of {call.name!r} are not a JSON object"
            case UserMessage(text=text) | SystemMessage(text=text):
                if not text.strip():
                    yield f"message {index}: an empty {message.kind} message"
            case ToolResult(content=content):
                if not content.strip():
                    yield f"message {index}: an empty tool result"
        if not all(map(is_clean, _texts(message))):
            yield f"message {index}: half of a character (a lone surrogate), which cannot be encoded"


def _texts(message: Message) -> Iterator[str]:
    """Yield the texts of a message, without the arguments of its calls, which have a check of their own."""
    match message:
        case AssistantMessage(text=text, calls=calls):
            yield text
            yield from (call.call_id for call in calls)
        case UserMessage(text=text) | SystemMessage(text=text):
            yield text
        case ToolResult(call_id=call_id, name=name, content=content):
            yield from (call_id, name, content)


def _names(messages: Sequence[Message]) -> Iterator[str]:
    for index, message in enumerate(messages):
        for call in message.calls if isinstance(message, AssistantMessage) else ():
            if not NAME.fullmatch(call.name):
                yield f"message {index}: {call.name!r} is not a tool name (letters, digits, _ and -, at most 64)"


def valid_name(name: str) -> str:
    """Return a name that every provider accepts, even for a tool that the model has invented."""
    return name if NAME.fullmatch(name) else NOT_IN_NAMES.sub("_", name)[:64]


def unique_id(call_id: str, used: Collection[str]) -> str:
    """Return this id, or one derived from it that is not in `used`."""
    if call_id and call_id not in used:
        return call_id
    return next(free for number in count() if (free := f"{call_id or 'call'}-{number}") not in used)


def repair(messages: Iterable[Message], provider: Provider | None = None) -> list[Message]:
    """Return the conversation in a form that can be sent. Valid parts do not change.

    Calls without a result get one with the status "unknown". Results without a call and empty messages are left out.
    Two answers in a row become one. The module docstring says why it works this way.

    Args:
        messages: The conversation.
        provider: Who is to accept it, as in `validate`. By default it is repaired so that each model can send it, and
            ids that only some providers refuse are kept.

    Raises:
        UsageError: There is no such provider, or something is no message.
    """
    rules = None if provider is None else PROVIDERS[_known(provider)]
    given = [_cleaned(message) for message in messages]
    repaired: list[Message] = []
    used: set[str] = set()
    late: set[int] = set()  # the positions of results that were moved to their calls
    for index, message in enumerate(given):
        match message:
            case AssistantMessage(text=text, calls=calls):
                if text.strip() or calls:
                    _add_answer(repaired, message, _results(given, index, late), used)
            case UserMessage(text=text) | SystemMessage(text=text):
                repaired += [message] if text.strip() else []
            case ToolResult():
                pass  # it was added with its call, or has none
    first = next((index for index, message in enumerate(repaired) if not isinstance(message, SystemMessage)), None)
    if first is not None and not isinstance(repaired[first], UserMessage):
        repaired.insert(first, BEGINNING)
    return repaired if rules is None else adapted(repaired, rules)


def _cleaned(message: Message) -> Message:
    """Return the message without halves of characters. Raises: UsageError if it is none."""
    given: object = message  # callers without a type checker give anything
    if not isinstance(given, Message):
        wanted = "a message must be one of safepoint.messages, such as UserMessage(text=…)"
        instead = "; read dicts of OpenAI with messages.from_openai([…])" if isinstance(given, dict) else ""
        raise UsageError(f"{wanted}, not {shorten(repr(given), 100)}{instead}")
    if all(map(is_clean, _texts(message))):
        return message
    match message:
        case AssistantMessage(text=text, calls=calls):
            calls = tuple(replace(call, call_id=clean_text(call.call_id)) for call in calls)
            return replace(message, text=clean_text(text), calls=calls)
        case UserMessage(text=text) | SystemMessage(text=text):
            return replace(message, text=clean_text(text))
        case ToolResult(call_id=call_id, name=name, content=content):
            return replace(message, call_id=clean_text(call_id), name=clean_text(name), content=clean_text(content))


def _results(messages: Sequence[Message], answer: int, late: set[int]) -> list[ToolResult]:
    """Return the results of the calls of an answer: those right after it, and those that came later.

    A later one counts for a call without a result, until an answer uses the id of the call again. Its position is added
    to `late`, so that it counts once.
    """
    message = messages[answer]
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    results: list[ToolResult] = []
    after = answer + 1
    while after < len(messages) and isinstance(each := messages[after], ToolResult):
        if after not in late:
            results.append(each)
        after += 1
    missing = {call.call_id for call in calls} - {result.call_id for result in results}
    for index in range(after, len(messages) if missing else after):
        match messages[index]:
            case ToolResult(call_id=call_id) as result if call_id in missing and index not in late:
                late.add(index)
                missing.discard(call_id)
                results.append(result)
            case AssistantMessage(calls=others):
                missing -= {call.call_id for call in others}
            case _:
                pass
        if not missing:
            break
    return results


def _add_answer(
    repaired: list[Message], message: AssistantMessage, results: Sequence[ToolResult], used: set[str]
) -> None:
    last = next(
        (index for index in reversed(range(len(repaired))) if not isinstance(repaired[index], SystemMessage)), -1
    )
    previous = repaired[last] if last >= 0 else None
    if isinstance(previous, AssistantMessage):  # it has no calls, or their results would be in between
        message = replace(message, text="\n\n".join(filter(str.strip, (assistant_text(previous), message.text))))
        del repaired[last]
    if message.text and not message.text.strip():
        message = replace(message, text="")  # white space before calls, which some providers refuse
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
        result = result if result.content.strip() else replace(result, content=result_text(result))
        matched.append(result if result.call_id == call.call_id else replace(result, call_id=call.call_id))
    if tuple(valid_calls) == calls and {id(each) for each in matched} == {id(each) for each in results}:
        return calls, results  # nothing had to be repaired: keep the order in which the results came
    return tuple(valid_calls), matched
