"""The outcome of work: one closed union for agent runs, flows, turns and work orders. `settle.py` decides which."""

from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar

from .abort import AbortReason
from .abort.reason import error_from
from .receipt import Receipt

__all__ = ["Aborted", "Completed", "Failed", "Outcome", "Status", "TimedOut"]

T = TypeVar("T")
Status: TypeAlias = Literal["completed", "aborted", "timed_out", "failed"]


# The receipt of a completed run of which nothing goes on.
EMPTY_RECEIPT = Receipt(None, None, 0.0)


@dataclass(frozen=True, slots=True)
class Completed(Generic[T]):
    """The work returned a value.

    Attributes:
        value: The value.
        receipt: What goes on after the end: the programs, threads and tasks that its leaves kept.
        started_at: When the work began, in seconds since 1970.
        finished_at: When it ended.
    """

    value: T
    receipt: Receipt = field(default=EMPTY_RECEIPT, kw_only=True, compare=False, repr=False)
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["completed"]] = "completed"

    @property
    def partial(self) -> T:
        """The value. Every outcome has this attribute: the work done so far."""
        return self.value

    def unwrap(self) -> T:
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Aborted(Generic[T]):
    """The work was stopped. This is not an error.

    Attributes:
        reason: Why it was stopped.
        receipt: What the stop did.
        partial: The work done so far; None if there is nothing to keep.
        started_at: When the work began, in seconds since 1970.
        finished_at: When it ended.
    """

    reason: AbortReason
    receipt: Receipt
    partial: T | None = None
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["aborted"]] = "aborted"

    def unwrap(self) -> NoReturn:
        """Raise the stop as an error.

        Raises:
            AbortError: Always.
        """
        raise error_from(self.reason, self.partial)


@dataclass(frozen=True, slots=True)
class TimedOut(Generic[T]):
    """The work was stopped because its time limit was reached.

    Attributes:
        reason: Which time limit.
        receipt: What the stop did.
        partial: The work done so far; None if there is nothing to keep.
        started_at: When the work began, in seconds since 1970.
        finished_at: When it ended.
    """

    reason: AbortReason
    receipt: Receipt
    partial: T | None = None
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["timed_out"]] = "timed_out"

    def unwrap(self) -> NoReturn:
        """Raise the stop as an error.

        Raises:
            AbortTimeout: Always.
        """
        raise error_from(self.reason, self.partial)


@dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """The work raised an error.

    Attributes:
        error: The error; a RemoteError if the outcome came from another process or machine, or out of a store.
        receipt: What had ended and what goes on.
        partial: The work done so far; None if there is nothing to keep.
        started_at: When the work began, in seconds since 1970.
        finished_at: When it ended.
    """

    error: BaseException
    receipt: Receipt
    partial: T | None = None
    started_at: float = field(default=0.0, kw_only=True)
    finished_at: float = field(default=0.0, kw_only=True)
    status: ClassVar[Literal["failed"]] = "failed"

    def unwrap(self) -> NoReturn:
        """Raise the original error.

        Raises:
            BaseException: Always.
        """
        raise self.error


Outcome: TypeAlias = Completed[T] | Aborted[T] | TimedOut[T] | Failed[T]
