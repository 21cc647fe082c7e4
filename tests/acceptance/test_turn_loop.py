"""Owns the acceptance lines of TurnLoop: timing, scope and preemption."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from safepoint import Aborted, AbortError, AbortReason, Completed, Failed, UsageError
from safepoint.agent import Agent, AgentRun, tool
from safepoint.events import Event, TurnEnded
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Context, MemoryCheckpoints, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import InterruptedTurn, PreemptAck, Pushed, TurnLoop, TurnPlan
from safepoint.turns.inbox import Inbox


class Desk:
    """A loop whose turns wait at a gate, one item each, and what it saw."""

    def __init__(self, **options: Any) -> None:
        self.planned: list[list[str]] = []
        self.began: list[str] = []
        self.events: list[Event] = []
        self.ended: dict[str, str] = {}
        self.gates: dict[str, asyncio.Event] = {}
        options.setdefault("on_event", self.events.append)
        self.loop: TurnLoop[str] = TurnLoop(self.plan, **options)

    def gate(self, item: str) -> asyncio.Event:
        return self.gates.setdefault(item, asyncio.Event())

    async def plan(self, items: list[str]) -> TurnPlan[str]:
        self.planned.append(items)
        return TurnPlan(self.work, items[0], consumed=items[:1], remaining=items[1:])

    async def work(self, ctx: Context, item: str) -> str:
        self.began.append(item)
        try:
            while not self.gate(item).is_set():
                await ctx.safe_point()
                await ctx.signal.sleep(1)
        except AbortError as error:
            self.ended[item] = f"{error.reason.kind}: {error.reason.message}"
            raise
        self.ended[item] = "done"
        return f"did {item}"

    async def until(self, item: str) -> None:
        """Wait until this item's turn runs, and waits."""
        while item not in self.began:
            await drain_ready_tasks()
        await drain_ready_tasks()


class Nested:
    """An agent with a child that makes three rounds; each call of the child's tool waits at a gate."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.inside = asyncio.Event()
        self.gate = asyncio.Event()

        @tool
        async def dig(depth: int) -> str:
            self.steps.append(f"dig {depth}")
            self.inside.set()
            await self.gate.wait()
            return f"dug {depth}"

        @tool
        async def after() -> str:
            """Run beside nothing."""
            self.steps.append("after")
            return "done"

        self.child_model = ScriptedModel([Call("dig", depth=1)], [Call("dig", depth=2)], "deep enough")
        child = Agent(self.child_model, tools=[dig], name="digger")
        self.model = ScriptedModel([Call("digger", prompt="dig")], [Call("after")], "all done")
        self.agent = Agent(self.model, tools=[child.as_tool(), after], name="root")
        self.run: AgentRun = self.agent.run("go")

    async def until_inside(self) -> "asyncio.Task[object]":
        task: asyncio.Task[object] = asyncio.ensure_future(self.run._wait())
        await self.inside.wait()
        return task

    def results(self, outcome: Aborted[Any]) -> list[str]:
        assert outcome.partial is not None
        messages = outcome.partial.messages
        return [message.status for message in messages if isinstance(message, ToolResult)]


async def test_01_timing_and_scope_are_independent() -> None:
    """Timing and scope are independent. A safe-point stop of the root does not touch nested agents unless
    `scope="tree"`.
    """
    root_only = Nested()
    task = await root_only.until_inside()
    root_only.run.stop(StopAt.AFTER_TOOLS)
    root_only.gate.set()
    await task
    outcome = await root_only.run
    assert isinstance(outcome, Aborted)
    assert root_only.steps == ["dig 1", "dig 2"], "the child went on to its end"
    assert root_only.results(outcome) == ["completed"]

    tree = Nested()
    task = await tree.until_inside()
    tree.run.stop(StopAt.AFTER_TOOLS, scope="tree")
    tree.gate.set()
    await task
    outcome = await tree.run
    assert isinstance(outcome, Aborted)
    assert tree.steps == ["dig 1"], "the child stopped at its own safe point"
    assert tree.results(outcome) == ["interrupted"]


async def test_02_escalation_is_monotone_and_a_bare_stop_never_weakens(clock: FakeClock) -> None:
    """Escalation is monotone: `tree` once asked stays; stricter timing stays; deadlines only move earlier; a bare
    stop never weakens.
    """
    nested = Nested()
    task = await nested.until_inside()
    stop = nested.run._ctx.stop
    nested.run.stop(StopAt.AFTER_TOOLS, scope="tree", within=60)
    nested.run.stop(StopAt.TURN_END, scope="root", within=90)
    assert (stop.request.at, stop.request.scope) == (StopAt.AFTER_TOOLS, "tree")
    assert stop.request.deadline == clock.monotonic() + 60
    nested.run.stop(StopAt.AFTER_MODEL, within=10)
    assert stop.request.at is StopAt.SAFE_POINT
    assert stop.request.deadline == clock.monotonic() + 10
    nested.run.stop()
    assert stop.request.at is StopAt.SAFE_POINT, "a bare stop never weakens, and leaves as it is"
    assert not nested.run.signal.aborted
    clock.advance(10)
    await task
    outcome = await nested.run
    assert isinstance(outcome, Aborted)
    assert outcome.receipt.escalated


async def test_03_escalation_in_mid_flight_wakes_the_children_that_were_waiting() -> None:
    """Escalation in mid-flight: a later call that adds only `tree` wakes children that were waiting, for safe
    points and for NOW; finished children are untouched; children started afterwards get it at once.
    """
    nested = Nested()
    task = await nested.until_inside()
    assert nested.run.stop(StopAt.AFTER_TOOLS).status == "accepted"
    ack = nested.run.stop(scope="tree")
    assert "AFTER_TOOLS" in ack.message
    nested.gate.set()
    await task
    assert nested.steps == ["dig 1"], "adding the tree alone reached the child that was at work"

    late = Nested()
    late.run.stop(StopAt.AFTER_MODEL, scope="tree")
    late.gate.set()
    outcome = await late.run
    assert isinstance(outcome, Aborted)
    assert late.steps == []

    child_first = Nested()
    task = await child_first.until_inside()
    child_first.run.stop(StopAt.AFTER_TOOLS, scope="tree")
    child_first.run.stop(StopAt.NOW)
    await task
    assert child_first.steps == ["dig 1"]
    assert isinstance(await child_first.run, Aborted)

    finished = Nested()
    finished.gate.set()
    async for event in finished.run:
        if event.kind == "tool_ended" and event.path == ("root",):
            finished.run.stop(StopAt.AFTER_TOOLS)
            finished.run.stop(scope="tree")
    outcome = await finished.run
    assert isinstance(outcome, Aborted)
    assert finished.results(outcome)[0] == "completed", "a finished child is untouched"


async def test_04_each_safe_point_stops_after_its_own_step() -> None:
    """AFTER_MODEL stops after the complete model answer with tool calls, before the tools; AFTER_TOOLS after all
    tools of the round; SAFE_POINT at whichever comes first.
    """
    for at, steps, statuses in (
        (StopAt.AFTER_MODEL, [], ["not_started"]),
        (StopAt.AFTER_TOOLS, ["dig 1", "dig 2"], ["completed"]),
        (StopAt.SAFE_POINT, [], ["not_started"]),
    ):
        nested = Nested()
        nested.gate.set()
        nested.run.stop(at)
        outcome = await nested.run
        assert isinstance(outcome, Aborted)
        assert nested.steps == steps
        assert nested.results(outcome) == statuses
        assert len(nested.model.requests) == 1
    answered = Agent(ScriptedModel("the answer")).run("go")
    answered.stop(StopAt.SAFE_POINT)
    assert isinstance(await answered, Completed), "a final answer that arrives first wins"


async def test_05_a_bare_stop_finishes_the_running_turn_and_starts_no_other(clock: FakeClock) -> None:
    """Bare `stop()` finishes the running turn and starts no other; queued items are `unhandled`."""
    desk = Desk()
    async with desk.loop as loop:
        for item in ("a", "b", "c"):
            loop.push(item)
        await desk.until("a")
        ack = loop.stop()
        assert ack.status == "accepted"
        desk.gate("a").set()
        clock.advance(1)
        exit = await loop.wait()
    assert desk.ended == {"a": "done"}
    assert (exit.reason, exit.handled, exit.unhandled, exit.interrupted) == (None, 1, ["b", "c"], [])


async def test_06_a_graceful_stop_takes_the_whole_tree_and_within_escalates_to_now(clock: FakeClock) -> None:
    """Graceful: `at=SAFE_POINT` takes the whole tree; `within` escalates to NOW."""
    desk = Desk()
    async with desk.loop as loop:
        loop.push("a")
        await desk.until("a")
        loop.stop(at=StopAt.SAFE_POINT)
        clock.advance(1)
        exit = await loop.wait()
    assert (exit.reason, exit.interrupted) == (None, ["a"])

    nested = Nested()

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nested.agent, items[0])

    ended: list[Event] = []
    async with TurnLoop(plan, on_event=ended.append) as loop:
        loop.push("go")
        await nested.inside.wait()
        loop.stop(at=StopAt.SAFE_POINT, within=30)
        clock.advance(29)
        await drain_ready_tasks()
        assert not loop.finished, "the child's tool waits at its gate"
        clock.advance(1)
        exit = await loop.wait()
    (report,) = [event for event in ended if isinstance(event, TurnEnded)]
    assert isinstance(report.outcome, Aborted)
    assert report.outcome.receipt.escalated
    assert {entry.fate for entry in report.outcome.receipt.entries if entry.name.endswith("dig")} == {"stopped"}


async def test_07_a_stop_now_takes_the_whole_tree_at_once(clock: FakeClock) -> None:
    """`at=NOW`: at once, whole tree. (Theirs left orphans; ours is a real abort.)"""
    nested = Nested()

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nested.agent, items[0])

    async with TurnLoop(plan) as loop:
        loop.push("go")
        await nested.inside.wait()
        before = clock.monotonic()
        receipt = await loop.stop(at=StopAt.NOW, reason="enough").settled(10)
        exit = await loop.wait()
    assert clock.monotonic() == before
    assert exit.interrupted == ["go"]
    assert receipt.still_running == ()
    assert {entry.name: entry.fate for entry in receipt.entries}["root/digger/dig"] == "stopped"


async def test_08_a_preempting_push_interrupts_the_turn_seen_and_goes_on_with_the_new_item(clock: FakeClock) -> None:
    """`push(item, preempt=…)` interrupts the turn seen at push time at the safe point, root only; with `within` it
    escalates; the loop goes on with the new item.
    """
    desk = Desk()
    async with desk.loop as loop:
        loop.push("old")
        await desk.until("old")
        pushed = loop.push("new", preempt=StopAt.SAFE_POINT)
        assert pushed.accepted
        assert pushed.ack is not None
        assert await pushed.ack == "submitted"
        clock.advance(1)
        await desk.until("new")
        assert desk.ended == {"old": "preempted: something newer came"}
        desk.gate("new").set()
        clock.advance(1)
        await drain_ready_tasks()
        loop.stop()
        exit = await loop.wait()
    assert (exit.handled, exit.preempted, exit.interrupted, exit.unhandled) == (1, ["old"], [], [])

    nested = Nested()

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nested.agent if items[0] == "old" else desk.work, items[0])

    async with TurnLoop(plan) as loop:
        loop.push("old")
        await nested.inside.wait()
        loop.push("newer", preempt=StopAt.AFTER_TOOLS, within=2.0)
        await drain_ready_tasks()
        assert desk.began[-1] == "new", "the nested agent goes on: a preempt is of the root alone"
        clock.advance(2.0)
        await desk.until("newer")
        loop.stop(at=StopAt.NOW)
        exit = await loop.wait()
    assert exit.preempted == ["old"]
    assert exit.interrupted == ["newer"]


async def test_09_a_preempt_never_hits_a_later_turn_and_every_ack_resolves(clock: FakeClock) -> None:
    """Preempt during planning hits the coming turn; between turns nothing; a delayed one never hits a later turn;
    every ack resolves.
    """
    planning = asyncio.Event()
    desk = Desk()

    async def slow_plan(items: list[str]) -> TurnPlan[str]:
        if items[0] == "slow":
            await planning.wait()
        return await desk.plan(items)

    desk.loop = TurnLoop(slow_plan)
    async with desk.loop as loop:
        await drain_ready_tasks()
        between = loop.push("slow", preempt=StopAt.SAFE_POINT)
        assert between.ack is not None
        assert between.ack.status == "no_turn", "between turns there is nothing to preempt, and it says so"
        await drain_ready_tasks()
        coming = loop.push("next", preempt=StopAt.SAFE_POINT)
        assert coming.ack is not None
        assert coming.ack.status is None, "while a turn is planned, the preempt waits for it"
        planning.set()
        assert await coming.ack == "submitted"
        await desk.until("next")
        assert desk.ended["slow"].startswith("preempted")

        delayed = loop.push("last", preempt=StopAt.NOW, delay=5.0)
        desk.gate("next").set()
        clock.advance(1)
        await desk.until("last")
        assert delayed.ack is not None
        assert await delayed.ack == "turn_over"
        clock.advance(10)
        await drain_ready_tasks()
        assert "last" not in desk.ended, "the delayed preempt never hits the later turn"
        waiting = loop.preempt(StopAt.NOW, delay=5.0)
        loop.stop(at=StopAt.NOW)
        assert await waiting == "loop_stopped"
        exit = await loop.wait()
        late = loop.push("too late", preempt=StopAt.NOW)
    assert (late.accepted, late.ack is not None and late.ack.status) == (False, "loop_stopped")
    assert (exit.handled, exit.preempted, exit.interrupted) == (1, ["slow"], ["last"])


async def test_10_concurrent_preempts_and_stops_are_deterministic_and_stop_dominates(clock: FakeClock) -> None:
    """Concurrent preempts and stops: no deadlock, deterministic, stop dominates."""

    async def schedule(order: int) -> tuple[object, ...]:
        desk = Desk()
        async with desk.loop as loop:
            loop.push("a")
            await desk.until("a")
            acks: list[PreemptAck | None] = []
            calls: list[Callable[[], object]] = [
                lambda: acks.append(loop.push("b", preempt=StopAt.AFTER_TOOLS).ack),
                lambda: loop.stop(at=StopAt.SAFE_POINT),
                lambda: acks.append(loop.push("c", preempt=StopAt.NOW).ack),
                lambda: loop.stop(),
                lambda: acks.append(loop.preempt(StopAt.SAFE_POINT)),
            ]
            for index in range(len(calls)):
                calls[(index + order) % len(calls)]()
            clock.advance(1)
            exit = await loop.wait(100)
        statuses = [await ack for ack in acks if ack is not None]
        assert exit.interrupted == ["a"], "a stop comes before a preempt, whatever came first"
        assert exit.preempted == []
        assert desk.began == ["a"]
        assert sorted([*exit.unhandled, *exit.late]) == ["b", "c"]
        return (exit.unhandled, exit.late, statuses)

    for order in range(5):
        assert await schedule(order) == await schedule(order)


async def test_11_stop_when_idle_fires_after_continuous_idleness_and_never_touches_a_running_turn(
    clock: FakeClock,
) -> None:
    """`stop(when_idle_for=d)`: fires after d of continuous idleness; a new item resets it; never touches a running
    turn; overridden by any other stop; first duration wins unless withdrawn.
    """
    desk = Desk()
    async with desk.loop as loop:
        loop.push("a")
        await desk.until("a")
        assert loop.stop(when_idle_for=60, reason="quiet").status == "accepted"
        assert loop.stop(when_idle_for=5).status == "already_stopping", "the first duration stays"
        await clock.elapse(600)
        await drain_ready_tasks()
        assert "a" not in desk.ended, "a running turn is never touched"
        desk.gate("a").set()
        clock.advance(1)
        await drain_ready_tasks()
        clock.advance(59)
        await drain_ready_tasks()
        desk.gate("b").set()
        assert loop.push("b").accepted, "a new item begins the wait anew"
        await drain_ready_tasks()
        clock.advance(59)
        await drain_ready_tasks()
        assert not loop.finished
        assert loop.withdraw_idle_stop()
        clock.advance(1000)
        await drain_ready_tasks()
        assert not loop.finished
        loop.stop(when_idle_for=10)
        await drain_ready_tasks()
        clock.advance(10)
        exit = await loop.wait(100)
        assert (exit.handled, exit.reason, exit.stop_cause) == (2, None, "quiet")
        assert not loop.push("late").accepted

    desk = Desk()
    async with desk.loop as loop:
        loop.push("a")
        await desk.until("a")
        loop.stop(when_idle_for=60)
        loop.stop(at=StopAt.NOW)
        assert (await loop.wait()).interrupted == ["a"], "any other stop overrides it"


async def test_12_calls_before_start_and_after_the_end_are_legal_or_a_clear_error() -> None:
    """Stop before start, push before start, wait before and after: legal where the design says so, a clear error
    where not.
    """
    desk = Desk()
    with pytest.raises(UsageError):
        await desk.loop.wait()
    assert desk.loop.push("a").accepted
    desk.loop.stop()
    assert not desk.loop.push("b").accepted
    desk.loop.start()
    desk.loop.start()
    exit = await desk.loop.wait()
    assert (exit.unhandled, exit.late, desk.planned) == (["a"], ["b"], [])
    assert await desk.loop.wait() is exit
    assert desk.loop.stop().status == "already_finished"
    assert not desk.loop.push("c").accepted


async def test_13_the_stop_cause_is_kept_and_visible_in_the_turn_and_in_the_exit(clock: FakeClock) -> None:
    """The stop cause is kept (first non-empty one) and visible in the turn and in the exit."""
    desk = Desk()
    async with desk.loop as loop:
        loop.push("a")
        await desk.until("a")
        loop.stop()
        loop.stop(reason="deploy")
        loop.stop(at=StopAt.NOW, reason="impatience")
        exit = await loop.wait()
    assert exit.stop_cause == "deploy"
    assert desk.ended == {"a": "user: deploy"}


async def test_14_every_item_ends_in_its_bucket_and_nothing_vanishes(clock: FakeClock) -> None:
    """Items: `unhandled` in push order; `interrupted` are those of the stopped turn, never of an earlier preempted
    one; late pushes are refused and returned; nothing vanishes.
    """
    desk = Desk()

    async def plan(items: list[str]) -> TurnPlan[str]:
        kept = [item for item in items if not item.startswith("drop")]
        if "fail" in kept:
            return TurnPlan(breaks, consumed=["fail"], remaining=[item for item in kept if item != "fail"])
        return TurnPlan(desk.work, kept[0], consumed=kept[:1], remaining=kept[1:])

    async def breaks(ctx: Context, item: object) -> None:
        raise ValueError("broken")

    desk.loop = TurnLoop(plan, on_event=desk.events.append)
    async with desk.loop as loop:
        pushed: list[Pushed] = [loop.push(item) for item in ("fail", "drop 1", "a", "b", "c", "d", "removed")]
        assert loop.remove("removed")
        await desk.until("a")
        desk.gate("a").set()
        clock.advance(1)
        await desk.until("b")
        loop.push("e", preempt=StopAt.NOW)
        await desk.until("c")
        loop.stop(at=StopAt.NOW)
        exit = await loop.wait()
        refused = loop.push("late")
    assert all(each.accepted for each in pushed)
    assert not refused.accepted
    assert exit.handled == 1
    assert exit.failed == ["fail"]
    assert sorted(exit.dropped) == ["drop 1", "removed"]
    assert exit.preempted == ["b"]
    assert exit.interrupted == ["c"], "of the stopped turn, not of the preempted one"
    assert exit.unhandled == ["d", "e"]
    assert exit.late == ["late"]
    assert exit.accepted == 8
    failed = next(event.outcome for event in desk.events if isinstance(event, TurnEnded))
    assert isinstance(failed, Failed)
    assert str(failed.error) == "broken"


async def test_15_a_callback_cannot_hide_the_abort_and_its_own_error_is_the_exit_reason(clock: FakeClock) -> None:
    """Callback errors: a callback that hides the abort cannot hide it from the exit; its own error is the exit
    reason, and the items and checkpoint are still there.
    """

    def hides(event: Event) -> None:
        if isinstance(event, TurnEnded) and isinstance(event.outcome, Aborted):
            raise AbortError(AbortReason("user", "hidden"))

    desk = Desk(on_event=hides)
    async with desk.loop as loop:
        loop.push("a")
        await desk.until("a")
        loop.stop(at=StopAt.NOW, reason="enough")
        exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.stop_cause) == (None, ["a"], "enough")

    def breaks(event: Event) -> None:
        if event.kind == "turn_started":
            raise ValueError("the screen is gone")

    desk = Desk(on_event=breaks, checkpoints=MemoryCheckpoints(), checkpoint_id="k")
    async with desk.loop as loop:
        loop.push("a")
        loop.push("b")
        exit = await loop.wait(100)
    assert str(exit.reason) == "the screen is gone"
    assert (exit.interrupted, exit.unhandled) == (["a"], ["b"])
    assert exit.checkpoint.status == "saved"

    async def refuses(items: list[str]) -> TurnPlan[str]:
        raise ValueError("no plan")

    async with TurnLoop(refuses) as loop:
        for item in ("a", "b", "c"):
            loop.push(item)
        exit = await loop.wait(100)
    assert str(exit.reason) == "no plan"
    assert exit.unhandled == ["a", "b", "c"]


async def test_16_a_checkpoint_on_stop_resumes_all_items_in_order_and_failing_stores_lose_nothing(
    clock: FakeClock,
) -> None:
    """Checkpoint on stop, resume with interrupted, unhandled and new items in order; corrupt or failing stores lose
    nothing.
    """
    store = MemoryCheckpoints()
    desk = Desk(checkpoints=store, checkpoint_id="k")
    async with desk.loop as loop:
        for item in ("a", "b"):
            loop.push(item)
        await desk.until("a")
        loop.stop(at=StopAt.NOW)
        assert (await loop.wait()).checkpoint.status == "saved"

    again = Desk(checkpoints=store, checkpoint_id="k")
    again.loop.push("c")
    async with again.loop as loop:
        await again.until("a")
        assert again.planned == [["a", "b", "c"]], "interrupted, unhandled and new, in this order"
        loop.stop(at=StopAt.NOW)
        await loop.wait()

    resumed: list[tuple[object, ...]] = []

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        resumed.append((stopped.items, items))
        return TurnPlan(third.work, stopped.items[0], consumed=stopped.items, remaining=items)

    third = Desk(checkpoints=store, checkpoint_id="k", resume=resume)
    for item in ("a", "b", "c"):
        third.gate(item).set()
    async with third.loop as loop:
        loop.stop(when_idle_for=1)
        while len(third.ended) < 3:
            await drain_ready_tasks()
        clock.advance(1)
        exit = await loop.wait(100)
    assert resumed == [(("a",), ["b", "c"])]
    assert exit.handled == 3
    assert await store.load("k") is None, "used up, it was deleted"

    await store.save("k", "{ half a checkpoi")
    broken = Desk(checkpoints=store, checkpoint_id="k")
    broken.loop.push("a")
    async with broken.loop as loop:
        exit = await loop.wait(100)
    assert "'k'" in str(exit.reason)
    assert exit.unhandled == ["a"]
    assert store.aside[0][1] == "{ half a checkpoi", "set aside, not deleted"

    class Failing(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            raise OSError("disk full")

    failing = Desk(checkpoints=Failing(), checkpoint_id="k")
    async with failing.loop as loop:
        loop.push("a")
        await failing.until("a")
        loop.stop(at=StopAt.NOW)
        exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.checkpoint.status) == (None, ["a"], "failed")
    assert "disk full" in str(exit.checkpoint.error)


async def test_17_invalid_options_fail_at_the_call() -> None:
    """Invalid options (`within <= 0`, `when_idle_for <= 0`, preempt at turn end) fail at the call."""
    loop = Desk().loop
    wrong: list[Callable[[], object]] = [
        lambda: loop.stop(at=StopAt.SAFE_POINT, within=0),
        lambda: loop.stop(at=StopAt.SAFE_POINT, within=-1),
        lambda: loop.stop(when_idle_for=0),
        lambda: loop.stop(when_idle_for=-1),
        lambda: loop.stop(at=StopAt.NOW, when_idle_for=1),
        lambda: loop.push("a", preempt=StopAt.TURN_END),
        lambda: loop.push("a", preempt=StopAt.NOW, within=0),
        lambda: loop.preempt(StopAt.TURN_END),
    ]
    for call in wrong:
        with pytest.raises(ValueError):
            call()
    assert loop.waiting == ()
    loop.push("a")
    loop.stop()
    loop.start()
    assert (await loop.wait()).unhandled == ["a"]


async def test_18_the_buffer_keeps_order_loses_no_wake_up_and_stays_readable_when_closed() -> None:
    """The buffer: put back at the front keeps order; wake-ups lose no item; closing keeps what is inside readable."""
    woken: list[None] = []
    inbox: Inbox[str] = Inbox(lambda: woken.append(None))
    for item in ("c", "d"):
        assert inbox.put(item) == "accepted"
    inbox.put_front(["a", "b"])
    assert inbox.peek() == ["a", "b", "c", "d"]
    assert len(woken) == 2, "every push wakes"
    assert inbox.take(1) == ["a"]
    inbox.close()
    assert inbox.put("late") == "closed"
    inbox.put_front(["a"])
    assert inbox.take() == ["a", "b", "c", "d"]
    assert inbox.take() == []

    desk = Desk()
    for item in ("x", "y", "z"):
        desk.gate(item).set()
    async with desk.loop as loop:
        for item in ("x", "y", "z"):
            await asyncio.to_thread(loop.push, item)
        while len(desk.ended) < 3:
            await drain_ready_tasks()
        loop.stop()
        assert (await loop.wait()).handled == 3
    assert desk.began == ["x", "y", "z"]
