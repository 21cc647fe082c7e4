"""Owns how a plan divides its items: those of the turn, those that wait on, those that are dropped. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from ..errors import UsageError
from .turn import TurnPlan

__all__ = ["split"]

T = TypeVar("T")


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
