"""Owns the rules of the loop itself, T-1 to T-11, each as a test; "case" is the number in the reference's catalogue."""

import asyncio
import threading

import pytest

from safepoint import AbortController, Aborted, AbortError, Failed, UsageError
from safepoint.events import Event, TurnEnded
from safepoint.run import Context, MemoryCheckpoints, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import TurnLoop, TurnPlan
from tests.conftest import counts
from tests.kit.turn_loops import ControlledTurns, balanced

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


async def test_t1_a_loop_is_made_started_once_and_waited_for_by_anyone() -> None:
    """Cases 115 (run is idempotent), 117: here waiting before the start is an error at once, not a wait for ever."""
    desk = ControlledTurns()
    with pytest.raises(UsageError, match="not been started"):
        await desk.loop.wait()
    desk.push("a")
    desk.loop.start()
    desk.loop.start()
    await desk.running("a")
    waiting = [asyncio.ensure_future(desk.loop.wait()) for _ in range(3)]
    await desk.finish("a")
    desk.loop.stop()
    exits = await asyncio.gather(*waiting)
    assert all(exit is exits[0] for exit in exits)
    desk.loop.start()
    assert (desk.began, await desk.loop.wait()) == (["a"], exits[0])


async def test_t2_a_start_loads_the_checkpoint_and_the_end_of_the_signal_closes_the_queue() -> None:
    """Case 137 ☆: cancelled before the first item is received."""
    store, outside = MemoryCheckpoints(), AbortController()
    desk = ControlledTurns(checkpoints=store, checkpoint_id="k")
    desk.push("a")
    desk.loop.stop()
    desk.loop.start()
    await desk.exit()
    again = ControlledTurns(checkpoints=store, checkpoint_id="k", signal=outside.signal)
    again.push("b")
    again.loop.start()
    await again.running("a")
    outside.abort("enough")
    again.push("late")
    exit = await again.exit(loaded=["a"])
    assert (exit.interrupted, exit.unhandled, exit.late) == (["a"], ["b"], ["late"])

    gone = ControlledTurns(signal=outside.signal)
    gone.accepted += ["c"] if gone.loop.push("c") else []
    gone.loop.start()
    assert (await gone.exit()).unhandled == ["c"]


async def test_t3_each_turn_looks_for_a_stop_waits_for_an_item_and_takes_all_that_wait(clock: FakeClock) -> None:
    """Case 137 ★: the signal ends a loop that is blocked, idle."""
    desk = ControlledTurns()
    async with desk.loop:
        await drain_ready_tasks()
        assert desk.planned == []
        for item in ("a", "b", "c"):
            desk.push(item)
        await desk.running("a")
        assert desk.planned == [["a", "b", "c"]]
        desk.loop.stop()
        await desk.finish("a")
    assert (await desk.exit()).unhandled == ["b", "c"]
    outside = AbortController()
    idle = ControlledTurns(signal=outside.signal)
    idle.loop.start()
    await drain_ready_tasks()
    outside.abort("enough")
    exit = await idle.exit()
    assert (exit.reason, exit.accepted) == (None, 0), "an abort is not an error"


@pytest.mark.parametrize("how", ["error", "stop", "now", "none", "no work"])
async def test_t4_a_plan_that_fails_or_is_stopped_gives_all_items_back_in_the_order_of_their_pushes(how: str) -> None:
    """Cases 123 ☆, 137 (cancel during planning)."""

    async def plan(items: list[str]) -> TurnPlan[str]:
        desk.push("during")
        planning.set()
        await gate.wait()
        if how == "error":
            raise ValueError("no plan")
        if how == "none":
            return None  # type: ignore[return-value]
        return TurnPlan(None if how == "no work" else desk.work)  # type: ignore[arg-type]

    planning, gate = asyncio.Event(), asyncio.Event()
    desk = ControlledTurns(plan=plan)
    for item in ("a", "b", "c"):
        desk.push(item)
    desk.loop.start()
    await planning.wait()
    if how == "stop":
        desk.loop.stop()
    if how == "now":
        desk.loop.stop(at=StopAt.NOW)
    else:
        gate.set()
    exit = await desk.exit()
    assert exit.unhandled == ["a", "b", "c", "during"]
    assert desk.began == []
    if how in ("stop", "now"):
        assert exit.reason is None
    else:
        assert isinstance(exit.reason, ValueError)


async def test_t5_what_fails_between_the_choice_and_the_turn_keeps_the_order_too() -> None:
    """Case 125 ★: the item in the middle was picked. Their second callback, PrepareAgent, is part of `plan` here."""

    async def plan(items: list[str]) -> TurnPlan[str]:
        chosen = TurnPlan(desk.work, consumed=[items[1]], remaining=[items[0], items[2]])
        assert chosen.consumed == ["b"]
        raise ConnectionError("no agent")

    desk = ControlledTurns(plan=plan)
    for item in ("a", "b", "c"):
        desk.push(item)
    desk.loop.start()
    exit = await desk.exit()
    assert (type(exit.reason), exit.unhandled) == (ConnectionError, ["a", "b", "c"])


async def test_t6_what_remains_comes_before_what_arrived_meanwhile() -> None:
    desk = ControlledTurns()
    desk.hold = asyncio.Event()
    async with desk.loop:
        for item in ("a", "b"):
            desk.push(item)
        await drain_ready_tasks()
        desk.push("meanwhile")
        assert list(desk.loop.waiting) == ["meanwhile"]
        desk.hold.set()
        await desk.running("a")
        assert desk.loop.waiting == ("b", "meanwhile")
        desk.loop.stop(at=StopAt.NOW)
    assert (await desk.exit()).unhandled == ["b", "meanwhile"]


async def test_t7_a_turn_runs_under_a_stop_of_its_own_and_what_its_listener_raises_is_an_error() -> None:
    stops: list[object] = []

    async def work(ctx: Context, value: object) -> None:
        stops.append(ctx.stop)

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(work, consumed=items[:1], remaining=items[1:])

    def hears(event: Event) -> None:
        if isinstance(event, TurnEnded) and len(stops) == 2:
            raise ZeroDivisionError("the screen is gone")

    loop = TurnLoop(plan, on_event=hears)
    for item in ("a", "b", "c"):
        loop.push(item)
    loop.start()
    exit = await loop.wait(10)
    assert stops[0] is not stops[1]
    assert isinstance(exit.reason, ZeroDivisionError)
    assert (exit.handled, exit.unhandled) == (2, ["c"])


async def test_t8_a_turn_ends_when_its_work_has_ended_and_no_listener_can_end_it_earlier() -> None:
    """Cases 162 ★, 199 (a10): a callback that returns early. There is none here: listeners hear events one by one."""
    desk = ControlledTurns(on_event=lambda event: None)
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.push("b", preempt=StopAt.SAFE_POINT)
        await drain_ready_tasks()
        assert desk.began == ["a"], "the next turn does not begin before this one has ended"
        await desk.step("a")
        assert desk.began == ["a", "b"]
        await desk.finish("b")
    assert (await desk.exit()).preempted == ["a"]


async def test_t9_a_turn_that_made_way_or_failed_lets_the_loop_go_on_and_its_report_says_how() -> None:
    """Theirs ends the loop when a turn fails, and swallows errors of a turn that made way."""
    desk = ControlledTurns()
    async with desk.loop:
        for item in ("a", "b"):
            desk.push(item)
        await desk.running("a")
        await desk.fail("a", ValueError("broken"))
        await desk.running("b")
        desk.push("c", preempt=StopAt.NOW)
        await desk.running("c")
        await desk.finish("c")
    exit = await desk.exit()
    assert [type(outcome) for outcome in desk.outcomes[:2]] == [Failed, Aborted]
    assert (exit.reason, exit.failed, exit.preempted, exit.handled) == (None, ["a"], ["b"], 1)


@pytest.mark.parametrize("raised", [AbortError, ValueError])
async def test_t10_a_listener_cannot_hide_an_abort_and_its_own_error_hides_nothing_either(
    raised: type[Exception],
) -> None:
    """Cases 198 ★, 199 ☆."""

    def hears(event: Event) -> None:
        if isinstance(event, TurnEnded):
            event.outcome.unwrap() if raised is AbortError else _raise(ValueError("broken"))

    store = MemoryCheckpoints()
    desk = ControlledTurns(on_event=hears, checkpoints=store, checkpoint_id="k")
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.stop(at=StopAt.NOW)
    exit = await desk.exit()
    assert exit.reason is None if raised is AbortError else str(exit.reason) == "broken"
    assert (exit.interrupted, exit.checkpoint.status) == (["a"], "saved")


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("place", ["plan", "work", "listener"])
async def test_t11_commands_from_inside_of_plan_work_and_listener_are_legal(place: str) -> None:
    """Stop from each; pushes from each are in test_loop.py."""

    async def plan(items: list[str]) -> TurnPlan[str]:
        if place == "plan":
            loop.stop(at=StopAt.NOW)
        return TurnPlan(work, consumed=items[:1], remaining=items[1:])

    async def work(ctx: Context, value: object) -> None:
        if place == "work":
            loop.stop(at=StopAt.NOW)
            await ctx.signal.sleep(1000)

    def hears(event: Event) -> None:
        if place == "listener" and event.kind == "turn_started":
            loop.stop(at=StopAt.NOW)

    loop: TurnLoop[str] = TurnLoop(plan, on_event=hears)
    loop.push("a")
    loop.push("b")
    loop.start()
    exit = await loop.wait(10)
    balanced(exit, ["a", "b"])
    assert (exit.reason, exit.handled) == (None, 0)
    assert exit.unhandled == (["a", "b"] if place == "plan" else ["b"])


async def test_case_118_pushes_from_a_thread_while_the_loop_starts_are_all_accounted_for() -> None:
    for _ in range(counts(30, 1000)):
        desk = ControlledTurns(on_event=None)
        desk.auto = True

        def produce(desk: ControlledTurns = desk) -> None:
            for number in range(20):
                desk.push(str(number))

        thread = threading.Thread(target=produce)
        thread.start()
        desk.loop.start()
        await drain_ready_tasks()
        desk.loop.stop()
        await desk.loop.wait(10)
        await asyncio.to_thread(thread.join)
        await desk.exit()


async def test_case_138_five_hundred_pushes_while_the_loop_ends_and_its_store_blocks() -> None:
    class Blocks(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            if blocking.is_set():
                saving.set()
                await gate.wait()
            await super().save(key, text)

    saving, gate, blocking = asyncio.Event(), asyncio.Event(), asyncio.Event()
    store = Blocks()
    desk = ControlledTurns(checkpoints=store, checkpoint_id="k")
    desk.loop.start()
    desk.push("first")
    await desk.running("first")
    blocking.set()

    def produce() -> None:
        for number in range(500):
            desk.push(str(number))

    thread = threading.Thread(target=produce)
    desk.loop.stop(at=StopAt.NOW)
    thread.start()
    await saving.wait()
    await asyncio.to_thread(thread.join)
    gate.set()
    exit = await desk.exit()
    assert exit.interrupted == ["first"]
    assert len(exit.unhandled) + len(exit.late) == 500
    after = ControlledTurns(checkpoints=store, checkpoint_id="k")
    after.loop.stop()
    after.loop.start()
    assert (await after.exit(loaded=["first", *exit.unhandled])).unhandled == ["first", *exit.unhandled]
