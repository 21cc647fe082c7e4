"""A deadline on its way to another process or machine: the time that remains. Other modules transport it."""

import time
from dataclasses import dataclass

from .clock import current_clock
from .deadline import Deadline
from .reason import ReasonKind
from .signal import AbortSignal, roots_of

__all__ = ["TimeLimit", "deadline_from", "limit_of"]


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A deadline on its way.

    Attributes:
        remaining: How many seconds were left when it was sent.
        sent: The monotonic time of the machine at which it was sent.
        seconds: The whole time limit, for the text of the reason.
        kind: The kind of the reason.
        origin: The `file:line` that set the time limit.
    """

    remaining: float
    sent: float
    seconds: float
    kind: ReasonKind
    origin: str | None


def limit_of(signal: AbortSignal) -> TimeLimit | None:
    """Return the first deadline of a signal as the time that remains; None if it has none."""
    deadlines = [root for root in roots_of([signal]) if isinstance(root, Deadline)]
    if not deadlines:
        return None
    first = min(deadlines, key=lambda root: root.at)
    return TimeLimit(first.remaining(), time.monotonic(), first.seconds, first.kind, first.origin)


def deadline_from(limit: TimeLimit) -> AbortSignal:
    """Make the same deadline in this process, with the same reason. The time on the way counts."""
    deadline = Deadline(limit.seconds, limit.kind, limit.origin)
    deadline.deadline = current_clock().monotonic() + limit.remaining - (time.monotonic() - limit.sent)
    return deadline
