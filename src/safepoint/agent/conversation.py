"""Owns a conversation while an agent works on it: the messages, the answer that is arriving, the open tool calls.

A stop, a time limit or an error can end the work between any two statements of the agent, and what has happened by
then must be usable: shown to a person, stored, and resumed. So a conversation can be sealed at any moment. `sealed()`
only reads and returns a conversation that every provider accepts. It works because each fact is written down in one
place, as soon as it is true and before the next await:

- An answer that is still arriving is in `answer`, not in `messages`. It is sealed as an interrupted answer, and its
  calls, which cannot have begun, get results that say "not started".
- A complete answer moves to `messages` by `add`. From then on its calls may run.
- The result of each call goes to `results` in the `finally` block of that call, and to `messages` only when all calls
  of the round have one (`close_tool_round`). Sealed in between, finished calls keep their real results, and calls
  without one count as not started. That is true because the run is sealed after its calls have ended or were
  abandoned, and a call that has begun writes a result on every way out: "unknown" until more is known.

Adding results to `messages` one by one instead would put them in the order in which they end, not in that of the
calls. Sealing through the loop's own exit path would lose the conversation when the task of the agent is cancelled.

Knows nothing of how tools run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..messages import AssistantMessage, FinishReason, Message, ToolCall, ToolResult
from ..receipt import Usage
from ..run.context import Context
from ..run.partial_work import PartialWork
from .arguments import valid_arguments
from .clean_text import REPLACEMENT, clean_text, split_half
from .history import repair, unique_id, valid_name
from .model import CallDelta, ModelRequest
from .model_text import CUT_OFF_CALL, NOT_RUN, UNKNOWN

if TYPE_CHECKING:
    from .record import ConversationRecord

__all__ = ["AgentResult", "Conversation", "PartialAnswer", "RunAgain", "never_run_again"]

# Whether a call runs again when its conversation is resumed: no, yes, or only if the person agrees.
RunAgain: TypeAlias = Literal["no", "yes", "ask"]

# An estimate for answers that were cut off before the provider reported their usage.
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What a run of an agent has produced.

    Attributes:
        text: The last answer. `finish_reason` says why it ended.
        messages: The whole conversation, valid for every provider.
        usage: What it has cost.
        steps: How many requests were answered.
        kept: How far sub-agents and flows inside tool calls had come when the run was stopped, by the id of the call.
            A resumed run continues from there.
        id: The id of the run in which the conversation began. It stays the same when the conversation is resumed.
        parts: The results of `ctx.once` so far, as JSON text, by the idempotency key of the call and the key of the
            part.
    """

    text: str
    messages: tuple[Message, ...] = ()
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    kept: "Mapping[str, AgentResult | PartialWork]" = field(default_factory=dict)
    id: str = field(default="", compare=False)
    parts: "Mapping[str, str]" = field(default_factory=dict)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the last answer ended: `length` means that it reached its token limit. None if it was interrupted."""
        answers = (message for message in reversed(self.messages) if isinstance(message, AssistantMessage))
        return next((answer.finish_reason for answer in answers), None)


class PartialAnswer:
    """An answer of a model while it arrives.

    Attributes:
        usage: The last report of its cost.
        finish_reason: Why the answer ended; None as long as it is not complete.
    """

    __slots__ = ("_arguments", "_calls", "_half", "_text", "finish_reason", "usage")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._half = ""  # the first half of a character, whose other half has not come yet
        self._calls: dict[int, tuple[str, str]] = {}
        self._arguments: dict[int, list[str]] = {}
        self.usage: Usage | None = None
        self.finish_reason: FinishReason | None = None

    @property
    def finished(self) -> bool:
        """Whether the answer is complete."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def add_text(self, text: str) -> str:
        """Add a piece of text, and return what of it can be shown: a server may cut a character in two."""
        text, self._half = split_half(self._half + text)
        text = clean_text(text)
        self._text.append(text)
        return text

    def end_text(self) -> str:
        """Add what is left of a character whose other half never came, and return it."""
        half, self._half = self._half, ""
        return self.add_text(REPLACEMENT) if half else ""

    def add_call(self, piece: CallDelta) -> None:
        """Add a piece of a tool call."""
        call_id, name = self._calls.get(piece.index, ("", ""))
        self._calls[piece.index] = (call_id or piece.call_id, name or piece.name)
        self._arguments.setdefault(piece.index, []).append(piece.arguments)

    def calls(self, used: Iterable[str] = ()) -> tuple[ToolCall, ...]:
        """Return the tool calls so far, in the model's order.

        A call whose name has not arrived yet is left out.

        Args:
            used: The ids of other calls. A call with one of them gets a new id.
        """
        used_ids = set(used)
        calls: list[ToolCall] = []
        for index, (call_id, name) in sorted(self._calls.items()):
            if name:
                call_id = unique_id(clean_text(call_id), used_ids)
                used_ids.add(call_id)
                arguments = valid_arguments("".join(self._arguments[index]))
                calls.append(ToolCall(call_id=call_id, name=valid_name(name), arguments=arguments))
        return tuple(calls)

    def _text_beside(self, calls: tuple[ToolCall, ...]) -> str:
        """Return the text; white space before calls is left out, because some providers refuse it."""
        return self.text if not calls or self.text.strip() else ""

    def message(self, used: Iterable[str] = ()) -> AssistantMessage:
        """Return the complete answer. `used`: see `calls`."""
        calls = self.calls(used)
        return AssistantMessage(text=self._text_beside(calls), calls=calls, finish_reason=self.finish_reason)

    def cut_off(self, used: Iterable[str] = ()) -> list[Message]:
        """Return what has arrived as an interrupted answer whose calls were not started. `used`: see `calls`."""
        calls = self.calls(used)
        if not calls and not self.text.strip():
            return []
        message = AssistantMessage(text=self._text_beside(calls), calls=calls, interrupted=True)
        return [message, *(NOT_RUN.result(call) for call in calls)]

    def cost(self, request: ModelRequest, *, stopped: bool = False) -> Usage:
        """Return what the answer has cost.

        That is the provider's report for a complete answer, and an estimate, marked as such, for one that was cut off.

        Args:
            request: The request that it answers.
            stopped: Whether it was cut off by a stop. The request then counts even if nothing of it has arrived.
        """
        reported = self.usage
        if reported is not None and self.finished:
            return Usage(max(1, reported.requests), reported.input_tokens, reported.output_tokens, reported.estimated)
        written = len(self.text) + sum(map(len, chain.from_iterable(self._arguments.values())))
        if not written and not self.finished and reported is None and not stopped:
            return Usage(requests=1)  # the provider refused the request
        read = sum(len(getattr(message, "text", "") or getattr(message, "content", "")) for message in request.messages)
        known = reported or Usage(1, read // CHARACTERS_PER_TOKEN)
        return Usage(1, known.input_tokens, max(known.output_tokens, written // CHARACTERS_PER_TOKEN), estimated=True)


def never_run_again(result: ToolResult) -> RunAgain:
    """Run no call of a stopped conversation again. For code that only reads it."""
    return "no"


class Conversation:
    """A conversation that an agent works on.

    Attributes:
        messages: The complete messages, in a form that every provider accepts once the open calls have results.
        results: The results of the calls of the last answer, by the id of the call, while that round is not closed.
        answer: The answer that is arriving, if one is.
        usage: What the conversation has cost.
        steps: How many requests were answered.
        kept: As in `AgentResult`.
        parts: As in `AgentResult`.
        uncertain_results: The old results of cut-off calls that run again only if the person agrees.
        id: As in `AgentResult`.
        stopped_inside: Whether a call of this round was stopped at a safe point of its own.
        record: Where each answer and result is recorded, if the agent runs inside work that may run again.
    """

    def __init__(
        self,
        messages: Iterable[Message] = (),
        resume: AgentResult | None = None,
        run_again: Callable[[ToolResult], RunAgain] = never_run_again,
    ) -> None:
        """Begin a conversation, or resume a stopped one.

        Args:
            messages: The messages so far.
            resume: The stopped conversation, instead of messages.
            run_again: Whether the call of a result in the last, unfinished round is to run again.
        """
        self.messages: list[Message] = repair(messages)
        self.results: dict[str, ToolResult] = {}
        self.answer: PartialAnswer | None = None
        self.usage = Usage()
        self.steps = 0
        self.kept: dict[str, AgentResult | PartialWork] = {}
        self.parts: Mapping[str, str] = {}
        self.uncertain_results: dict[str, ToolResult] = {}
        self.id = ""
        self.stopped_inside = False
        self.record: ConversationRecord | None = None
        if resume is not None:
            self._restore(resume, run_again)

    def _restore(self, stopped: AgentResult, run_again: Callable[[ToolResult], RunAgain]) -> None:
        """Undo the sealing: reopen the calls that run again, and keep the results of the other ones."""
        messages = list(stopped.messages)
        results: list[ToolResult] = []
        while messages and isinstance(last := messages[-1], ToolResult):
            results.append(last)
            messages.pop()
        self.messages = [*messages, *reversed(results)]
        self.usage, self.steps, self.kept, self.id = stopped.usage, stopped.steps, dict(stopped.kept), stopped.id
        self.parts = stopped.parts
        if not messages or not isinstance(messages[-1], AssistantMessage):
            return
        if messages[-1].interrupted:  # the answer was cut off: the model is asked again
            self.messages = messages[:-1]
        elif messages[-1].calls:
            self.messages = messages
            self.results = {result.call_id: result for result in results if run_again(result) == "no"}
            self.uncertain_results = {result.call_id: result for result in results if run_again(result) == "ask"}

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last answer that have no result yet."""
        last = self.messages[-1] if self.messages else None
        if not isinstance(last, AssistantMessage):
            return ()
        return tuple(call for call in last.calls if call.call_id not in self.results)

    @property
    def answered(self) -> bool:
        """Whether the last message is a complete answer without tool calls, so that there is nothing left to do."""
        last = self.messages[-1] if self.messages else None
        return isinstance(last, AssistantMessage) and not last.calls and not last.interrupted

    @property
    def in_tool_round(self) -> bool:
        """Whether the last message is an answer with tool calls, whose results are not in `messages` yet."""
        last = self.messages[-1] if self.messages else None
        return isinstance(last, AssistantMessage) and bool(last.calls)

    def why_not_run(self, call: ToolCall) -> str | None:
        """Why this call of the last answer must not run; None if it may.

        It is the last call of an answer that was cut off: the model had not finished saying what it wanted. A call
        whose arguments are missing would otherwise run with the defaults of its tool.
        """
        last = self.messages[-1] if self.messages else None
        if not isinstance(last, AssistantMessage) or last.finish_reason is None or call != last.calls[-1]:
            return None
        return CUT_OFF_CALL.get(last.finish_reason)

    def add(self, answer: PartialAnswer) -> None:
        """Add a complete answer to the messages."""
        message = answer.message(self._call_ids())
        self.messages.append(message)
        if self.record is not None:
            self.record.add(message, self.usage)

    def add_result(self, result: ToolResult) -> None:
        """Add the result of a call of the last answer."""
        self.results[result.call_id] = result
        if self.record is not None:
            self.record.add(result, self.usage)

    async def flush(self, ctx: Context) -> None:
        """Wait until the record, if there is one, has everything that was added. Raises: as `Journal.flush`."""
        if self.record is not None:
            await self.record.flush(ctx)

    def record_start(self, call: ToolCall) -> None:
        """Record that a call begins: from now on it may have had effects."""
        if self.record is not None:
            self.record.add(UNKNOWN.result(call), self.usage)

    def close_tool_round(self) -> None:
        """Add the results of the last answer's calls to the messages, in the order of the calls."""
        self.messages += self._round_results()
        self.results = {}
        self.uncertain_results = {}

    def _round_results(self) -> list[ToolResult]:
        last = self.messages[-1]
        calls = last.calls if isinstance(last, AssistantMessage) else ()
        known = {**self.uncertain_results, **self.results}
        return [known.get(call.call_id) or NOT_RUN.result(call) for call in calls]

    def sealed(self) -> AgentResult:
        """Return the conversation as it is now, in a form that the next model call accepts. Changes nothing."""
        messages = list(self.messages)
        if self.in_tool_round:
            messages += self._round_results()
        if self.answer is not None:
            messages += self.answer.cut_off(self._call_ids())
        return AgentResult(
            _last_answer_text(messages),
            tuple(messages),
            self.usage,
            self.steps,
            dict(self.kept),
            self.id,
            dict(self.parts) if self.record is None else {**self.parts, **self.record.parts_of(self.id)},
        )

    def _call_ids(self) -> Iterator[str]:
        answers = (message for message in self.messages if isinstance(message, AssistantMessage))
        return (call.call_id for answer in answers for call in answer.calls)


def _last_answer_text(messages: list[Message]) -> str:
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            return message.text
    return ""
