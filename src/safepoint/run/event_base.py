"""The fields that every event has: which run, which operation, when, and inside which tool calls."""

from dataclasses import dataclass

__all__ = ["EventBase"]


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
