"""The events of turns, of the loop that runs them, and of sessions. They are part of `Event`, in `events.py`."""

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
    """A turn of a loop is being planned, for this number of items."""

    turn_id: str
    items: int
    kind: Literal["turn_planned"] = "turn_planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(EventBase):
    """A turn begins to work, on this number of items."""

    turn_id: str
    items: int
    kind: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPreempted(EventBase):
    """A turn is to stop for a newer item; `at_point` is the name of the StopAt."""

    turn_id: str
    at_point: str
    kind: Literal["turn_preempted"] = "turn_preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(EventBase):
    """A turn has ended. This is its only end, with its whole outcome.

    `resumable` is true if the turn was aborted only because its host was shut down: whoever opens the session next may
    continue it.
    """

    turn_id: str
    outcome: Outcome[Any]
    resumable: bool = False
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened(EventBase):
    """A session was opened in this process, with this agent."""

    agent: str
    kind: Literal["session_opened"] = "session_opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed(EventBase):
    """A session was closed in this process. This is its last event here.

    `left` is the number of turns that remain for the next opening: those that wait, and one that can be resumed.
    """

    reason: str
    left: int = 0
    kind: Literal["session_closed"] = "session_closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQueued(EventBase):
    """A turn was accepted. `messages` is None if a function will make them when the turn begins.

    `continues` is the id of the stopped turn that this one continues. `resumes` counts how many times the work was
    resumed automatically after its process had died, this time included.
    """

    turn_id: str
    messages: tuple[Message, ...] | None
    continues: str | None = None
    resumes: int = 0
    kind: Literal["turn_queued"] = "turn_queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEdited(EventBase):
    """The messages of a waiting turn were replaced."""

    turn_id: str
    messages: tuple[Message, ...]
    kind: Literal["turn_edited"] = "turn_edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(EventBase):
    """A stop of a turn was requested. After a crash this record decides: the turn is not run again.

    `at_point` is the name of the StopAt. Work that has not ended `abandon` seconds after the abort is left behind.
    """

    turn_id: str
    at_point: str
    reason: str
    reason_kind: str
    abandon: float | None = None
    kind: Literal["stop_requested"] = "stop_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnForgotten(EventBase):
    """A turn was removed: the conversation is again as it was before it."""

    turn_id: str
    kind: Literal["turn_forgotten"] = "turn_forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopIdle(EventBase):
    """A loop has nothing to do and waits for items."""

    kind: Literal["loop_idle"] = "loop_idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStopping(EventBase):
    """A loop starts no further turn. `at_point` is the name of the StopAt for the running one."""

    at_point: str
    cause: str
    kind: Literal["loop_stopping"] = "loop_stopping"
