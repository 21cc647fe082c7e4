"""Owns the rules of stopping and of the exit, T-26 to T-39; "case" is the number in the reference's catalogue."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from safepoint import AbortController, Aborted, UsageError
from safepoint.agent import Agent, tool
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Context, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import TurnLoop, TurnPlan
from tests.conftest import counts
from tests.kit.turn_loops import ControlledTurns

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


async def test_t26_a_stop_closes_the_door_and_what_it_does_to_the_running_turn_is_another_matter() -> None:
    """Case 195: a bare stop commits without touching the turn."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.stop()
        assert not desk.push("late")
        await desk.step("a")
        assert (desk.stopped, desk.loop.signal.aborted) == ({}, False)
        await desk.finish("a")
    assert (await desk.exit()).handled == 1


async def test_t27_a_stop_before_the_start_lets_nothing_run() -> None:
    """Cases 188 ☆, 189 ☆."""
    desk = ControlledTurns()
    desk.push("a")
    desk.loop.stop()
    desk.push("b")
    desk.loop.start()
    exit = await desk.exit()
    assert (exit.unhandled, exit.late, desk.planned) == (["a"], ["b"], [])


async def test_t28_a_bare_stop_lets_the_turn_finish_and_leaves_the_rest() -> None:
    """Case 181 ★."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        desk.push("b")
        await desk.running("a")
        desk.loop.stop()
        await desk.finish("a")
    exit = await desk.exit()
    assert [outcome.unwrap() for outcome in desk.outcomes] == ["did a"]
    assert (exit.reason, exit.interrupted, exit.unhandled, exit.handled) == (None, [], ["b"], 1)


async def test_t29_a_stop_while_a_turn_is_planned_lets_it_not_begin() -> None:
    """Case 195 ★ (a stop before the watcher starts). Theirs hands the stop to the turn; here none begins after it."""
    for at in (None, StopAt.SAFE_POINT, StopAt.NOW):
        desk = ControlledTurns()
        desk.hold = asyncio.Event()
        async with desk.loop:
            desk.push("a")
            await drain_ready_tasks()
            desk.loop.stop(at)
            desk.hold.set()
        exit = await desk.exit()
        assert (exit.unhandled, exit.interrupted, desk.began) == (["a"], [], [])


STOPS: list[Callable[[TurnLoop[str]], object]] = [
    lambda loop: loop.stop(),
    lambda loop: loop.stop(at=StopAt.SAFE_POINT),
    lambda loop: loop.stop(at=StopAt.AFTER_TOOLS, within=30),
    lambda loop: loop.stop(at=StopAt.TURN_END, within=60),
    lambda loop: loop.stop(when_idle_for=60),
]


@pytest.mark.parametrize("later", STOPS, ids=range(len(STOPS)))
async def test_t30_no_later_stop_makes_an_earlier_one_weaker(later: Callable[[TurnLoop[str]], object]) -> None:
    """Cases 183 ★, 184 ☆, 194."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.stop(at=StopAt.SAFE_POINT, within=10)
        before = desk.loop._state.stop.request
        later(desk.loop)
        after = desk.loop._state.stop.request
        assert (after.at, after.scope, after.deadline) == (StopAt.SAFE_POINT, "tree", before.deadline)
        desk.loop.stop(at=StopAt.NOW)
        later(desk.loop)
        assert desk.loop._state.stop.request.at is StopAt.NOW
        await drain_ready_tasks()
        assert desk.loop.finished, "at once, not in ten seconds"
    assert (await desk.exit()).interrupted == ["a"]


async def test_case_185_ten_mixed_stops_from_threads_end_the_loop() -> None:
    for _ in range(counts(10, 300)):
        desk = ControlledTurns(on_event=None)
        desk.loop.start()
        desk.push("a")
        await desk.running("a")
        threads = [threading.Thread(target=STOPS[number % 5], args=(desk.loop,)) for number in range(10)]
        threads.append(threading.Thread(target=desk.loop.stop, args=(StopAt.NOW,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert (await desk.exit()).interrupted == ["a"]


async def test_t31_the_deadline_of_a_stop_counts_from_the_call(clock: FakeClock) -> None:
    """Case 194 ☆: a deadline that has passed when the turn could begin is an abort."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        await clock.elapse(100)
        desk.loop.stop(at=StopAt.SAFE_POINT, within=10)
        await clock.elapse(5)
        desk.loop.stop(at=StopAt.SAFE_POINT, within=60)
        await clock.elapse(4.9)
        assert not desk.loop.finished
        await clock.elapse(0.1)
        assert desk.loop.finished
    (outcome,) = desk.outcomes
    assert isinstance(outcome, Aborted)
    assert outcome.receipt.escalated
    planning = ControlledTurns()
    planning.hold = asyncio.Event()
    async with planning.loop:
        planning.push("b")
        await drain_ready_tasks()
        planning.loop.stop(within=10)
        await clock.elapse(10)
        assert planning.loop.finished, "a plan that hangs is not waited for either"
    assert (await planning.exit()).unhandled == ["b"]


async def test_t32_until_idle_touches_nothing_and_an_item_begins_the_time_anew(clock: FakeClock) -> None:
    """Case 191 ☆★: fires; resets on push; does not touch a turn, asked for before or during it; 5 pushes, 6 turns."""
    desk = ControlledTurns()
    desk.loop.stop(when_idle_for=2, reason="quiet", skip_checkpoint=True)
    desk.push("a")
    desk.loop.start()
    await desk.running("a")
    desk.loop.stop(when_idle_for=2)
    await clock.elapse(600)
    assert desk.stopped == {}
    desk.auto = True
    await desk.finish("a")
    for number in range(5):
        await clock.elapse(1.9)
        assert desk.push(str(number))
    await clock.elapse(1.9)
    assert not desk.loop.finished
    await clock.elapse(0.1)
    exit = await desk.exit()
    assert (exit.handled, exit.stop_cause) == (6, "quiet")
    desk.push("late")
    assert (await desk.exit()).late == ["late"]
    with pytest.raises(UsageError, match="never touches"):
        ControlledTurns().loop.stop(at=StopAt.NOW, when_idle_for=1)  # theirs drops one of the two silently


async def test_t33_the_first_duration_stays_and_any_other_stop_comes_before_it(clock: FakeClock) -> None:
    """Case 191 ☆: overridden by a bare stop, by NOW, by a graceful one; before the start too."""
    for at in (None, StopAt.NOW, StopAt.SAFE_POINT):
        desk = ControlledTurns()
        desk.loop.stop(when_idle_for=60)
        desk.loop.stop(when_idle_for=1)
        desk.loop.start()
        await clock.elapse(59)
        assert not desk.loop.finished
        desk.push("a")
        await desk.running("a")
        desk.loop.stop(at)
        await desk.step("a")
        await desk.finish("a")
        assert desk.loop.finished
        await desk.exit()
    early = ControlledTurns()
    early.loop.stop(when_idle_for=60)
    early.loop.stop()
    early.loop.start()
    await early.exit()


async def test_t34_until_idle_wakes_a_loop_that_is_blocked_without_losing_items(clock: FakeClock) -> None:
    """Cases 191, 196 ☆ (no item is lost by a wake-up; no exit without a reason)."""
    desk = ControlledTurns()
    desk.auto = True
    async with desk.loop:
        await drain_ready_tasks()
        desk.loop.stop(when_idle_for=5)
        desk.push("a")
        await drain_ready_tasks()
        assert desk.began == ["a"]
        await clock.elapse(4.9)
        assert not desk.loop.finished
        await clock.elapse(0.1)
        assert desk.loop.finished
    assert (await desk.exit()).handled == 1
    outside = AbortController()
    idle = ControlledTurns(signal=outside.signal)
    idle.loop.stop(when_idle_for=5)
    idle.loop.start()
    await drain_ready_tasks()
    outside.abort("enough")
    await idle.exit()
    assert clock.pending == 0


async def test_t35_work_that_ignores_the_stop_is_waited_for_and_named(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Theirs ends the loop after the turn without a word. So does ours, and says who is late and where."""

    async def deaf(ctx: Context, value: object) -> str:
        began.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass
        return "done all the same"

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(deaf)

    began, gate = asyncio.Event(), asyncio.Event()
    loop = TurnLoop(plan)
    loop.push("a")
    loop.start()
    await began.wait()
    loop.stop(at=StopAt.NOW)
    await clock.elapse(3)
    assert not loop.finished
    assert "still runs 3 s after the abort" in caplog.text
    gate.set()
    exit = await loop.wait(100)
    assert (exit.handled, exit.interrupted) == (1, []), "it was done all the same: nobody must do it again"


async def test_t36_the_end_of_the_outside_signal_is_a_stop_now_and_loses_nothing() -> None:
    """Theirs: an error, no checkpoint. Ours: an abort is no error; see test_rules_checkpoint.py for what is kept."""
    outside = AbortController()
    desk = ControlledTurns(signal=outside.signal)
    async with desk.loop:
        desk.push("a")
        desk.push("b")
        await desk.running("a")
        outside.abort("closing time")
    exit = await desk.exit()
    assert (exit.reason, exit.interrupted, exit.unhandled) == (None, ["a"], ["b"])


async def test_t37_interrupted_are_the_items_of_the_stopped_turn_alone() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.push("b", preempt=StopAt.NOW)
        await desk.running("b")
        await desk.fail("b", ValueError("broken"))
        desk.push("c")
        await desk.running("c")
        desk.loop.stop(at=StopAt.SAFE_POINT)
        await desk.step("c")
    exit = await desk.exit()
    assert (exit.preempted, exit.failed, exit.interrupted) == (["a"], ["b"], ["c"])


async def test_t38_after_a_clean_end_nothing_is_interrupted() -> None:
    desk = ControlledTurns()
    desk.auto = True
    async with desk.loop:
        desk.push("a")
        await drain_ready_tasks()
        desk.loop.stop(at=StopAt.NOW)
    exit = await desk.exit()
    assert (exit.interrupted, exit.unhandled, exit.handled) == ([], [], 1)


async def test_t39_late_items_are_those_that_were_refused_in_order() -> None:
    """Case 192."""
    desk = ControlledTurns()
    desk.loop.stop()
    desk.loop.start()
    for item in ("x", "y", "z"):
        assert not desk.push(item)
    assert (await desk.exit()).late == ["x", "y", "z"]


async def test_case_186_a_stop_now_reaches_an_agent_inside_of_an_agent() -> None:
    @tool
    async def dig() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.append("the tool was interrupted")
        return ""

    inside, left = asyncio.Event(), list[str]()
    child = Agent(ScriptedModel([Call("dig")]), tools=[dig], name="digger")
    root = Agent(ScriptedModel([Call("digger", prompt="go")]), tools=[child.as_tool()])

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(root, items[0])

    desk = ControlledTurns(plan=plan)
    async with desk.loop:
        desk.push("go")
        await inside.wait()
        receipt = await desk.loop.stop(at=StopAt.NOW).settled(5)
    assert left == ["the tool was interrupted"]
    assert receipt.still_running == ()


async def test_case_190_the_first_cause_that_says_something_stays() -> None:
    desk = ControlledTurns()
    assert (await _stopped(desk, "", "deploy", "impatience")) == "deploy"
    assert (await _stopped(ControlledTurns(), "", "")) == ""


async def _stopped(desk: ControlledTurns, *causes: str) -> str:
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        for cause in causes:
            desk.loop.stop(reason=cause)
        desk.loop.stop(at=StopAt.NOW)
    (outcome,) = desk.outcomes
    assert isinstance(outcome, Aborted)
    exit = await desk.exit()
    assert outcome.reason.message == exit.stop_cause, "the turn is told the cause too"
    return exit.stop_cause


async def test_stop_comes_before_preempt_in_every_order(clock: FakeClock) -> None:
    """5.2-10: theirs lets chance decide."""
    calls: list[Callable[[ControlledTurns], object]] = [
        lambda desk: desk.push("b", preempt=StopAt.SAFE_POINT),
        lambda desk: desk.loop.preempt(StopAt.NOW, delay=1),
        lambda desk: desk.loop.stop(at=StopAt.SAFE_POINT),
        lambda desk: desk.loop.stop(),
    ]
    for first in range(4):
        desk = ControlledTurns()
        async with desk.loop:
            desk.push("a")
            await desk.running("a")
            for number in range(4):
                calls[(first + number) % 4](desk)
            await clock.elapse(1)
            await desk.step("a")
        exit = await desk.exit()
        assert (exit.interrupted, exit.preempted, desk.began) == (["a"], [], ["a"])


async def test_a_delayed_preempt_that_falls_due_after_a_bare_stop_leaves_the_last_turn_alone(clock: FakeClock) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        ack = desk.loop.preempt(StopAt.NOW, delay=5)
        desk.loop.stop()
        await clock.elapse(5)
        assert (await ack, desk.stopped) == ("loop_stopped", {})
        await desk.finish("a")
    assert (await desk.exit()).handled == 1
