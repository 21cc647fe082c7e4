"""Owns the tests of what a plan makes of its items: every one in exactly one place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint import UsageError
from safepoint.turns import TurnPlan
from safepoint.turns.plan import split


async def work(ctx: object, value: object) -> None:
    """Nothing."""


def test_without_a_word_the_turn_is_about_all_items() -> None:
    assert split(["a", "b"], TurnPlan(work)) == (["a", "b"], [], [])


def test_without_consumed_it_is_about_all_that_do_not_remain() -> None:
    assert split(["a", "b", "c"], TurnPlan(work, remaining=["b"])) == (["a", "c"], ["b"], [])


def test_what_is_in_neither_is_dropped() -> None:
    assert split(["a", "b", "c"], TurnPlan(work, consumed=["b"], remaining=["a"])) == (["b"], ["a"], ["c"])


def test_equal_items_are_different_items() -> None:
    assert split(["a", "a", "a"], TurnPlan(work, consumed=["a"], remaining=["a"])) == (["a"], ["a"], ["a"])
    first, second = [1], [1]
    consumed, _, dropped = split([first, second], TurnPlan(work, consumed=[second]))
    assert consumed[0] is second
    assert dropped[0] is first


def test_an_equal_copy_stands_for_the_item() -> None:
    assert split([[1], [2]], TurnPlan(work, consumed=[[2]])) == ([[2]], [], [[1]])


def test_a_plan_may_drop_everything() -> None:
    assert split(["a"], TurnPlan(work, consumed=[])) == ([], [], ["a"])


@pytest.mark.parametrize(
    "plan",
    [TurnPlan(work, remaining=["a", "b"]), TurnPlan(work, consumed=[], remaining=["a", "b"])],
    ids=["all remain", "none is consumed"],
)
def test_a_plan_that_would_be_asked_the_same_for_ever_is_refused(plan: TurnPlan[str]) -> None:
    with pytest.raises(UsageError, match="for ever"):
        split(["a", "b"], plan)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (TurnPlan(work, consumed=["x"]), "consumed that it was not given: 'x'"),
        (TurnPlan(work, remaining=["x"]), "remaining that it was not given: 'x'"),
        (TurnPlan(work, consumed=["a", "a"]), "consumed that it was not given: 'a'"),
        (TurnPlan(work, consumed=["a"], remaining=["a"]), "consumed that it was not given: 'a'"),
        (None, "must return a TurnPlan, not NoneType"),
    ],
    ids=["unknown consumed", "unknown remaining", "twice", "in both", "no plan"],
)
def test_a_plan_that_does_not_fit_is_refused_by_name(plan: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        split(["a", "b"], plan)


@given(st.lists(st.integers(0, 3)), st.data())
def test_no_item_is_lost_or_doubled_by_any_plan(items: list[int], data: st.DataObject) -> None:
    fates = data.draw(st.lists(st.sampled_from("crd"), min_size=len(items), max_size=len(items)))
    chosen = {fate: [item for item, its in zip(items, fates, strict=True) if its == fate] for fate in "crd"}
    if items and not chosen["c"] and not chosen["d"]:
        return
    if not items:
        return
    consumed, remaining, dropped = split(items, TurnPlan(work, consumed=chosen["c"], remaining=chosen["r"]))
    assert (consumed, remaining) == (chosen["c"], chosen["r"])
    assert sorted(dropped) == sorted(chosen["d"])
