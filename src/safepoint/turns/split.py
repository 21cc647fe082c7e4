"""Owns what a plan makes of the items it was given: which the turn is about, which wait on, which are dropped. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from ..errors import UsageError
from .turn import TurnPlan

__all__ = ["split"]

T = TypeVar("T")


def split(items: list[T], plan: object) -> tuple[list[T], list[T], list[T]]:
    """Consumed, remaining and dropped: every item in exactly one. Raises: UsageError for a plan that does not fit."""
    if not isinstance(plan, TurnPlan):
        raise UsageError(f"plan() must return a TurnPlan, not {type(plan).__name__}")
    if plan.consumed is None and not plan.remaining:
        return items, [], []
    left = list(items)
    remaining = _take(left, plan.remaining, "remaining")
    consumed, left = (left, []) if plan.consumed is None else (_take(left, plan.consumed, "consumed"), left)
    if not consumed and not left:
        raise UsageError("the plan consumes nothing and drops nothing: the loop would plan the same for ever")
    return consumed, remaining, left


def _take(left: list[T], wanted: Sequence[T], which: str) -> list[T]:
    """Take these out of `left`, by identity where possible. The order is that of the plan."""
    missing = Counter(map(id, wanted)) - Counter(map(id, left))
    if not missing:
        counts = Counter(map(id, wanted))
        kept = []
        for item in left:
            if counts[id(item)] > 0:
                counts[id(item)] -= 1
            else:
                kept.append(item)
        left[:] = kept
        return list(wanted)
    for item in wanted:
        try:
            left.remove(item)
        except ValueError:
            raise UsageError(f"the plan has an item in {which} that it was not given: {item!r}") from None
    return list(wanted)
