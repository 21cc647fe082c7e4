"""Owns what a session's log says: the conversation, and which turns have ended. One fold, for recovery and for life.

Pure: it is fed events in order and knows nothing of stores and of what runs.
"""

from dataclasses import dataclass, field, replace
from urllib.parse import quote

from ..abort import AbortReason
from ..agent.conversation import AgentResult, Conversation
from ..run.events import (
    Event,
    LoopIdle,
    LoopStopping,
    PartRecorded,
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
from ..run.journal import part_name
from ..run.messages import Message
from ..run.outcome import Aborted, Completed, Outcome
from .forwarded_events import ForwardedEvents
from .turn import TurnStatus
from .unfinished_work import UnfinishedWork

__all__ = ["MAX_RESUMES", "OWN", "SessionState", "TurnRecord", "conversation_id"]

# A turn that kills its process would otherwise kill every process that opens its session. After so many attempts to go
# on with it, it stays as it is, and what waits behind it begins.
MAX_RESUMES = 3

# What a session says in its own words. The fold believes it, so it is not taken from loops, tools and other sessions.
OWN = (
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


@dataclass
class TurnRecord:
    """One turn as the log tells it."""

    id: str
    messages: tuple[Message, ...] | None = None
    continues: str | None = None
    resumes: int = 0
    asked: tuple[Message, ...] | None = None  # its messages as they were sent, before any edit
    started: bool = False
    started_at: float = 0.0
    stop: AbortReason | None = None
    outcome: Outcome[AgentResult] | None = None
    resumable: bool = False  # it ended only because its host was shut down
    given_up: bool = False  # somebody has stopped it after it had lost its owner: it is not gone on with
    forgotten: bool = False
    agent: str = ""
    unfinished: UnfinishedWork = field(default_factory=UnfinishedWork)

    @property
    def said(self) -> tuple[Message, ...]:
        """What this turn has added to the conversation."""
        if self.outcome is None or self.forgotten:
            return ()
        result = self.outcome.value if isinstance(self.outcome, Completed) else self.outcome.partial
        return () if result is None else result.messages

    @property
    def status(self) -> TurnStatus:
        """Where it is on its way, as the log tells it."""
        if self.outcome is not None:
            return self.outcome.status
        if self.stop is not None:
            return "stopping"
        return "running" if self.started else "queued"

    @property
    def lost(self) -> bool:
        """True: it has lost its owner, and somebody else may go on with it."""
        if self.given_up or self.resumable:
            return not self.given_up
        lost = isinstance(self.outcome, Aborted) and self.outcome.reason.kind == "lease_lost"
        return lost and self.next_resumes <= MAX_RESUMES

    @property
    def next_resumes(self) -> int:
        """What `resumes` is of the turn that goes on with it: only the death of a process counts as an attempt.

        A host that is shut down says so in the end of the turn; a worker that gives its work back records a stop.
        """
        return self.resumes if self.resumable or self.stop is not None else self.resumes + 1

    def end(self, outcome: Outcome[AgentResult], resumable: bool = False) -> None:
        """It has ended: what was streamed is part of the outcome."""
        self.outcome, self.resumable = outcome, resumable
        self.unfinished = UnfinishedWork()

    def rebuilt(self, before: AgentResult | None, session_id: str) -> AgentResult:
        """What there is of a turn whose process has died.

        Args:
            before: What it went on from, if it continued a stopped turn.
            session_id: Its session.
        """
        conversation = Conversation(self.messages or ()) if before is None else Conversation(resume=before)
        # The keys of its calls are made of this: whoever goes on with the turn must come to the same ones. What the log
        # says of a call comes first, because earlier versions made the keys in another way.
        known = self.unfinished.id or conversation_id(session_id, self.id, self.agent)
        conversation.id = conversation.id or known
        return self.unfinished.rebuilt(conversation)


class SessionState:
    """Everything that has happened in a session."""

    def __init__(self, session_id: str = "") -> None:
        """Make one. `session_id` is needed by whoever goes on with a turn that was cut off."""
        self._session_id = session_id
        self.turns: dict[str, TurnRecord] = {}
        self.parts: dict[str, str] = {}  # what parts of tool calls have returned, for `ctx.once`
        self._forwarded = ForwardedEvents()
        self._ended: list[TurnRecord] = []  # those that had begun, without the forgotten ones
        self._told: tuple[Message, ...] | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation. A turn that was continued is told by the one that continued it."""
        if self._told is None:
            continued = {turn.continues for turn in self.turns.values() if turn.continues and turn.said}
            ended = (turn for turn in self.turns.values() if turn.id not in continued)
            self._told = tuple(message for turn in ended for message in turn.said)
        return self._told

    @property
    def forwarded(self) -> dict[str, int]:
        """How many events of sub-agents on other machines there are, by the idempotency key of the call."""
        return self._forwarded.counts

    def given_up(self, resume: bool) -> AgentResult | None:
        """What a turn that was cut off has left, if it was stopped since, or is not to be resumed: nobody goes on.

        Args:
            resume: Whoever asks goes on with what was cut off, unless it was stopped.
        """
        for turn in self.open_turns:
            if turn.started:
                goes_on = resume and turn.stop is None and turn.next_resumes <= MAX_RESUMES
                return None if goes_on else self.rebuilt(turn)
            if turn.continues is not None and turn.stop is not None:
                return self.resumed(turn.continues)[0]
        lost = self.interrupted
        return None if resume or lost is None else self.resumed(lost)[0]

    def resumed(self, turn_id: str) -> tuple[AgentResult, int]:
        """What the last turn, which was stopped, goes on from, and how many messages there were before it."""
        turn = self.turns[turn_id]
        before = self.messages[: len(self.messages) - len(turn.said)]
        left = _left_by(turn)
        return replace(left, messages=(*before, *left.messages)), len(before)

    def rebuilt(self, turn: TurnRecord) -> AgentResult:
        """What there is of a turn whose process has died."""
        before = self.turns.get(turn.continues or "")
        return turn.rebuilt(None if before is None else _left_by(before), self._session_id)

    @property
    def last_ended(self) -> TurnRecord | None:
        """The newest turn that had begun, has ended, and counts."""
        return self._ended[-1] if self._ended else None

    @property
    def interrupted(self) -> str | None:
        """The last turn, if it lost its owner, nobody has stopped it, and nothing has gone on with it. Any thread."""
        last = self.last_ended
        if last is None or not last.lost:
            return None
        return None if any(turn.continues == last.id for turn in list(self.turns.values())) else last.id

    def successor(self, turn_id: str) -> str:
        """The turn that goes on with this one, if it has lost its owner, and so on; else itself. Any thread."""
        while (turn := self.turns.get(turn_id)) is not None and turn.lost:
            heirs = [other.id for other in list(self.turns.values()) if other.continues == turn_id]
            if not heirs:
                break
            turn_id = heirs[-1]
        return turn_id

    @property
    def left(self) -> int:
        """How many turns there are for whoever opens the session next: not ended, or lost and not continued yet."""
        return len(self.open_turns) + (self.interrupted is not None)

    @property
    def open_turns(self) -> list[TurnRecord]:
        """The turns that were accepted and have not ended."""
        return [turn for turn in self.turns.values() if turn.outcome is None]

    def apply(self, event: Event) -> None:
        """One more event of the log."""
        match event:
            case TurnQueued(turn_id=turn_id, messages=messages, continues=continues, resumes=resumes):
                self.turns[turn_id] = TurnRecord(turn_id, messages, continues, resumes, asked=messages)
            case TurnEdited(turn_id=turn_id, messages=messages) if turn_id in self.turns:
                self.turns[turn_id].messages = messages
            case TurnStarted(turn_id=turn_id) if turn_id in self.turns:
                # Turns are told in the order in which they began, not in which they were accepted.
                turn = self.turns[turn_id] = self.turns.pop(turn_id)
                turn.started, turn.started_at, turn.agent = True, event.at, "/".join(event.path)
            case StopRequested(turn_id=turn_id, reason=text) if turn_id in self.turns:
                turn, kind = self.turns[turn_id], event.reason_kind
                turn.stop = AbortReason.from_dict({"kind": kind, "message": text})
                turn.given_up = turn.outcome is not None
            case TurnEnded(turn_id=turn_id, outcome=outcome, resumable=resumable) if turn_id in self.turns:
                self._tell(self.turns[turn_id], outcome, resumable)
            case TurnForgotten(turn_id=turn_id) if turn_id in self.turns:
                self._forget(self.turns[turn_id])
            case PartRecorded(scope=scope, key=key, value=value):
                self.parts[part_name(scope, key)] = value
            case _:
                running = self.turns.get(event.run_id)
                self._forwarded.apply(event, running is not None)
                if running is not None and running.outcome is None:
                    running.unfinished.apply(event)

    def _tell(self, turn: TurnRecord, outcome: Outcome[AgentResult], resumable: bool) -> None:
        """It has ended. One turn runs at a time: what it has added comes last."""
        turn.end(outcome, resumable)
        self._ended += [turn] if turn.started else []
        self._told = None if turn.continues or self._told is None else (*self._told, *turn.said)

    def _forget(self, turn: TurnRecord) -> None:
        added = len(turn.said)
        turn.forgotten = True
        if self._ended and self._ended[-1] is turn:  # only the last turn is ever forgotten
            self._ended.pop()
        self._told = None if turn.continues or self._told is None else self._told[: len(self._told) - added]


def conversation_id(session_id: str, turn_id: str, agent: str) -> str:
    """From which the keys of the tool calls of a turn are made.

    Clients choose the ids of turns, so that those of two sessions may be the same: it names the session too. The names
    are quoted, so that no two lists of names give the same id, and a key fits in a header.
    """
    return ":".join(quote(name, safe="") for name in (session_id, turn_id, agent))


def _left_by(turn: TurnRecord) -> AgentResult:
    """What a turn that was stopped has left, to go on from."""
    if turn.outcome is None or isinstance(turn.outcome, Completed):
        return AgentResult("")
    return turn.outcome.partial or AgentResult("")
