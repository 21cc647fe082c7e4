"""Owns what all events have in common, and the event of a newer version. Knows nothing of the kinds of events.

Both are imported from `safepoint.events`.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["EventBase", "UnknownEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBase:
    """Where and when something happened.

    Attributes:
        run_id: The id of the run or the turn.
        path: The names of the operations from the root of the run to this one.
        at: The date, in seconds since 1970.
        calls: The ids of the tool calls around the operation, the outermost first.
    """

    run_id: str
    path: tuple[str, ...]
    at: float
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent(EventBase):
    """An event that a newer version of Safepoint has written, of a kind that this version does not know.

    It keeps its number in the log, the fields of EventBase and its text, so that two versions can run side by side:
    readers of a log skip it, and code that forwards events forwards it unchanged.

    Attributes:
        name: The kind that the newer version has given it.
        document: The JSON text, as it was read.
    """

    name: str
    document: str
    kind: Literal["unknown_event"] = "unknown_event"
