"""Owns the state of a session: the conversation and its turns, computed from the events of its log.

The same computation serves a live session, its recovery after a crash, and views of stored sessions. Pure: it is given
events in order, and knows nothing of stores and of what runs.
"""

from dataclasses import dataclass, field, replace
from urllib.parse import quote

from ..abort import AbortReason
from ..agent.conversation import AgentResult, Conversation
from ..events import (
    Event,
    LoopIdle,
    LoopStopping,
    PartRecorded,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionOpened,
    StopRequested,
    ToolCalled,
    ToolEnded,
    TurnEdited,
    TurnEnded,
    TurnForgotten,
    TurnPlanned,
    TurnPreempted,
    TurnQueued,
    TurnStarted,
)
from ..messages import Message
from ..outcome import Aborted, Completed, Outcome
from ..run.journal import part_name
from .turn import TurnStatus
from .unfinished_work import UnfinishedWork

__all__ = ["MAX_RESUMES", "OWN_EVENTS", "ForwardedEvents", "SessionState", "TurnRecord", "conversation_id"]

# How many times a turn is resumed automatically after its process has died. A turn that kills its process would
# otherwise kill every process that opens its session. After that it stays as it is, and the next queued turn begins.
MAX_RESUMES = 3
# Events that only the session itself may add, because its state is computed from them. Events of these kinds that come
# from loops, tools and other sessions are not taken into the log.
OWN_EVENTS = (
    LoopIdle,
    LoopStopping,
    RunEnded,
    RunStarted,
    SessionClosed,
    SessionOpened,
    StopRequested,
    TurnEdited,
    TurnEnded,
    TurnForgotten,
    TurnPlanned,
    TurnPreempted,
    TurnQueued,
    TurnStarted,
)


class ForwardedEvents:
    """The counts, made from the events of the log.

    Attributes:
        counts: The number of events in the log, by the idempotency key of the call in which the sub-agent runs.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        # The idempotency keys of the calls that have not ended, by the ids of the enclosing calls and their own.
        self._keys: dict[tuple[str, ...], str] = {}

    def apply(self, event: Event, own: bool) -> None:
        """Add one event of the log. `own` is true for events of this session's turns, which were not forwarded."""
        if not own:
            for depth in range(1, len(event.calls) + 1):
                key = self._keys.get(event.calls[:depth])
                if key is not None:
                    self.counts[key] = self.counts.get(key, 0) + 1
            return
        match event:
            case ToolCalled(call_id=call_id, idempotency_key=key) if key:
                self._keys[(*event.calls, call_id)] = key
            case ToolEnded(call_id=call_id, status="completed" | "failed"):
                self.counts.pop(self._keys.pop((*event.calls, call_id), ""), None)
            case _:
                pass


@dataclass
class TurnRecord:
    """One turn, as far as the log describes it.

    Attributes:
        id: Its id.
        messages: Its messages. `None` if a function makes them and it has not begun.
        continues: The stopped turn that it continues.
        resumes: How many times that work was resumed automatically after its process had died.
        sent_messages: Its messages as they were sent, before any edit.
        started: Whether its work had begun.
        started_at: When.
        stop: Why it was asked to stop, if it was.
        outcome: How it ended, if it has.
        resumable: Whether it ended only because its host was shut down.
        resume_stopped: Whether it was stopped after it had lost its owner. Then nothing resumes it automatically.
        forgotten: Whether it was taken out of the conversation.
        agent: The path of the agent that ran it.
        unfinished: What is known of its work while it has no outcome.
    """

    id: str
    messages: tuple[Message, ...] | None = None
    continues: str | None = None
    resumes: int = 0
    sent_messages: tuple[Message, ...] | None = None
    started: bool = False
    started_at: float = 0.0
    stop: AbortReason | None = None
    outcome: Outcome[AgentResult] | None = None
    resumable: bool = False
    resume_stopped: bool = False
    forgotten: bool = False
    agent: str = ""
    unfinished: UnfinishedWork = field(default_factory=UnfinishedWork)

    @property
    def added_messages(self) -> tuple[Message, ...]:
        """The messages that this turn has added to the conversation."""
        if self.outcome is None or self.forgotten:
            return ()
        result = self.outcome.partial
        return () if result is None else result.messages

    @property
    def status(self) -> TurnStatus:
        """How far it has come, as far as the log describes it."""
        if self.outcome is not None:
            return self.outcome.status
        if self.stop is not None:
            return "stopping"
        return "running" if self.started else "queued"

    @property
    def lost_owner(self) -> bool:
        """Whether it ended only because it lost its owner, and was not stopped since."""
        lease_lost = isinstance(self.outcome, Aborted) and self.outcome.reason.kind == "lease_lost"
        return (self.resumable or lease_lost) and not self.resume_stopped

    @property
    def orphaned(self) -> bool:
        """Whether it lost its owner, and the next owner goes on with it by itself."""
        return self.lost_owner and (self.resumable or self.next_resumes <= MAX_RESUMES)

    @property
    def next_resumes(self) -> int:
        """The value of `resumes` of the turn that continues it: only the death of a process counts as an attempt.

        A shutdown of the host is marked in the end of the turn, and a worker that gives its work back records a stop.
        """
        return self.resumes if self.resumable or self.stop is not None else self.resumes + 1

    def end(self, outcome: Outcome[AgentResult], resumable: bool = False) -> None:
        """Set the outcome, of which everything that was streamed is part."""
        self.outcome, self.resumable = outcome, resumable
        self.unfinished = UnfinishedWork()

    def rebuild(self, before: AgentResult | None, session_id: str) -> AgentResult:
        """Rebuild the result of a turn whose process has died, as far as the log has it.

        Args:
            before: What it went on from, if it continued a stopped turn.
            session_id: Its session.
        """
        conversation = Conversation(self.messages or ()) if before is None else Conversation(resume=before)
        # The idempotency keys of its calls are made from this id, and the continued turn must get the same keys. The id
        # that is in the log counts first, because earlier versions made it in another way.
        known = self.unfinished.id or conversation_id(session_id, self.id, self.agent)
        conversation.id = conversation.id or known
        return self.unfinished.rebuild(conversation)


class SessionState:
    """The state of a session.

    Args:
        session_id: The id of the session. It is needed only to go on with a turn that was cut off.

    Attributes:
        turns: All turns by id, in the order of their start; queued ones come in the order of their acceptance.
        parts: What parts of tool calls have returned, for `ctx.once`.
    """

    def __init__(self, session_id: str = "") -> None:
        self._session_id = session_id
        self.turns: dict[str, TurnRecord] = {}
        self.parts: dict[str, str] = {}
        self._forwarded = ForwardedEvents()
        self._ended: list[TurnRecord] = []  # the turns that have begun and ended, without the forgotten ones
        self._messages: tuple[Message, ...] | None = None  # the conversation; None if it must be computed again

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation. Of a turn that was continued, it has the messages of the turn that continued it."""
        if self._messages is None:
            continued = {turn.continues for turn in self.turns.values() if turn.continues and turn.added_messages}
            ended = (turn for turn in self.turns.values() if turn.id not in continued)
            self._messages = tuple(message for turn in ended for message in turn.added_messages)
        return self._messages

    @property
    def forwarded(self) -> dict[str, int]:
        """How many events of each sub-agent on another machine are in the log, by the idempotency key of its call."""
        return self._forwarded.counts

    def abandoned_work(self, resume: bool) -> AgentResult | None:
        """Return the result of a turn that was cut off and that nothing will go on with.

        Args:
            resume: Whether the new owner continues a turn that was cut off, unless it was stopped.

        Returns:
            The result; `None` if there is no such turn, or the new owner continues it.
        """
        for turn in self.open_turns:
            if turn.started:
                goes_on = resume and turn.stop is None and turn.next_resumes <= MAX_RESUMES
                return None if goes_on else self.rebuild(turn)
            if turn.continues is not None and turn.stop is not None:
                return self.resume_point(turn.continues)[0]
        interrupted = self.interrupted
        return None if resume or interrupted is None else self.resume_point(interrupted)[0]

    def resume_point(self, turn_id: str) -> tuple[AgentResult, int]:
        """Return what a turn continues from.

        Args:
            turn_id: The last turn, which was stopped.

        Returns:
            The conversation with the partial result of the turn, and how many messages there were before the turn.
        """
        turn = self.turns[turn_id]
        before = self.messages[: len(self.messages) - len(turn.added_messages)]
        partial = _partial_of(turn)
        return replace(partial, messages=(*before, *partial.messages)), len(before)

    def rebuild(self, turn: TurnRecord) -> AgentResult:
        """Rebuild the result of a turn whose process has died, as far as the log has it."""
        before = self.turns.get(turn.continues or "")
        return turn.rebuild(None if before is None else _partial_of(before), self._session_id)

    @property
    def last_ended(self) -> TurnRecord | None:
        """The newest turn that has begun and ended and was not forgotten."""
        return self._ended[-1] if self._ended else None

    @property
    def interrupted(self) -> str | None:
        """The id of the last turn, if it lost its owner and nothing has gone on with it yet. Any thread."""
        last = self.last_ended
        if last is None or not last.orphaned:
            return None
        return None if any(turn.continues == last.id for turn in list(self.turns.values())) else last.id

    def successor(self, turn_id: str) -> str:
        """Return the turn that continues this one after it lost its owner, and so on; else itself. Any thread.

        It does not matter whether the next owner has continued it by itself, or a person has.
        """
        while (turn := self.turns.get(turn_id)) is not None and turn.lost_owner:
            successors = [other.id for other in list(self.turns.values()) if other.continues == turn_id]
            if not successors:
                break
            turn_id = successors[-1]
        return turn_id

    @property
    def remaining_turns(self) -> int:
        """How many turns there are for the next owner: those that have not ended, and one to go on with."""
        return len(self.open_turns) + (self.interrupted is not None)

    @property
    def open_turns(self) -> list[TurnRecord]:
        """The turns that were accepted and have not ended."""
        return [turn for turn in self.turns.values() if turn.outcome is None]

    def apply(self, event: Event) -> None:
        """Apply the next event of the log."""
        match event:
            case TurnQueued(turn_id=turn_id, messages=messages, continues=continues, resumes=resumes):
                self.turns[turn_id] = TurnRecord(turn_id, messages, continues, resumes, sent_messages=messages)
            case TurnEdited(turn_id=turn_id, messages=messages) if turn_id in self.turns:
                self.turns[turn_id].messages = messages
            case TurnStarted(turn_id=turn_id) if turn_id in self.turns:
                # The conversation has turns in the order in which they began, not in which they were accepted.
                turn = self.turns[turn_id] = self.turns.pop(turn_id)
                turn.started, turn.started_at, turn.agent = True, event.at, "/".join(event.path)
            case StopRequested(turn_id=turn_id, reason=text) if turn_id in self.turns:
                turn, kind = self.turns[turn_id], event.reason_kind
                turn.stop = AbortReason.from_dict({"kind": kind, "message": text})
                turn.resume_stopped = turn.outcome is not None
            case TurnEnded(turn_id=turn_id, outcome=outcome, resumable=resumable) if turn_id in self.turns:
                self._end(self.turns[turn_id], outcome, resumable)
            case TurnForgotten(turn_id=turn_id) if turn_id in self.turns:
                self._forget(self.turns[turn_id])
            case PartRecorded(scope=scope, key=key, value=value):
                self.parts[part_name(scope, key)] = value
            case _:
                running = self.turns.get(event.run_id)
                self._forwarded.apply(event, running is not None)
                if running is not None and running.outcome is None:
                    running.unfinished.apply(event)

    def _end(self, turn: TurnRecord, outcome: Outcome[AgentResult], resumable: bool) -> None:
        """End a turn. Because one turn runs at a time, its messages come last in the conversation."""
        turn.end(outcome, resumable)
        self._ended += [turn] if turn.started else []
        known = self._messages
        self._messages = None if turn.continues or known is None else (*known, *turn.added_messages)

    def _forget(self, turn: TurnRecord) -> None:
        added = len(turn.added_messages)
        turn.forgotten = True
        if self._ended and self._ended[-1] is turn:  # only the last turn can be forgotten
            self._ended.pop()
        known = self._messages
        self._messages = None if turn.continues or known is None else known[: len(known) - added]


def conversation_id(session_id: str, turn_id: str, agent: str) -> str:
    """Make the id from which the idempotency keys of the tool calls of a turn are made.

    Clients choose the ids of turns, and two sessions may have turns with the same id: so the session is part of it. The
    names are quoted, so that different names never give the same id, and a key fits in an HTTP header.
    """
    return ":".join(quote(name, safe="") for name in (session_id, turn_id, agent))


def _partial_of(turn: TurnRecord) -> AgentResult:
    """Return the partial result of a stopped turn, to go on from."""
    if turn.outcome is None or isinstance(turn.outcome, Completed):
        return AgentResult("")
    return turn.outcome.partial or AgentResult("")
