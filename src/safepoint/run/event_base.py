"""Owns what every event says of its place: which run, which operation, when, and inside of which tool calls."""

from dataclasses import dataclass

__all__ = ["EventBase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBase:
    """Where and when something happened.

    Attributes:
        run_id: The run, or the turn.
        path: From the root of the run to the operation.
        at: The date, in seconds since 1970.
        calls: The ids of the tool calls around it, the outermost first.
    """

    run_id: str
    path: tuple[str, ...]
    at: float
    calls: tuple[str, ...] = ()
