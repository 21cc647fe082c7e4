"""Owns how a loop ended, and that every accepted item ended in exactly one place. Knows nothing of turns."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

__all__ = ["CheckpointReport", "LoopExit"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What became of the loop's checkpoint. `failed`: `error` says why; what was there before is still there."""

    status: Literal["none", "saved", "deleted", "kept", "failed"] = "none"
    error: Exception | None = None


@dataclass(slots=True)
class LoopExit(Generic[T]):
    """How a loop ended. Every accepted item is in exactly one of these, or was handled.

    reason       None: it was stopped, or had nothing left to do; else what broke it
    handled      how many items were handled
    unhandled    never part of a turn that began, in the order of their pushes
    interrupted  of turns that were stopped
    preempted    of turns that made way for something newer
    failed       of turns that failed
    dropped      left out by a plan, or removed from the queue
    late         pushes that were refused: they came after the stop
    """

    reason: BaseException | None = None
    handled: int = 0
    unhandled: list[T] = field(default_factory=list)
    interrupted: list[T] = field(default_factory=list)
    preempted: list[T] = field(default_factory=list)
    failed: list[T] = field(default_factory=list)
    dropped: list[T] = field(default_factory=list)
    late: list[T] = field(default_factory=list)
    stop_cause: str = ""
    checkpoint: CheckpointReport = field(default_factory=CheckpointReport)

    @property
    def accepted(self) -> int:
        """How many items were accepted in all."""
        buckets: Iterable[list[T]] = (self.unhandled, self.interrupted, self.preempted, self.failed, self.dropped)
        return self.handled + sum(map(len, buckets))
