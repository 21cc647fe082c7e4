"""Owns how work ends: one closed type for agent runs, flows, turns and work orders. Knows nothing of who decides."""

from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar

from ..abort import AbortReason
from ..abort.reason import error_from
from .receipt import Receipt

__all__ = ["Aborted", "Completed", "Failed", "Outcome", "Status", "TimedOut"]

T = TypeVar("T")
Status: TypeAlias = Literal["completed", "aborted", "timed_out", "failed"]


NOTHING = Receipt(None, None, 0.0)  # of a completed run nothing goes on


@dataclass(frozen=True, slots=True)
class Completed(Generic[T]):
    """The work has its value. `receipt` lists only what goes on: programs, threads and tasks that its leaves kept."""

    value: T
    receipt: Receipt = field(default=NOTHING, kw_only=True, compare=False, repr=False)
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["completed"]] = "completed"

    @property
    def partial(self) -> T:
        """The value, under the name that it has in every other outcome."""
        return self.value

    def unwrap(self) -> T:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Aborted(Generic[T]):
    """Somebody stopped it. Not an error. `partial` is what there was so far."""

    reason: AbortReason
    receipt: Receipt
    partial: T | None = None
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["aborted"]] = "aborted"

    def unwrap(self) -> NoReturn:
        """Raises: AbortError."""
        raise error_from(self.reason, self.partial)


@dataclass(frozen=True, slots=True)
class TimedOut(Generic[T]):
    """Its time was up."""

    reason: AbortReason
    receipt: Receipt
    partial: T | None = None
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["timed_out"]] = "timed_out"

    def unwrap(self) -> NoReturn:
        """Raises: AbortTimeout."""
        raise error_from(self.reason, self.partial)


@dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """It broke. `error` is what it raised; after a journey over the wire, a RemoteError."""

    error: BaseException
    receipt: Receipt
    partial: T | None = None
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["failed"]] = "failed"

    def unwrap(self) -> NoReturn:
        """Raises: the original error."""
        raise self.error


Outcome: TypeAlias = Completed[T] | Aborted[T] | TimedOut[T] | Failed[T]
