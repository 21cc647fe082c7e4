"""Owns a deadline on its way to another process or machine: the time that remains. Knows nothing of how it travels."""

import time
from dataclasses import dataclass

from ..abort.clock import current_clock
from ..abort.deadline import Deadline
from ..abort.reason import ReasonKind
from ..abort.signal import AbortSignal, roots_of

__all__ = ["TimeLimit", "deadline_from", "limit_of"]


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A deadline on its way: what was left of it when it was sent, and what makes its reason."""

    remaining: float
    sent: float
    seconds: float
    kind: ReasonKind
    origin: str | None


def limit_of(signal: AbortSignal) -> TimeLimit | None:
    """The first deadline of a signal, as the time that remains."""
    deadlines = [root for root in roots_of([signal]) if isinstance(root, Deadline)]
    if not deadlines:
        return None
    first = min(deadlines, key=lambda root: root.at)
    return TimeLimit(first.remaining(), time.monotonic(), first._seconds, first._kind, first._origin)


def deadline_from(limit: TimeLimit) -> AbortSignal:
    """The same deadline here, with the same reason; the way has used up some of the time."""
    deadline = Deadline(limit.seconds, limit.kind, limit.origin)
    deadline.deadline = current_clock().monotonic() + limit.remaining - (time.monotonic() - limit.sent)
    return deadline
