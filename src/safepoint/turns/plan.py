"""Owns the plan of a turn: what it is to do, and how it divides the items that it was given. Pure."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from ..abort import AbortSignal
from ..abort.clock import check_seconds
from ..abort.renamed_arguments import accepts_deadline
from ..errors import UsageError
from ..outcome import Outcome
from ..run.context import Work

__all__ = ["AnyWork", "TurnPlan", "split"]

T = TypeVar("T")
# Work on any input: each plan of a loop may have work of another type, together with the input for it.
AnyWork: TypeAlias = Work[Any, object]


@dataclass(frozen=True, slots=True)
class TurnPlan(Generic[T]):
    """What a turn is to do.

    Attributes:
        work: An agent, a flow, or any other Work.
        input: What the work is given.
        consumed: The items of this turn. `None` means all that are not in `remaining`.
        remaining: Items for a later turn. Items that are in neither are dropped on purpose.
        signal: One more signal that ends this turn, and only this one.
        timeout: Seconds that this turn may take.
        turn_id: The id of the turn. By default it is given a new one.
        then: Awaited with the outcome before the end of the turn is reported, to save it for example.

    Raises:
        UsageError: An argument has the wrong type, or `timeout` is out of range.
    """

    work: AnyWork
    input: object = None
    consumed: Sequence[T] | None = None
    remaining: Sequence[T] = ()
    signal: AbortSignal | None = None
    timeout: float | None = None
    turn_id: str | None = None
    then: Callable[[Outcome[Any]], Awaitable[object]] | None = None

    def __post_init__(self) -> None:
        if not callable(self.work):
            raise UsageError(f"TurnPlan.work must be an agent, a flow or any Work, not {type(self.work).__name__}")
        if self.signal is not None and not isinstance(self.signal, AbortSignal):
            raise UsageError(f"TurnPlan.signal cannot be {self.signal!r}")
        if self.turn_id is not None and not isinstance(self.turn_id, str):
            raise UsageError(f"TurnPlan.turn_id cannot be {self.turn_id!r}")
        if self.then is not None and not callable(self.then):
            raise UsageError(f"TurnPlan.then cannot be {self.then!r}")
        if self.timeout is not None:
            if not isinstance(self.timeout, int | float):
                raise UsageError(f"TurnPlan.timeout cannot be {self.timeout!r}")
            check_seconds("timeout", self.timeout)


TurnPlan.__init__ = accepts_deadline(TurnPlan.__init__)  # type: ignore[method-assign]


def split(items: list[T], plan: object) -> tuple[list[T], list[T], list[T]]:
    """Divide the items that a plan was given, so that each is in exactly one list.

    Args:
        items: The items that the plan was given.
        plan: What the plan returned.

    Returns:
        The consumed, the remaining and the dropped items.

    Raises:
        UsageError: The plan is no TurnPlan, names an item that it was not given, or takes no item at all.
    """
    if not isinstance(plan, TurnPlan):
        raise UsageError(f"plan() must return a TurnPlan, not {type(plan).__name__}")
    if plan.consumed is None and not plan.remaining:
        return items, [], []
    unassigned = list(items)
    remaining = _take(unassigned, plan.remaining, "remaining")
    if plan.consumed is None:
        consumed, dropped = unassigned, []
    else:
        consumed, dropped = _take(unassigned, plan.consumed, "consumed"), unassigned
    if not consumed and not dropped:
        raise UsageError("the plan consumes nothing and drops nothing: the loop would plan the same for ever")
    return consumed, remaining, dropped


def _take(unassigned: list[T], wanted: Sequence[T], field: str) -> list[T]:
    """Remove the wanted items from `unassigned`: by identity if all of them are there, else by equality.

    Returns:
        The wanted items, in the order of the plan.
    """
    missing = Counter(map(id, wanted)) - Counter(map(id, unassigned))
    if not missing:
        counts = Counter(map(id, wanted))
        others = []
        for item in unassigned:
            if counts[id(item)] > 0:
                counts[id(item)] -= 1
            else:
                others.append(item)
        unassigned[:] = others
        return list(wanted)
    for item in wanted:
        try:
            unassigned.remove(item)
        except ValueError:
            raise UsageError(f"the plan has an item in {field} that it was not given: {item!r}") from None
    return list(wanted)
