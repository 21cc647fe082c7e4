"""Owns one conversation while an agent works on it: what was said, the answer that is coming in, the open tool calls.

At any moment it can be sealed: a conversation that the next model call accepts. Knows nothing of how tools run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeAlias

from ..run.messages import AssistantMessage, Message, ToolCall, ToolResult
from ..run.partial_work import PartialWork
from ..run.receipt import Usage
from .history import NOT_RUN, named, readable, repair, unused
from .model import CallDelta, ModelRequest

__all__ = ["Again", "AgentResult", "Conversation", "PartialAnswer"]

# Whether a call runs again when its conversation is taken up: no, yes, or only if the person says so.
Again: TypeAlias = Literal["no", "yes", "ask"]

# Where a provider does not say what a cut-off answer cost: about so many characters are a token.
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What an agent has to show: its last words, the whole valid conversation, what it cost.

    `kept`: of a stopped run, by tool call: how far sub-agents and flows had come. A resume goes on from it.
    `id`: the run in which the conversation began; it stays the same when it is resumed.
    `parts`: the results of `ctx.once` so far, as JSON text, by the idempotency key of the call and the key of the part.
    """

    text: str
    messages: tuple[Message, ...] = ()
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    kept: "Mapping[str, AgentResult | PartialWork]" = field(default_factory=dict)
    id: str = field(default="", compare=False)
    parts: "Mapping[str, str]" = field(default_factory=dict)


class PartialAnswer:
    """A model's answer while it comes in, piece by piece."""

    __slots__ = ("_arguments", "_calls", "_text", "finished", "usage")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, tuple[str, str]] = {}
        self._arguments: dict[int, list[str]] = {}
        self.usage: Usage | None = None
        self.finished = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def add_text(self, text: str) -> None:
        """One more piece of text."""
        self._text.append(text)

    def add_call(self, piece: CallDelta) -> None:
        """One more piece of a tool call."""
        call_id, name = self._calls.get(piece.index, ("", ""))
        self._calls[piece.index] = (call_id or piece.call_id, name or piece.name)
        self._arguments.setdefault(piece.index, []).append(piece.arguments)

    def calls(self, used: Iterable[str] = ()) -> tuple[ToolCall, ...]:
        """The tool calls so far, in the model's order, with ids that are not `used`. Without a name it is none yet."""
        taken = set(used)
        calls: list[ToolCall] = []
        for index, (call_id, name) in sorted(self._calls.items()):
            if name:
                call_id = unused(call_id, taken)
                taken.add(call_id)
                arguments = readable("".join(self._arguments[index]))
                calls.append(ToolCall(call_id=call_id, name=named(name), arguments=arguments))
        return tuple(calls)

    def message(self, used: Iterable[str] = ()) -> AssistantMessage:
        """The whole answer."""
        return AssistantMessage(text=self.text, calls=self.calls(used))

    def cut_off(self, used: Iterable[str] = ()) -> list[Message]:
        """What there is, closed: half-written arguments are readable, and no call has run."""
        calls = self.calls(used)
        if not calls and not self.text.strip():
            return []
        message = AssistantMessage(text=self.text, calls=calls, interrupted=True)
        return [message, *(NOT_RUN.result(call) for call in calls)]

    def cost(self, request: ModelRequest, *, stopped: bool = False) -> Usage:
        """What the provider said it cost; of an answer that was cut off, an estimate that says so."""
        said = self.usage
        if said is not None and self.finished:
            return Usage(max(1, said.requests), said.input_tokens, said.output_tokens, said.estimated)
        written = len(self.text) + sum(map(len, chain.from_iterable(self._arguments.values())))
        if not written and not self.finished and said is None and not stopped:
            return Usage(requests=1)  # refused
        read = sum(len(getattr(message, "text", "") or getattr(message, "content", "")) for message in request.messages)
        known = said or Usage(1, read // CHARACTERS_PER_TOKEN)
        return Usage(1, known.input_tokens, max(known.output_tokens, written // CHARACTERS_PER_TOKEN), estimated=True)


def stays(result: ToolResult) -> Again:
    """For whoever only looks at a stopped conversation: nothing in it runs again."""
    return "no"


class Conversation:
    """A conversation in work."""

    def __init__(
        self,
        messages: Iterable[Message] = (),
        resume: AgentResult | None = None,
        again: Callable[[ToolResult], Again] = stays,
    ) -> None:
        """Begin a conversation, or take a stopped one up again.

        Args:
            messages: What was said so far.
            resume: The stopped conversation, instead of messages.
            again: Whether the call of a result in the last, unfinished round is to run again.
        """
        self.messages: list[Message] = repair(messages)
        self.results: dict[str, ToolResult] = {}
        self.answer: PartialAnswer | None = None
        self.usage = Usage()
        self.steps = 0
        self.kept: dict[str, AgentResult | PartialWork] = {}
        self.parts: Mapping[str, str] = {}
        self.doubtful: dict[str, ToolResult] = {}  # of calls that run again only if the person says so
        self.id = ""
        self.stopped_inside = False  # a call of this round was stopped at a safe point of its own
        if resume is not None:
            self._go_on(resume, again)

    def _go_on(self, before: AgentResult, again: Callable[[ToolResult], Again]) -> None:
        """Take back what was sealed: the calls that have not ended are open again, and keep what did end."""
        said = list(before.messages)
        results: list[ToolResult] = []
        while said and isinstance(last := said[-1], ToolResult):
            results.append(last)
            said.pop()
        self.messages = [*said, *reversed(results)]
        self.usage, self.steps, self.kept, self.id = before.usage, before.steps, dict(before.kept), before.id
        self.parts = before.parts
        if not said or not isinstance(said[-1], AssistantMessage):
            return
        if said[-1].interrupted:  # the model had not finished: it is asked again
            self.messages = said[:-1]
        elif said[-1].calls:
            self.messages = said
            self.results = {result.call_id: result for result in results if again(result) == "no"}
            self.doubtful = {result.call_id: result for result in results if again(result) == "ask"}

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last answer that have no result yet."""
        last = self.messages[-1] if self.messages else None
        if not isinstance(last, AssistantMessage):
            return ()
        return tuple(call for call in last.calls if call.call_id not in self.results)

    @property
    def answered(self) -> bool:
        """True: the last thing said is a whole answer without tool calls. There is nothing left to do."""
        last = self.messages[-1] if self.messages else None
        return isinstance(last, AssistantMessage) and not last.calls and not last.interrupted

    @property
    def in_round(self) -> bool:
        """True: the last thing said is an answer with tool calls."""
        last = self.messages[-1] if self.messages else None
        return isinstance(last, AssistantMessage) and bool(last.calls)

    def add(self, answer: PartialAnswer) -> None:
        """The answer is whole: it is part of the conversation."""
        self.messages.append(answer.message(self._call_ids()))

    def close_round(self) -> None:
        """All calls have a result: they are part of the conversation now, in the model's order."""
        self.messages += self._round()
        self.results = {}
        self.doubtful = {}

    def _round(self) -> list[ToolResult]:
        last = self.messages[-1]
        calls = last.calls if isinstance(last, AssistantMessage) else ()
        known = {**self.doubtful, **self.results}
        return [known.get(call.call_id) or NOT_RUN.result(call) for call in calls]

    def sealed(self) -> AgentResult:
        """As it is now, in a form that the next model call accepts."""
        messages = list(self.messages)
        if self.in_round:
            messages += self._round()
        if self.answer is not None:
            messages += self.answer.cut_off(self._call_ids())
        return AgentResult(
            _last_words(messages), tuple(messages), self.usage, self.steps, dict(self.kept), self.id, dict(self.parts)
        )

    def _call_ids(self) -> Iterator[str]:
        return (call.call_id for said in self.messages if isinstance(said, AssistantMessage) for call in said.calls)


def _last_words(messages: list[Message]) -> str:
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            return message.text
    return ""
