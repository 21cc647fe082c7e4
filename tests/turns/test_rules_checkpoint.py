"""Owns the rules of the checkpoint, T-40 to T-49; "case" is the number in the reference's catalogue."""

import asyncio
import json
from typing import Any

import pytest

from safepoint import AbortController, AbortError
from safepoint.events import Event, TurnEnded
from safepoint.run import CheckpointError, Context, MemoryCheckpoints, StopAt
from safepoint.testing import drain_ready_tasks
from safepoint.turns import InterruptedTurn, TurnLoop, TurnPlan
from tests.kit.turn_loops import ControlledTurns

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def kept(store: MemoryCheckpoints, **options: Any) -> ControlledTurns:
    return ControlledTurns(checkpoints=store, checkpoint_id="k", **options)


async def content(store: MemoryCheckpoints) -> tuple[list[str], list[str]] | None:
    """What is in the store: the stopped turn's items, and those that wait."""
    text = await MemoryCheckpoints.load(store, "k")
    if text is None:
        return None
    data = json.loads(text)
    return (data["stopped"]["items"] if data["stopped"] else [], data["unhandled"])


async def left(store: MemoryCheckpoints, *items: str, at: StopAt | None = StopAt.NOW) -> None:
    """A loop that was stopped in the turn of the first item."""
    desk = kept(store)
    async with desk.loop:
        for item in items:
            desk.push(item)
        await desk.running(items[0])
        desk.loop.stop(at)
    await desk.exit()


class Broken(MemoryCheckpoints):
    """A store of which some methods fail."""

    def __init__(self, *methods: str) -> None:
        super().__init__()
        self.methods = methods

    def _try(self, method: str) -> None:
        if method in self.methods:
            raise OSError(f"{method}: disk full")

    async def save(self, key: str, text: str) -> None:
        self._try("save")
        await super().save(key, text)

    async def load(self, key: str) -> str | None:
        self._try("load")
        return await super().load(key)

    async def delete(self, key: str) -> bool:
        self._try("delete")
        return await super().delete(key)


async def test_t40_what_is_left_after_a_stop_is_saved_and_where_nothing_is_left_nothing() -> None:
    """Case 201 ☆: the stop of an idle loop stores nothing."""
    store = MemoryCheckpoints()
    idle = kept(store)
    async with idle.loop:
        await drain_ready_tasks()
    assert ((await idle.exit()).checkpoint.status, await content(store)) == ("none", None)
    for at, stopped in ((StopAt.NOW, ["a"]), (StopAt.SAFE_POINT, ["a"]), (None, [])):
        store = MemoryCheckpoints()
        desk = kept(store)
        async with desk.loop:
            desk.push("a")
            desk.push("b")
            await desk.running("a")
            desk.loop.stop(at)
            await desk.step("a")
            await desk.finish("a")
        assert ((await desk.exit()).checkpoint.status, await content(store)) == ("saved", (stopped, ["b"]))


async def test_t41_after_a_planning_error_what_is_in_the_store_stays_for_another_try() -> None:
    """Case 211 ☆ (a stop beside the error changes nothing)."""

    async def breaks(items: list[str]) -> TurnPlan[str]:
        broken.loop.stop(at=StopAt.SAFE_POINT)
        raise ValueError("no plan")

    store = MemoryCheckpoints()
    await left(store, "a", "b")
    broken = kept(store, plan=breaks)
    broken.push("c")
    broken.loop.start()
    exit = await broken.exit(loaded=["a", "b"])
    assert (exit.checkpoint.status, exit.unhandled) == ("kept", ["a", "b", "c"])
    assert await content(store) == ([], ["a", "b", "c"])


async def test_t42_a_store_that_cannot_save_changes_nothing_but_the_report() -> None:
    """Case 209 ☆, three times: after a stop in a turn, after a bare stop, beside an error of the listener."""
    for at in (StopAt.NOW, None):
        desk = kept(Broken("save"))
        async with desk.loop:
            desk.push("a")
            desk.push("b")
            await desk.running("a")
            desk.loop.stop(at)
            await desk.finish("a")
        exit = await desk.exit()
        assert (exit.reason, exit.checkpoint.status, str(exit.checkpoint.error)) == (None, "failed", "save: disk full")

    def hears(event: Event) -> None:
        if event.kind == "turn_started":
            raise ValueError("the screen is gone")

    desk = kept(Broken("save"), on_event=hears)
    desk.push("a")
    desk.loop.start()
    exit = await desk.exit()
    assert (str(exit.reason), exit.checkpoint.status) == ("the screen is gone", "failed")


async def test_t43_a_loop_goes_on_with_what_was_stopped_what_waited_and_what_is_new() -> None:
    """Cases 202 ☆, 203 ★, 208 ☆★."""
    store = MemoryCheckpoints()
    await left(store, "a", "b")
    calls: list[object] = []

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        calls.append((stopped.items, items))
        return TurnPlan(again.work, "a", consumed=stopped.items, remaining=items)

    again = kept(store, resume=resume)
    again.auto = True
    again.push("c")
    async with again.loop:
        await drain_ready_tasks()
    exit = await again.exit(loaded=["a", "b"])
    assert (calls, again.planned) == ([(("a",), ["b", "c"])], [["b", "c"], ["c"]]), "plan is not asked for that turn"
    assert (exit.handled, exit.checkpoint.status, await content(store)) == (3, "deleted", None)


@pytest.mark.parametrize("text", ["{ half", "[]", '{"kind": "turn-loop", "version": 1, "stopped": {}}'])
async def test_t43_a_checkpoint_that_nobody_can_read_ends_the_loop_and_is_set_aside(text: str) -> None:
    """Case 208 ★: theirs deletes it."""
    store = MemoryCheckpoints()
    await store.save("k", text)
    desk = kept(store)
    desk.push("a")
    desk.loop.start()
    exit = await desk.exit()
    assert isinstance(exit.reason, CheckpointError)
    assert "'k'" in str(exit.reason)
    assert "aside" in str(exit.reason)
    assert (exit.unhandled, store.aside[0][1]) == (["a"], text)
    fresh = kept(store)
    fresh.auto = True
    fresh.push("b")
    async with fresh.loop:
        await drain_ready_tasks()
    assert (await fresh.exit()).handled == 1, "the way is free"


async def test_t43_a_store_that_cannot_load_ends_the_loop_and_its_checkpoint_stays() -> None:
    """Case 208 ☆, 5.2-8."""
    store = Broken()
    await left(store, "a")
    store.methods = ("load",)
    desk = kept(store)
    desk.push("b")
    desk.loop.start()
    exit = await desk.exit()
    assert (str(exit.reason), exit.unhandled, exit.checkpoint.status) == ("load: disk full", ["b"], "kept")
    assert await content(store) == (["a"], [])


async def test_t44_a_checkpoint_goes_only_when_it_is_used_up_or_not_wanted() -> None:
    """Cases 212 ☆ (theirs deletes it when the context ends: ours is kept, and brought up to date), 213 ☆."""
    store, outside = MemoryCheckpoints(), AbortController()
    await left(store, "a", "b")
    cut = kept(store, signal=outside.signal)
    cut.loop.start()
    await cut.running("a")
    outside.abort("closing time")
    assert (await cut.exit(loaded=["a", "b"])).checkpoint.status == "saved"
    assert await content(store) == (["a"], ["b"])
    unwanted = kept(store)
    unwanted.loop.stop(skip_checkpoint=True)
    unwanted.loop.stop()
    unwanted.loop.start()
    exit = await unwanted.exit(loaded=["a", "b"])
    assert (exit.checkpoint.status, exit.unhandled, await content(store)) == ("deleted", ["a", "b"], None)


async def test_t45_what_is_pushed_before_the_first_turn_is_new_and_comes_last() -> None:
    """Case 214 ★: also what comes while the store still loads."""

    class Slow(MemoryCheckpoints):
        async def load(self, key: str) -> str | None:
            loading.set()
            await gate.wait()
            return await super().load(key)

    loading, gate = asyncio.Event(), asyncio.Event()
    gate.set()
    store = Slow()
    await left(store, "a", "b")
    gate.clear()
    loading.clear()
    desk = kept(store)
    desk.push("c")
    desk.loop.start()
    await loading.wait()
    desk.push("d")
    gate.set()
    await desk.running("a")
    desk.loop.stop(at=StopAt.NOW)
    await desk.exit(loaded=["a", "b"])
    assert desk.planned == [["a", "b", "c", "d"]]


@pytest.mark.parametrize("how", ["error", "none"])
async def test_t46_a_resume_that_fails_loses_nothing_and_may_be_tried_again(how: str) -> None:
    """Case 214: theirs asks for a resume function; ours lets the items wait again where there is none."""

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        if how == "error":
            raise ValueError("not today")
        return None  # type: ignore[return-value]

    store = MemoryCheckpoints()
    await left(store, "a", "b")
    desk = kept(store, resume=resume)
    desk.push("c")
    desk.loop.start()
    exit = await desk.exit(loaded=["a", "b"])
    assert isinstance(exit.reason, ValueError)
    assert (exit.interrupted, exit.unhandled, exit.checkpoint.status) == (["a"], ["b", "c"], "kept")
    assert await content(store) == (["a"], ["b", "c"])


async def test_t47_what_the_stopped_turn_left_behind_is_part_of_the_loops_one_record() -> None:
    """Case 204 ☆: whatever stopped the turn, what it left is there again."""

    async def work(ctx: Context, value: Any) -> None:
        began.set()
        try:
            await ctx.signal.run(asyncio.Event().wait())
        except AbortError as error:
            error.partial = {"page": 7}
            raise

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(work)

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        seen.append(stopped)
        return TurnPlan(nothing, consumed=stopped.items)

    store, began, seen = MemoryCheckpoints(), asyncio.Event(), list[InterruptedTurn[str]]()
    first: TurnLoop[str] = TurnLoop(plan, checkpoints=store, checkpoint_id="k", item_type=str, partial_type=Any)
    first.push("a")
    first.start()
    await began.wait()
    first.stop(at=StopAt.NOW)
    assert (await first.wait()).checkpoint.status == "saved"
    second = TurnLoop(
        plan, resume=resume, checkpoints=store, checkpoint_id="k", item_type=str, partial_type=dict[str, int]
    )
    async with second:
        await drain_ready_tasks()
    assert (seen, (await second.wait()).handled) == ([InterruptedTurn(("a",), {"page": 7})], 1)


async def nothing(ctx: Context, value: object) -> None:
    """At once."""


async def test_t48_the_way_a_turn_runs_is_the_plans_own_and_survives_any_number_of_resumes() -> None:
    """Case 214 ☆. There is no streaming mode to lose: work is given again by `resume`, every time."""
    store = MemoryCheckpoints()
    await left(store, "a")
    desks: list[ControlledTurns] = []

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        return TurnPlan(desks[-1].work, "a", consumed=stopped.items)

    for _ in range(3):
        desks.append(kept(store, resume=resume))
        desks[-1].loop.start()
        await desks[-1].running("a")
        desks[-1].loop.stop(at=StopAt.NOW)
        assert (await desks[-1].exit(loaded=["a"])).interrupted == ["a"]
        assert desks[-1].planned == [], "it was resumed, not planned"


async def test_t49_a_resumed_turn_that_has_ended_is_not_resumed_again() -> None:
    """5.2-9, #1102: written before anyone is told; and a stop between load and resume loses nothing."""
    store = MemoryCheckpoints()
    await left(store, "a", "b")
    told: list[object] = []

    class Watched(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            told.append(json.loads(text)["unhandled"])
            await store.save(key, text)

        async def load(self, key: str) -> str | None:
            return await store.load(key)

        async def delete(self, key: str) -> bool:
            told.append("deleted")
            return await store.delete(key)

    desk = kept(Watched(), on_event=lambda event: told.append(event.kind) if isinstance(event, TurnEnded) else None)
    desk.loop.start()
    await desk.running("a")
    await desk.finish("a")
    await desk.running("b")
    assert told[-2:] == [["b"], "turn_ended"], "what is done is off the list before anyone hears of it"
    await desk.finish("b")
    assert told[-2:] == ["deleted", "turn_ended"]
    desk.loop.stop(at=StopAt.NOW)
    assert (await desk.exit(loaded=["a", "b"])).handled == 2

    await left(store, "c")
    between = kept(store)
    between.loop.stop()
    between.loop.start()
    assert (await between.exit(loaded=["c"])).checkpoint.status == "saved"
    assert await content(store) == ([], ["c"])


async def test_case_213_skipping_is_sticky_and_takes_a_stale_one_away() -> None:
    store = MemoryCheckpoints()
    desk = kept(store)
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.stop(skip_checkpoint=True)
        desk.loop.stop(at=StopAt.NOW)
    exit = await desk.exit()
    assert (exit.interrupted, await content(store)) == (["a"], None)


async def test_case_215_three_generations_under_one_id() -> None:
    store = MemoryCheckpoints()
    loaded: list[str] = []
    for item in ("a", "b", "c"):
        desk = kept(store)
        desk.push(item)
        desk.loop.stop()
        desk.loop.start()
        await desk.exit(loaded=loaded)
        loaded.append(item)
    last = kept(store)
    last.auto = True
    last.push("d")
    async with last.loop:
        await drain_ready_tasks()
    assert last.planned[0] == ["a", "b", "c", "d"]
    assert (await last.exit(loaded=loaded)).handled == 4


async def test_a_loop_that_is_told_to_go_while_it_loads_leaves_the_checkpoint_as_it_is() -> None:
    """It does not know what is in there: to write down only what it was given would lose the rest."""

    class Slow(MemoryCheckpoints):
        async def load(self, key: str) -> str | None:
            loading.set()
            await asyncio.Event().wait()
            return None

    loading = asyncio.Event()
    store = Slow()
    await store.save("k", "what the loop before left")
    desk = kept(store)
    desk.push("b")
    desk.loop.start()
    await loading.wait()
    assert desk.loop._task is not None
    desk.loop._task.cancel()
    exit = await desk.exit()
    assert (exit.unhandled, exit.checkpoint.status) == (["b"], "kept")
    assert await MemoryCheckpoints.load(store, "k") == "what the loop before left"
