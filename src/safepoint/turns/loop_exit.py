"""Owns the result of a turn loop, in which every accepted item is in exactly one place. Knows nothing of turns."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

__all__ = ["CheckpointReport", "LoopExit"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What became of the checkpoint of a loop.

    Attributes:
        status: "saved" and "deleted": the store was changed. "kept": a checkpoint of an earlier loop was left as it is.
            "none": there is no checkpoint. "failed": the store raised, and what was there before is still there.
        error: What the store raised, for "failed".
    """

    status: Literal["none", "saved", "deleted", "kept", "failed"] = "none"
    error: Exception | None = None


@dataclass(slots=True)
class LoopExit(Generic[T]):
    """How a loop ended. Every accepted item was either handled or is in exactly one of the lists.

    Attributes:
        reason: What broke the loop. `None` if it was stopped, or had nothing left to do.
        handled: How many items were handled.
        unhandled: Items that were never part of a turn that began, in the order in which they were pushed.
        interrupted: Items of turns that were stopped.
        preempted: Items of turns that made way for a newer item.
        failed: Items of turns that failed.
        dropped: Items that a plan left out, or that were removed from the queue.
        late: Items whose push was refused because it came after the stop. They are not accepted items.
        stop_cause: The reason given with the stop.
        checkpoint: What became of the checkpoint.
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
