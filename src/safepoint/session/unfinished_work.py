"""Owns the work that has no end in the log: how far a turn had come, and the sub-agents and flows inside its calls.

Pure: it is given events in order. After a crash the log is all that is known, and a wrong conclusion is expensive: if a
call counts as "not run" although its body had begun, it runs again and pays twice; if it counts as done although it had
not begun, its work is lost. Three rules follow:

- **A call has begun only if the log says so.** `CallRecorded` is durable before the body of a call begins. So a call
  with `ToolCalled` and without `CallRecorded` has certainly not begun, and runs again. (Tools that only read do not
  wait for the record: to run them again does no harm.) A call with `CallRecorded` and without `ToolEnded` may have had
  any effect: its result is "unknown". Logs of an early version have no `CallRecorded`,
  which shows in a `ToolCalled` without an idempotency key: there every call counts as begun.
- **Each event belongs to one agent, by the calls around it.** Sub-agents run inside tool calls, several at a time, and
  their events are mixed in the log. `event.calls` has the ids of the enclosing calls, from the outside in, and leads to
  the right `inner` work. Events inside of flow nodes have a longer path than calls, and are left out: a flow saves
  its own checkpoint (`FlowSaved`).
- **A model call must accept the result.** Each tool call gets exactly one result, an answer that was cut off is marked
  as interrupted, and `repair` has the last word.

A turn that continued a stopped one runs the calls of that turn again, so a `ToolCalled` may come before any answer of
its own. It is not added to an answer, because the earlier turn has it already.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..agent.calls import idempotency_key
from ..agent.conversation import AgentResult, Conversation
from ..agent.history import repair
from ..agent.model_text import NOT_RUN, UNKNOWN
from ..events import (
    AnswerFinished,
    AnswerRestarted,
    AnswerStarted,
    CallRecorded,
    Event,
    FlowSaved,
    TextStreamed,
    ToolCalled,
    ToolEnded,
)
from ..messages import AssistantMessage, Message, ToolCall, ToolResult, UserMessage
from ..run.partial_work import FLOW, PartialWork

__all__ = ["UnfinishedWork"]

# In place of the prompt of a sub-agent, which is not in the log: the call that runs the sub-agent gives it again.
PROMPT = UserMessage(text="-")


@dataclass
class UnfinishedWork:
    """The work of an agent, or inside of a tool call, that has no end in the log.

    Attributes:
        answers: The answers of the model, if it is the work of an agent.
        results: The results of its tool calls that have ended.
        inner: The work inside of its tool calls that have not ended.
        flow: The checkpoint of the flow that runs inside of this tool call, if one does.
        id: The id of its conversation, from which the keys of its calls are made. Empty if it has not called a tool.
    """

    answers: list[AssistantMessage] = field(default_factory=list)
    results: dict[str, ToolResult] = field(default_factory=dict)
    inner: "dict[str, UnfinishedWork]" = field(default_factory=dict)
    flow: PartialWork | None = None
    id: str = ""
    _begun: set[str] = field(default_factory=set)

    def apply(self, event: Event, depth: int = 0) -> None:
        """Apply the next event. Events inside of flow nodes are left out.

        Args:
            event: The event.
            depth: How many of the calls around the event lead to this work.
        """
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
            case AnswerFinished(finish_reason=reason) if self.answers:
                self.answers[-1] = replace(self.answers[-1], finish_reason=reason)
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
        if not event.idempotency_key:  # of an early version, which did not record when a body began
            self._begun.add(event.call_id)
        self.id = self.id or event.idempotency_key.removesuffix(idempotency_key("", event.call_id))
        if not self.answers:
            return  # a call of the continued turn, which runs again
        call = ToolCall(call_id=event.call_id, name=event.name, arguments=event.arguments)
        last = self.answers[-1]
        self.answers[-1] = replace(last, calls=(*last.calls, call), interrupted=False)

    def result_of(self, call: ToolCall, before: Mapping[str, ToolResult]) -> ToolResult:
        """Return the result of a call, or the one that says what is known of a call without a result.

        Args:
            call: The call.
            before: The results that earlier turns have.
        """
        if call.call_id in self.results:
            return self.results[call.call_id]
        if call.call_id in self._begun:
            return UNKNOWN.result(call)
        return before.get(call.call_id) or NOT_RUN.result(call)

    def rebuild(self, conversation: Conversation) -> AgentResult:
        """Add what is known of this work to a conversation, in a form that the next model call accepts."""
        messages, before = list(conversation.messages), conversation.results
        answers: list[Message] = [*([messages.pop()] if conversation.in_tool_round else []), *self.answers]
        for answer in answers:
            assert isinstance(answer, AssistantMessage)  # a round begins with an answer
            messages.append(answer)
            messages += [self.result_of(call, before) for call in answer.calls]
        text = self.answers[-1].text if self.answers else ""
        kept = {call_id: partial for call_id, partial in conversation.kept.items() if call_id not in self.results}
        for call_id, work in self.inner.items():
            partial = work._partial(conversation.kept.get(call_id))
            if partial is not None:
                kept[call_id] = partial
        return AgentResult(
            text, tuple(repair(messages)), steps=conversation.steps + len(self.answers), kept=kept, id=conversation.id
        )

    def _partial(self, before: AgentResult | PartialWork | None) -> AgentResult | PartialWork | None:
        """Return what the call around this work continues from when it runs again.

        Args:
            before: What it went on from, if it was cut off before.

        Returns:
            `None` if there is neither an agent nor a flow inside of the call.
        """
        if self.flow is not None:
            return self.flow
        if isinstance(before, PartialWork) or (before is None and not self.answers):
            return before
        return self._rebuild_sub_agent(before)

    def _rebuild_sub_agent(self, before: AgentResult | None) -> AgentResult:
        """Rebuild the result of a sub-agent, without its prompt, which is in the arguments of its call.

        A conversation has to begin with a prompt, so one is put in front meanwhile.
        """
        partial = before or AgentResult("")
        if not partial.messages or not isinstance(partial.messages[0], UserMessage):
            partial = replace(partial, messages=(PROMPT, *partial.messages))
        result = self.rebuild(Conversation(resume=partial))
        return replace(result, messages=result.messages[1:]) if result.messages[0] == PROMPT else result

    def unknown_calls(self) -> Iterator[ToolCall]:
        """Yield the calls that have begun and have no result."""
        for answer in self.answers:
            for call in answer.calls:
                if call.call_id in self._begun and call.call_id not in self.results:
                    yield call
