"""Owns what a session's log says: the conversation, and which turns have ended. One fold, for recovery and for life.

Pure: it is fed events in order and knows nothing of stores and of what runs.
"""

from dataclasses import dataclass, field, replace

from ..abort import AbortReason
from ..agent.history import UNKNOWN, repair
from ..agent.talk import AgentResult
from ..run.events import (
    AnswerRestarted,
    AnswerStarted,
    Event,
    StopRequested,
    TextStreamed,
    ToolCalled,
    ToolEnded,
    TurnEdited,
    TurnEnded,
    TurnForgotten,
    TurnQueued,
    TurnStarted,
)
from ..run.messages import AssistantMessage, Message, ToolCall, ToolResult
from ..run.outcome import Completed, Outcome

__all__ = ["Past", "PastTurn"]


@dataclass
class PastTurn:
    """One turn as the log tells it."""

    id: str
    messages: tuple[Message, ...] | None = None
    continues: str | None = None
    started: bool = False
    stop: AbortReason | None = None
    outcome: Outcome[AgentResult] | None = None
    forgotten: bool = False
    _answers: list[AssistantMessage] = field(default_factory=list)
    _results: dict[str, ToolResult] = field(default_factory=dict)
    _open: bool = False

    @property
    def said(self) -> tuple[Message, ...]:
        """What this turn has added to the conversation."""
        if self.outcome is None or self.forgotten:
            return ()
        result = self.outcome.value if isinstance(self.outcome, Completed) else self.outcome.partial
        return () if result is None else result.messages

    def hear(self, event: Event) -> None:
        """Follow its answer as it was streamed, so that a crash does not take it."""
        match event:
            case AnswerStarted():
                self._answers.append(AssistantMessage(interrupted=True))
            case AnswerRestarted() if self._answers:
                self._answers[-1] = AssistantMessage(interrupted=True)
            case TextStreamed(text=text) if self._answers:
                self._answers[-1] = replace(self._answers[-1], text=self._answers[-1].text + text)
            case ToolCalled(call_id=call_id, name=name, arguments=arguments) if self._answers:
                call = ToolCall(call_id=call_id, name=name, arguments=arguments)
                last = self._answers[-1]
                self._answers[-1] = replace(last, calls=(*last.calls, call), interrupted=False)
            case ToolEnded(call_id=call_id, name=name, status=status, content=content):
                self._results[call_id] = ToolResult(call_id=call_id, name=name, content=content, status=status)
            case _:
                pass

    def rebuilt(self) -> AgentResult:
        """What there is of a turn whose process has died: calls without a result are unknown."""
        messages: list[Message] = list(self.messages or ())
        for answer in self._answers:
            messages.append(answer)
            messages += [self._results.get(call.call_id) or UNKNOWN.result(call) for call in answer.calls]
        text = self._answers[-1].text if self._answers else ""
        return AgentResult(text, tuple(repair(messages)), steps=len(self._answers))


class Past:
    """Everything that has happened in a session."""

    def __init__(self) -> None:
        self.turns: dict[str, PastTurn] = {}

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation. A turn that was continued is told by the one that continued it."""
        continued = {turn.continues for turn in self.turns.values() if turn.continues and turn.outcome is not None}
        ended = [turn for turn in self.turns.values() if turn.outcome is not None and turn.id not in continued]
        return tuple(message for turn in ended for message in turn.said)

    def resumed(self, turn_id: str) -> tuple[AgentResult, int]:
        """What a stopped turn goes on from, and how many messages there were before it."""
        turn = self.turns[turn_id]
        result = None if turn.outcome is None or isinstance(turn.outcome, Completed) else turn.outcome.partial
        before = self.messages[: len(self.messages) - len(turn.said)]
        left = result or AgentResult("")
        return replace(left, messages=(*before, *left.messages)), len(before)

    @property
    def last_ended(self) -> PastTurn | None:
        """The newest turn that has ended and counts."""
        ended = [turn for turn in self.turns.values() if turn.outcome is not None and not turn.forgotten]
        return ended[-1] if ended else None

    @property
    def open_turns(self) -> list[PastTurn]:
        """The turns that were accepted and have not ended."""
        return [turn for turn in self.turns.values() if turn.outcome is None]

    def apply(self, event: Event) -> None:
        """One more event of the log."""
        match event:
            case TurnQueued(turn_id=turn_id, messages=messages, continues=continues):
                self.turns[turn_id] = PastTurn(turn_id, messages, continues)
            case TurnEdited(turn_id=turn_id, messages=messages) if turn_id in self.turns:
                self.turns[turn_id].messages = messages
            case TurnStarted(turn_id=turn_id) if turn_id in self.turns:
                # Turns are told in the order in which they began, not in which they were accepted.
                turn = self.turns[turn_id] = self.turns.pop(turn_id)
                turn.started = True
            case StopRequested(turn_id=turn_id, reason=text) if turn_id in self.turns:
                kind = event.reason_kind
                self.turns[turn_id].stop = AbortReason.from_dict({"kind": kind, "message": text})
            case TurnEnded(turn_id=turn_id, outcome=outcome) if turn_id in self.turns:
                self.turns[turn_id].outcome = outcome
            case TurnForgotten(turn_id=turn_id) if turn_id in self.turns:
                self.turns[turn_id].forgotten = True
            case _:
                turn_or_none = self.turns.get(event.run_id)
                if turn_or_none is not None and len(event.path) == 1:
                    turn_or_none.hear(event)
