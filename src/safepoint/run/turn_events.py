"""Owns the events of turns, of the loop that runs them, and of sessions. They are part of `Event`, in `events.py`."""

from dataclasses import dataclass
from typing import Any, Literal

from .event_base import EventBase
from .messages import Message
from .outcome import Outcome

__all__ = [
    "LoopIdle",
    "LoopStopping",
    "SessionClosed",
    "SessionOpened",
    "StopRequested",
    "TurnEdited",
    "TurnEnded",
    "TurnForgotten",
    "TurnPlanned",
    "TurnPreempted",
    "TurnQueued",
    "TurnStarted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlanned(EventBase):
    """A turn of a loop is being planned, for so many items."""

    turn_id: str
    items: int
    kind: Literal["turn_planned"] = "turn_planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(EventBase):
    """A turn begins to work, on so many items."""

    turn_id: str
    items: int
    kind: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPreempted(EventBase):
    """A turn is to make way for something newer; `at` says when."""

    turn_id: str
    at_point: str
    kind: Literal["turn_preempted"] = "turn_preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(EventBase):
    """The one end of a turn, with everything there is to say of it.

    `resumable`: it was aborted only because its host was shut down: whoever opens the session next may go on with it.
    """

    turn_id: str
    outcome: Outcome[Any]
    resumable: bool = False
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened(EventBase):
    """A session is live, in this process, with this agent."""

    agent: str
    kind: Literal["session_opened"] = "session_opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed(EventBase):
    """The last event of a session's life in this process.

    `left`: how many turns it leaves for whoever opens it next: those that wait, and one that may be resumed.
    """

    reason: str
    left: int = 0
    kind: Literal["session_closed"] = "session_closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(EventBase):
    """A turn was accepted, with these messages; None: a function will make them. `continues`: a stopped turn.

    `resumes`: how many times the work was resumed by itself after its process had died, this time included.
    """

    turn_id: str
    messages: tuple[Message, ...] | None
    continues: str | None = None
    resumes: int = 0
    kind: Literal["turn_queued"] = "turn_queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEdited(EventBase):
    """The messages of a turn that waits were replaced."""

    turn_id: str
    messages: tuple[Message, ...]
    kind: Literal["turn_edited"] = "turn_edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(EventBase):
    """Somebody asked for a turn to stop. After a crash this record decides: the turn is not run again."""

    turn_id: str
    at_point: str
    reason: str
    reason_kind: str
    abandon: float | None = None  # what has not ended this many seconds after the abort is left behind
    kind: Literal["stop_requested"] = "stop_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForgotten(EventBase):
    """The conversation is again as it was before this turn."""

    turn_id: str
    kind: Literal["turn_forgotten"] = "turn_forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopIdle(EventBase):
    """A loop has nothing to do, and waits for items."""

    kind: Literal["loop_idle"] = "loop_idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStopping(EventBase):
    """A loop starts no further turn; `at_point` says what happens to the running one."""

    at_point: str
    cause: str
    kind: Literal["loop_stopping"] = "loop_stopping"
