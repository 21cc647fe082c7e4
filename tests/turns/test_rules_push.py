"""Owns the rules of pushing and preempting, T-12 to T-25; "case" is the number in the reference's catalogue."""

import asyncio
import threading

import pytest

from safepoint import AbortController, Aborted, UsageError
from safepoint.agent import Agent, tool
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Stop, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import Preempt, PreemptAck, Pushed, Turn, TurnPlan
from tests.conftest import counts
from tests.kit.turn_loops import ControlledTurns

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def ack(pushed: Pushed) -> PreemptAck:
    assert pushed.ack is not None
    return pushed.ack


async def test_t12_a_push_never_waits_and_says_whether_it_is_in() -> None:
    """Case 192: what was refused is late, in order, as often as one looks, also after the end."""
    desk = ControlledTurns()
    desk.loop.start()
    assert desk.push("a")
    await desk.running("a")
    desk.loop.stop()
    assert not desk.push("x")
    await desk.finish("a")
    exit = await desk.exit()
    assert not desk.push("y"), "after somebody has read the late ones a push is refused as before: theirs panics"
    assert (exit.late, (await desk.exit()).late) == (["x", "y"], ["x", "y"])


async def test_t13_a_plain_push_stops_nothing() -> None:
    """Case 146 ☆."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        assert desk.push("b").ack is None
        await desk.step("a")
        assert desk.stopped == {}
        await desk.finish("a")
        await desk.finish("b")
    assert (await desk.exit()).handled == 2


async def test_t14_a_preempt_is_bound_to_the_turn_seen_at_push_time() -> None:
    """Cases 139 ☆, 140 ★, 170 ☆: the strategy's turn is noted, then the item is queued, then that turn is asked."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        seen = desk.loop.turn
        assert seen is not None
        pushed = desk.push("b", preempt=StopAt.NOW)
        await desk.running("b")
        assert (ack(pushed).status, desk.stopped) == ("submitted", {"a": "preempted"})
        late = PreemptAck()
        seen.request(desk_preempt(), late)
        assert late.status == "turn_over", "the turn has changed: it is answered at once, and hits nothing"
        await drain_ready_tasks()
        assert desk.stopped == {"a": "preempted"}
        await desk.finish("b")
    exit = await desk.exit()
    assert (exit.preempted, exit.handled, desk.planned) == (["a"], 1, [["a"], ["b"]])


def desk_preempt() -> Preempt:
    return Preempt(StopAt.NOW)


async def test_t15_with_nothing_to_preempt_it_is_a_no_op_and_says_so() -> None:
    """Case 149 ☆: not started; between turns; turn over; loop stopped."""
    desk = ControlledTurns()
    assert ack(desk.push("a", preempt=StopAt.NOW)).status == "no_turn"
    async with desk.loop:
        await desk.running("a")
        await desk.finish("a")
        assert ack(desk.push("b", preempt=StopAt.NOW)).status == "no_turn"
        await desk.running("b")
        desk.loop.stop()
        assert ack(desk.push("late", preempt=StopAt.NOW)).status == "loop_stopped"
        assert desk.loop.preempt(StopAt.NOW).status == "loop_stopped"
        await desk.finish("b")
    assert (await desk.exit()).handled == 2
    assert desk.stopped == {}


async def test_t16_a_preempt_during_planning_waits_for_the_turn_that_is_planned() -> None:
    """Case 148 ★."""
    desk = ControlledTurns()
    desk.hold = asyncio.Event()
    async with desk.loop:
        desk.push("a")
        await drain_ready_tasks()
        pushed = desk.push("b", preempt=StopAt.NOW)
        await drain_ready_tasks()
        assert ack(pushed).status is None
        desk.hold.set()
        assert await ack(pushed) == "submitted"
        await desk.running("b")
        await desk.finish("b")
    exit = await desk.exit()
    assert (exit.preempted, exit.handled, "a" in desk.began) == (["a"], 1, False)


async def test_t17_requests_that_wait_together_join_and_are_answered_together() -> None:
    """Case 172 ☆: points, scope, the earliest deadline, all acks."""
    desk = ControlledTurns()
    desk.hold = asyncio.Event()
    async with desk.loop:
        desk.push("a")
        await drain_ready_tasks()
        acks = [
            ack(desk.push("b", preempt=StopAt.AFTER_MODEL, within=9)),
            ack(desk.push("c", preempt=StopAt.AFTER_TOOLS, within=5)),
            desk.loop.preempt(StopAt.AFTER_TOOLS),
        ]
        assert [one.status for one in acks] == [None, None, None]
        desk.hold.set()
        await desk.running("a")
        assert [one.status for one in acks] == ["submitted"] * 3
        turn = desk.loop.turn
        assert turn is not None
        assert (turn.stop.request.at, turn.stop.request.scope) == (StopAt.SAFE_POINT, "root")
        assert turn.stop.request.deadline is not None
        await desk.step("a")
        desk.loop.stop(at=StopAt.NOW)
    assert (await desk.exit()).preempted == ["a"]


async def test_t18_the_ack_comes_when_the_turn_was_asked_and_not_when_it_has_ended() -> None:
    """Case 142 ★; and every ack comes: asked, turn over, planning broken off, loop stopped."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        assert await ack(desk.push("b", preempt=StopAt.SAFE_POINT)) == "submitted"
        assert desk.loop.turn is not None
        assert desk.loop.turn.phase == "active"
        await desk.step("a")
        await desk.running("b")
        desk.loop.stop(at=StopAt.NOW)
    await desk.exit()

    async def plan(items: list[str]) -> TurnPlan[str]:
        await gate.wait()
        raise ValueError("no plan")

    for command, status in (("error", "turn_over"), ("stop", "loop_stopped"), ("now", "loop_stopped")):
        gate = asyncio.Event()
        broken = ControlledTurns(plan=plan)
        broken.push("a")
        broken.loop.start()
        await drain_ready_tasks()
        waiting = ack(broken.push("b", preempt=StopAt.NOW))
        if command != "error":
            broken.loop.stop(at=StopAt.NOW if command == "now" else None)
        gate.set()
        assert await waiting == status
        await broken.exit()


async def test_t19_a_request_is_answered_once() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        asked = ack(desk.push("b", preempt=StopAt.SAFE_POINT))
        waiting = desk.loop.preempt(StopAt.NOW, delay=60)
        await desk.step("a")
        assert (await asked, await waiting) == ("submitted", "turn_over"), "the end answers what was not asked yet"
        await desk.finish("b")
    await desk.exit()


async def test_t20_a_delayed_preempt_never_hits_a_later_turn(clock: FakeClock) -> None:
    """Cases 147 ★, 178 ★, 174 ☆ (the loop ends during the delay)."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        stale = ack(desk.push("b", preempt=StopAt.NOW, delay=5))
        await desk.finish("a")
        await desk.running("b")
        assert await stale == "turn_over"
        await clock.elapse(10)
        assert desk.stopped == {}
        due = desk.loop.preempt(StopAt.NOW, delay=5)
        await clock.elapse(4.9)
        assert due.status is None
        await clock.elapse(0.1)
        assert (await due, desk.stopped) == ("submitted", {"b": "preempted"})
        desk.push("c")
        await desk.running("c")
        never = desk.loop.preempt(StopAt.NOW, delay=5)
        desk.loop.stop(at=StopAt.NOW)
        assert await never == "loop_stopped"
    exit = await desk.exit()
    assert (exit.preempted, exit.interrupted, exit.handled) == (["b"], ["c"], 1)
    assert clock.pending == 0


async def test_t21_no_turn_is_planned_while_a_strategy_decides() -> None:
    """Case 158 ☆. One thread: by construction. Another: what it saw is what it hits, or nothing."""
    desk = ControlledTurns()
    looking, decided = threading.Event(), threading.Event()

    def decide(turn: Turn[str] | None) -> StopAt:
        assert turn is not None
        looking.set()
        assert decided.wait(10)
        return StopAt.NOW

    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        pushing = asyncio.ensure_future(asyncio.to_thread(desk.push, "c", preempt=decide))
        await asyncio.to_thread(looking.wait, 10)
        desk.push("b")
        await desk.finish("a")
        await desk.running("b")
        decided.set()
        assert ack(await pushing).status == "turn_over"
        assert desk.stopped == {}
        await desk.finish("b")
        await desk.finish("c")
    assert (await desk.exit()).handled == 3


async def test_t22_a_strategy_sees_no_turn_between_turns_and_the_planned_one_during_planning() -> None:
    """Case 158: theirs hides the turn that is planned, though a preempt hits it; ours shows what it would hit."""
    desk = ControlledTurns()
    seen: list[str | None] = []

    def decide(turn: Turn[str] | None) -> StopAt | None:
        seen.append(None if turn is None else turn.phase)
        return None

    desk.hold = asyncio.Event()
    async with desk.loop:
        desk.push("a", preempt=decide)
        await drain_ready_tasks()
        desk.push("b", preempt=decide)
        desk.hold.set()
        await desk.running("a")
        assert desk.push("c", preempt=decide).ack is None
        for item in ("a", "b", "c"):
            await desk.finish(item)
    assert seen == [None, "planning", "active"]
    with pytest.raises(UsageError):
        desk.loop.push("d", preempt=lambda turn: lambda turn: StopAt.NOW)  # type: ignore[arg-type,return-value]


async def test_t23_the_items_of_a_turn_that_made_way_are_kept_in_their_own_bucket() -> None:
    """Cases 140 ★, 162: theirs discards them. They are not planned again; what remained and came new is."""
    desk = ControlledTurns()
    async with desk.loop:
        for item in ("a", "b"):
            desk.push(item)
        await desk.running("a")
        desk.push("c", preempt=StopAt.NOW)
        await desk.running("b")
        assert desk.planned == [["a", "b"], ["b", "c"]]
        await desk.finish("b")
        await desk.finish("c")
    exit = await desk.exit()
    assert (exit.reason, exit.preempted, exit.handled) == (None, ["a"], 2)


async def test_t24_a_second_preempt_of_the_same_turn_makes_it_stricter() -> None:
    """Case 144 ☆."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.push("b", preempt=StopAt.AFTER_TOOLS)
        desk.push("c", preempt=StopAt.AFTER_MODEL)
        turn = desk.loop.turn
        assert turn is not None
        assert turn.stop.request.at is StopAt.SAFE_POINT
        desk.loop.preempt(StopAt.NOW)
        await desk.running("b")
        assert desk.stopped == {"a": "preempted"}
        await desk.finish("b")
        await desk.finish("c")
    assert (await desk.exit()).preempted == ["a"]


async def test_t25_preempt_turn_preempt_turn_and_the_loop_lives() -> None:
    """Cases 150 ★, 151 ☆ (ten at once), 152 ★ (beside a stop)."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        for item in ("b", "c", "d"):
            desk.push(item, preempt=StopAt.NOW)
            await desk.running(item)
        acks = [ack(desk.push(f"x{number}", preempt=StopAt.NOW)) for number in range(10)]
        assert [await one for one in acks] == ["submitted"] * 10
        for number in range(10):
            await desk.finish(f"x{number}")
    exit = await desk.exit()
    assert (exit.preempted, exit.handled) == (["a", "b", "c", "d"], 10)


async def test_case_152_preempts_and_stops_from_threads_deadlock_nobody() -> None:
    for _ in range(counts(20, 1000)):
        desk = ControlledTurns(on_event=None)
        desk.loop.start()
        desk.push("a")
        await desk.running("a")
        start = threading.Barrier(2)
        pushed: list[Pushed] = []

        def preempt(
            desk: ControlledTurns = desk, start: threading.Barrier = start, pushed: list[Pushed] = pushed
        ) -> None:
            start.wait()
            pushed.append(desk.push("b", preempt=StopAt.NOW))

        def stop(desk: ControlledTurns = desk, start: threading.Barrier = start) -> None:
            start.wait()
            desk.loop.stop(at=StopAt.SAFE_POINT, within=0.01)

        threads = [threading.Thread(target=target) for target in (preempt, stop)]
        for thread in threads:
            thread.start()
        exit = await desk.loop.wait(20)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        async with asyncio.timeout(5):
            assert await ack(pushed[0]) in ("submitted", "loop_stopped", "turn_over")
        assert len(exit.unhandled) + len(exit.late) == 1 or exit.interrupted == ["b"]
        await desk.exit()


async def test_case_157_the_interrupted_items_are_those_of_the_stopped_turn() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.push("b", preempt=StopAt.NOW)
        await desk.running("b")
        desk.loop.stop(at=StopAt.NOW)
    exit = await desk.exit()
    assert (exit.preempted, exit.interrupted) == (["a"], ["b"])


def test_case_165_a_turn_cannot_go_back(clock: FakeClock) -> None:
    turn: Turn[str] = Turn.plan(["a"], Stop(None, clock), clock)
    turn.end("turn_over")
    with pytest.raises(UsageError, match="is over"):
        turn.activate([], AbortController())


@pytest.mark.parametrize("within", [None, 5.0], ids=["patient", "hasty"])
async def test_a_preempt_is_of_the_root_alone_and_its_escalation_takes_the_tree(
    within: float | None, clock: FakeClock
) -> None:
    """T-14, and our rule for `within`: an inner agent goes on until the root's safe point, or until time is up."""

    @tool
    async def dig() -> str:
        inside.set()
        await gate.wait()
        return "dug"

    inside, gate = asyncio.Event(), asyncio.Event()
    child = Agent(ScriptedModel([Call("dig")], [Call("dig")], "deep enough"), tools=[dig], name="digger")
    root = Agent(ScriptedModel([Call("digger", prompt="go")], "done"), tools=[child.as_tool()])

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(root if items == ["old"] else desk.work, items[0])

    desk = ControlledTurns(plan=plan)
    desk.auto = True
    async with desk.loop:
        desk.push("old")
        await inside.wait()
        desk.push("new", preempt=StopAt.AFTER_TOOLS, within=within)
        await clock.elapse(4)
        assert desk.began == []
        if within is None:
            gate.set()
        await clock.elapse(1)
        assert desk.began == ["new"]
    assert (await desk.exit()).preempted == ["old"]
    outcome = desk.outcomes[0]
    assert isinstance(outcome, Aborted)
    assert outcome.receipt.escalated is (within is not None)
