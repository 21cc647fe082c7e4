"""Owns what the log says of work that has not ended: how far a turn had come, and the sub-agents inside of its calls.

Pure: it is fed events in order. After a crash this is all there is, so that nothing is concluded from it but what must
be true: a call has not begun unless the log says so, because that is written before its body begins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..agent.conversation import AgentResult, Conversation
from ..agent.history import NOT_RUN, UNKNOWN, repair
from ..run.events import (
    AnswerRestarted,
    AnswerStarted,
    CallRecorded,
    Event,
    FlowSaved,
    TextStreamed,
    ToolCalled,
    ToolEnded,
)
from ..run.messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from ..run.partial_work import FLOW, PartialWork

__all__ = ["UnfinishedWork"]

PROMPT = UserMessage(text="-")  # stands for the prompt of a sub-agent, which its parent gives it again


@dataclass
class UnfinishedWork:
    """Work that the log does not know the end of: an agent's turn, or what runs inside of a tool call.

    Attributes:
        answers: What the model has said, if it is an agent.
        results: The results of its tool calls.
        inner: What runs inside of its tool calls.
        flow: Where the flow is that runs inside of this tool call, if one does.
        id: The id of its conversation, from which the keys of its calls are made. Empty if it has not called a tool.
    """

    answers: list[AssistantMessage] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)
    inner: "dict[str, UnfinishedWork]" = field(default_factory=dict)
    flow: PartialWork | None = None
    id: str = ""
    _begun: set[str] = field(default_factory=set)

    def apply(self, event: Event, depth: int = 0) -> None:
        """One more event. Only those of agents count: each is one step below the call that it runs in."""
        if len(event.path) != len(event.calls) + 1:
            return
        if depth < len(event.calls):
            self.inner.setdefault(event.calls[depth], UnfinishedWork()).apply(event, depth + 1)
            return
        match event:
            case AnswerStarted():
                self.answers.append(AssistantMessage(interrupted=True))
            case AnswerRestarted() if self.answers:
                self.answers[-1] = AssistantMessage(interrupted=True)
            case TextStreamed(text=text) if self.answers:
                self.answers[-1] = replace(self.answers[-1], text=self.answers[-1].text + text)
            case ToolCalled():
                self._called(event)
            case CallRecorded(call_id=call_id):
                self._begun.add(call_id)
            case ToolEnded(call_id=call_id, name=name, status=status, content=content):
                self.results[call_id] = ToolResult(call_id=call_id, name=name, content=content, status=status)
                self.inner.pop(call_id, None)
            case FlowSaved(checkpoint=text):
                self.flow = PartialWork(FLOW, text)
            case _:
                pass

    def _called(self, event: ToolCalled) -> None:
        if not event.idempotency_key:  # of a version that did not write down when a body began
            self._begun.add(event.call_id)
        self.id = self.id or event.idempotency_key.removesuffix(f":{event.call_id}")
        if not self.answers:
            return  # a call of the turn before, which runs again
        call = ToolCall(call_id=event.call_id, name=event.name, arguments=event.arguments)
        last = self.answers[-1]
        self.answers[-1] = replace(last, calls=(*last.calls, call), interrupted=False)

    def result_of(self, call: ToolCall, before: Mapping[str, ToolResult]) -> ToolResult:
        """What became of a call: its result, or the truth about one that has none. `before`: results of other turns."""
        if call.call_id in self.results:
            return self.results[call.call_id]
        if call.call_id in self._begun:
            return UNKNOWN.result(call)
        return before.get(call.call_id) or NOT_RUN.result(call)

    def rebuilt(self, conversation: Conversation) -> AgentResult:
        """Add what is known of this work to `conversation`, in a form that the next model call accepts."""
        said, before = list(conversation.messages), conversation.results
        answers: list[Message] = [*([said.pop()] if conversation.in_tool_round else []), *self.answers]
        for answer in answers:
            assert isinstance(answer, AssistantMessage)  # for the type checker: a round begins with one
            said.append(answer)
            said += [self.result_of(call, before) for call in answer.calls]
        text = self.answers[-1].text if self.answers else ""
        kept = {call_id: left for call_id, left in conversation.kept.items() if call_id not in self.results}
        for call_id, work in self.inner.items():
            left = work._left(conversation.kept.get(call_id))
            if left is not None:
                kept[call_id] = left
        return AgentResult(
            text, tuple(repair(said)), steps=conversation.steps + len(self.answers), kept=kept, id=conversation.id
        )

    def _left(self, before: AgentResult | PartialWork | None) -> AgentResult | PartialWork | None:
        """What the call goes on from when it runs again; None for one with neither an agent nor a flow inside."""
        if self.flow is not None:
            return self.flow
        if isinstance(before, PartialWork) or (before is None and not self.answers):
            return before
        return self._below(before)

    def _below(self, before: AgentResult | None) -> AgentResult:
        """Of a sub-agent. What the log knows of it is without its prompt, which is in the arguments of the call.

        `before`: what it went on from, if it was cut off before.
        """
        left = before or AgentResult("")
        if not left.messages or not isinstance(left.messages[0], UserMessage):
            left = replace(left, messages=(PROMPT, *left.messages))
        result = self.rebuilt(Conversation(resume=left))
        return replace(result, messages=result.messages[1:]) if result.messages[0] == PROMPT else result

    def unknown_calls(self) -> Iterator[ToolCall]:
        """The calls that had begun and have no result."""
        for answer in self.answers:
            for call in answer.calls:
                if call.call_id in self._begun and call.call_id not in self.results:
                    yield call
