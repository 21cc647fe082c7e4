"""Owns the tests of the loop's one task: whatever happens in it, every item is in one place at the end."""

import asyncio
import functools
import gc
import weakref
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortError, Completed, Failed, TimedOut, UsageError
from safepoint.events import Event, TurnEnded
from safepoint.run import Context, MemoryCheckpoints, Outcome, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import InterruptedTurn, LoopExit, Turn, TurnLoop, TurnPlan
from tests.kit.turn_loops import ControlledTurns, balanced

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


async def ended(loop: TurnLoop[Any], *items: object) -> LoopExit[Any]:
    """Push these, let it end by itself, look at the books."""
    for item in items:
        assert loop.push(item)
    loop.start()
    await drain_ready_tasks()
    if not loop.finished:
        loop.stop()
    exit = await loop.wait(100)
    balanced(exit, items)
    return exit


async def nothing(ctx: Context, value: object) -> object:
    return value


async def forever(ctx: Context, value: object) -> None:
    await asyncio.get_running_loop().create_future()


async def test_turns_run_one_after_the_other_each_with_its_events(clock: FakeClock) -> None:
    desk = ControlledTurns()
    desk.auto = True
    desk.push("a")
    desk.push("b")
    async with desk.loop:
        await drain_ready_tasks()
        desk.loop.stop()
    exit = await desk.exit()
    turn = ["turn_planned", "turn_started", "turn_ended"]
    assert desk.kinds() == [*turn, *turn, "loop_idle", "loop_stopping"]
    assert [outcome.unwrap() for outcome in desk.outcomes] == ["did a", "did b"]
    assert (exit.handled, exit.reason) == (2, None)


async def test_a_turn_that_fails_is_reported_and_the_loop_goes_on() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        desk.push("b")
        await desk.running("a")
        await desk.fail("a", ValueError("broken"))
        await desk.finish("b")
        desk.loop.stop()
    exit = await desk.exit()
    assert (exit.reason, exit.failed, exit.handled) == (None, ["a"], 1)
    assert isinstance(desk.outcomes[0], Failed)


async def test_a_turn_has_its_own_deadline_and_its_own_signal(clock: FakeClock) -> None:
    controller = AbortController()
    reports: list[Outcome[Any]] = []

    async def plan(items: list[str]) -> TurnPlan[str]:
        if items[0] == "slow":
            return TurnPlan(forever, consumed=items[:1], remaining=items[1:], timeout=5)
        return TurnPlan(forever, consumed=items[:1], remaining=items[1:], signal=controller.signal)

    loop: TurnLoop[str] = TurnLoop(
        plan, on_event=lambda event: reports.append(event.outcome) if isinstance(event, TurnEnded) else None
    )
    async with loop:
        loop.push("slow")
        loop.push("left")
        await clock.elapse(5)
        controller.abort("the visitor left")
        await drain_ready_tasks()
        assert not loop.finished, "it ends that turn, and only that one"
    exit = await loop.wait()
    assert exit.interrupted == ["slow", "left"]
    assert [type(report) for report in reports] == [TimedOut, Aborted]


async def test_a_plan_that_was_aborted_before_it_began_never_begins() -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(desk.work, "never", signal=gone.signal)

    gone = AbortController()
    gone.abort("too late")
    desk = ControlledTurns(plan=plan)
    exit = await ended(desk.loop, "a")
    assert (exit.interrupted, desk.began) == (["a"], [])


async def test_a_work_name_that_breaks_gives_the_items_back() -> None:
    class Odd:
        @property
        def name(self) -> str:
            raise RuntimeError("no name")

        async def __call__(self, ctx: Context, value: object, /) -> None: ...

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(Odd(), remaining=items[1:])

    exit = await ended(TurnLoop(plan), "a", "b")
    assert (str(exit.reason), exit.unhandled) == ("no name", ["a", "b"])


@pytest.mark.parametrize("timeout", [-1, "soon"])
async def test_a_plan_that_makes_no_sense_gives_the_items_back(timeout: Any) -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nothing, remaining=items[1:], timeout=timeout)

    exit = await ended(TurnLoop(plan), "a", "b")
    assert isinstance(exit.reason, UsageError)
    assert exit.unhandled == ["a", "b"]


async def test_a_plan_that_keeps_everything_waiting_is_an_error_and_not_an_endless_loop() -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nothing, remaining=items)

    exit = await ended(TurnLoop(plan), "a", "b")
    assert "for ever" in str(exit.reason)
    assert exit.unhandled == ["a", "b"]


async def test_a_plan_that_is_not_async_is_named() -> None:
    exit = await ended(TurnLoop(lambda items: TurnPlan(nothing)), "a")  # type: ignore[arg-type,return-value]
    assert "plan() must be an async function" in str(exit.reason)


async def test_turns_that_never_wait_let_others_in_between() -> None:
    """Or a stop, asked for by another task, would come after the last item."""
    loop: TurnLoop[int] = TurnLoop(_one_by_one)
    for item in range(1000):
        loop.push(item)
    async with loop:
        for _ in range(10):
            await asyncio.sleep(0)
        loop.stop()
    exit = await loop.wait()
    balanced(exit, range(1000))
    assert 0 < exit.handled < 100


async def _one_by_one(items: list[int]) -> TurnPlan[int]:
    return TurnPlan(nothing, items[0], consumed=items[:1], remaining=items[1:])


async def test_a_function_with_arguments_bound_to_it_is_interrupted_like_any_other() -> None:
    async def wait(gate: asyncio.Event, ctx: Context, value: object) -> None:
        began.set()
        await gate.wait()

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(functools.partial(wait, asyncio.Event()))

    began = asyncio.Event()
    async with TurnLoop(plan) as loop:
        loop.push("a")
        await began.wait()
        loop.stop(at=StopAt.NOW)
        exit = await loop.wait(5)
    assert exit.interrupted == ["a"]


async def test_an_object_that_waits_is_interrupted_like_any_other() -> None:
    class Waits:
        async def __call__(self, ctx: Context, value: object, /) -> None:
            began.set()
            await asyncio.Event().wait()

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(Waits())

    began = asyncio.Event()
    async with TurnLoop(plan) as loop:
        loop.push("a")
        await began.wait()
        loop.stop(at=StopAt.NOW)
        exit = await loop.wait(5)
    assert exit.interrupted == ["a"]


async def test_a_synchronous_function_runs_in_a_thread() -> None:
    def count(ctx: Context, value: str) -> int:
        return len(value)

    async def plan(items: list[str]) -> TurnPlan[str]:
        work: Any = count
        return TurnPlan(work, items[0])

    values: list[object] = []
    loop = TurnLoop(plan, on_event=lambda e: values.append(e.outcome.unwrap()) if isinstance(e, TurnEnded) else None)
    async with loop:
        loop.push("four")
        while not values:
            await asyncio.sleep(0.001)  # real time: a thread works
    assert values == [4]


async def test_a_function_that_only_returns_something_to_await_is_a_clear_failure() -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(lambda ctx, value: nothing(ctx, value))

    reports: list[Outcome[Any]] = []
    loop = TurnLoop(plan, on_event=lambda e: reports.append(e.outcome) if isinstance(e, TurnEnded) else None)
    async with loop:
        loop.push("a")
        while not reports:
            await asyncio.sleep(0.001)  # real time: a thread works
    (report,) = reports
    assert isinstance(report, Failed)
    assert "async def" in str(report.error)


async def test_what_is_still_to_be_done_with_an_outcome_is_done_before_anyone_is_told() -> None:
    order: list[object] = []

    async def then(outcome: Outcome[Any]) -> None:
        order.append(outcome.unwrap())

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nothing, "kept", then=then)

    await ended(TurnLoop(plan, on_event=lambda event: order.append(event.kind)), "a")
    assert order.index("kept") < order.index("turn_ended")


async def test_if_that_fails_the_loop_ends_with_it_and_the_items_are_not_lost() -> None:
    async def then(outcome: Outcome[Any]) -> None:
        raise OSError("disk full")

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nothing, consumed=items[:1], remaining=items[1:], then=then)

    exit = await ended(TurnLoop(plan), "a", "b")
    assert (str(exit.reason), exit.interrupted, exit.unhandled) == ("disk full", ["a"], ["b"])


async def test_a_task_that_is_told_to_go_puts_its_items_into_the_books_once() -> None:
    for phase in ("planning", "active", "saving"):
        store = Slow()
        desk = ControlledTurns(checkpoints=store, checkpoint_id="k")
        desk.hold = asyncio.Event() if phase == "planning" else None
        desk.loop.start()
        desk.push("a")
        desk.push("b")
        await drain_ready_tasks()
        if phase == "saving":
            store.gate.clear()
            desk.loop.stop(at=StopAt.NOW)
            await drain_ready_tasks()
        assert desk.loop._task is not None
        desk.loop._task.cancel()
        await drain_ready_tasks()
        store.gate.set()
        exit = await desk.exit()
        if phase != "saving":
            assert isinstance(exit.reason, asyncio.CancelledError)
            assert (await store.load("k")) is not None, "told to go is not broken: what is left was written down"
        assert exit.accepted == 2


class Slow(MemoryCheckpoints):
    """A store that saves when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def save(self, key: str, text: str) -> None:
        await self.gate.wait()
        await super().save(key, text)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_for_the_program_ends_the_loop_and_gets_through(error: type[BaseException]) -> None:
    exits: list[LoopExit[str]] = []

    async def main() -> None:
        async def plan(items: list[str]) -> TurnPlan[str]:
            raise error("go")

        loop = TurnLoop(plan)
        exits.append(loop._state.exit)
        loop.push("a")
        async with loop:
            await asyncio.Event().wait()

    with pytest.raises(error):
        asyncio.run(main())
    assert exits[0].unhandled == ["a"]


async def test_a_lease_that_cannot_be_given_back_doubles_nothing() -> None:
    class Sticky(MemoryCheckpoints):
        def lease(self, key: str) -> Any:
            return Lease()

    class Lease:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            raise OSError("the lock is stuck")

    desk = ControlledTurns(checkpoints=Sticky(), checkpoint_id="k")
    async with desk.loop:
        desk.push("a")
        desk.push("b")
        await desk.running("a")
        desk.loop.stop(at=StopAt.NOW)
    exit = await desk.exit()
    assert (str(exit.reason), exit.interrupted, exit.unhandled) == ("the lock is stuck", ["a"], ["b"])
    assert exit.checkpoint.status == "saved"


@pytest.mark.backends("asyncio")
async def test_thousands_of_turns_leave_nothing_on_the_loop() -> None:
    turns: list[weakref.ref[Turn[int]]] = []
    outside = AbortController()

    async def plan(items: list[int]) -> TurnPlan[int]:
        assert loop.turn is not None
        turns.append(weakref.ref(loop.turn))
        return TurnPlan(nothing, items[0], signal=outside.signal, timeout=1000)

    loop: TurnLoop[int] = TurnLoop(plan, batch=1, signal=outside.signal)
    exit = await ended(loop, *range(2000))
    assert exit.handled == 2000
    gc.collect()
    assert sum(turn() is not None for turn in turns) <= 1
    assert not loop._state.stop._children


async def test_a_preempt_comes_before_a_pause_and_a_stop_before_both(clock: FakeClock) -> None:
    """The ack said that the turn makes way: then it does not come back when the loop goes on."""
    for first in ("pause", "preempt"):
        desk = ControlledTurns()
        async with desk.loop:
            desk.push("a")
            await desk.running("a")
            if first == "pause":
                desk.loop.pause(at=StopAt.SAFE_POINT)
            ack = desk.push("b", preempt=StopAt.SAFE_POINT).ack
            if first == "preempt":
                desk.loop.pause(at=StopAt.SAFE_POINT)
            assert ack is not None
            assert ack.status == "submitted"
            await desk.step("a")
            desk.loop.resume()
            await desk.running("b")
            await desk.finish("b")
        exit = await desk.exit()
        assert (exit.preempted, exit.handled) == (["a"], 1)


async def test_an_error_in_a_turn_that_was_to_make_way_is_kept() -> None:
    """5.2-11: theirs swallows it."""
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.push("b", preempt=StopAt.SAFE_POINT)
        await desk.fail("a", ValueError("broken on the way out"))
        await desk.finish("b")
    exit = await desk.exit()
    assert (exit.failed, exit.preempted, exit.handled) == (["a"], [], 1)
    assert "broken on the way out" in str(desk.outcomes[0])

    async def spoils(ctx: Context, value: object) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("broken by the interruption")

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(spoils) if items == ["a"] else TurnPlan(nothing)

    began = asyncio.Event()
    reports: list[Outcome[Any]] = []
    loop = TurnLoop(plan, on_event=lambda e: reports.append(e.outcome) if isinstance(e, TurnEnded) else None)
    async with loop:
        loop.push("a")
        await began.wait()
        loop.push("b", preempt=StopAt.NOW)
        await drain_ready_tasks()
    assert (await loop.wait()).preempted == ["a"]
    assert isinstance(reports[0], Aborted)
    assert "broken by the interruption" in str(reports[0].receipt)


async def test_a_stopped_turn_goes_on_after_a_pause_with_what_it_left_behind() -> None:
    seen: list[InterruptedTurn[str]] = []

    async def counts(ctx: Context, value: int) -> int:
        for number in range(value, 10):
            if number == 3 and not seen:
                reached.set()
                await more.wait()
            try:
                await ctx.safe_point()
            except AbortError as error:
                error.partial = number
                raise
        return 10

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(counts, 0)

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        seen.append(stopped)
        return TurnPlan(counts, stopped.partial, consumed=stopped.items, remaining=items)

    reached, more = asyncio.Event(), asyncio.Event()
    async with TurnLoop(plan, resume=resume) as loop:
        loop.push("a")
        await reached.wait()
        loop.pause(at=StopAt.SAFE_POINT)
        more.set()
        await drain_ready_tasks()
        assert loop.turn is None
        loop.resume()
        await drain_ready_tasks()
    assert seen == [InterruptedTurn(("a",), 3)]
    assert (await loop.wait()).handled == 1


async def test_every_completed_turn_is_counted_by_the_items_it_was_about() -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nothing, items)

    reports: list[Outcome[Any]] = []
    loop = TurnLoop(plan, on_event=lambda e: reports.append(e.outcome) if isinstance(e, TurnEnded) else None)
    exit = await ended(loop, "a", "b", "c")
    assert (exit.handled, len(reports)) == (3, 1)
    assert isinstance(reports[0], Completed)


async def test_a_plan_may_do_what_it_likes_with_the_list_it_is_given() -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        items.pop()
        items.clear()
        raise ValueError("no plan")

    assert (await ended(TurnLoop(plan), "a", "b")).unhandled == ["a", "b"]

    async def eats(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(nothing, items.pop(0))

    assert (await ended(TurnLoop(eats), "a", "b")).handled == 2


@pytest.mark.parametrize("kind", ["turn_planned", "turn_started", "run_started", "turn_ended", "loop_idle"])
def test_ctrl_c_in_a_listener_puts_no_item_out_of_the_books(kind: str) -> None:
    loops: list[TurnLoop[str]] = []

    def hears(event: Event) -> None:
        if event.kind == kind:
            raise KeyboardInterrupt

    async def main() -> None:
        async def plan(items: list[str]) -> TurnPlan[str]:
            return TurnPlan(nothing, consumed=items[:1], remaining=items[1:])

        loop = TurnLoop(plan, on_event=hears)
        loops.append(loop)
        loop.push("a")
        loop.push("b")
        async with loop:
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    balanced(loops[0]._state.exit, ["a", "b"])


async def test_a_turn_whose_own_time_is_up_before_it_could_make_way_was_interrupted(clock: FakeClock) -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(desk.work, items[0], consumed=items[:1], remaining=items[1:], timeout=5)

    desk = ControlledTurns(plan=plan)
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.push("b", preempt=StopAt.SAFE_POINT)
        desk.loop.pause(at=StopAt.SAFE_POINT)
        await clock.elapse(5)
        assert isinstance(desk.outcomes[0], TimedOut)
        desk.loop.resume()
        await desk.finish("b")
    exit = await desk.exit()
    assert (exit.interrupted, exit.preempted, exit.handled) == (["a"], [], 1)


class Cashier:
    """Work that pays when it is told to: doing it twice is what must not happen."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.began = asyncio.Event()
        self.paid: list[str] = []

    async def plan(self, items: list[str]) -> TurnPlan[str]:
        return TurnPlan(self.pay, items[0], consumed=items[:1], remaining=items[1:])

    async def pay(self, ctx: Context, item: str) -> str:
        self.began.set()
        await self.ready.wait()
        self.paid.append(item)
        return f"paid {item}"


@pytest.mark.parametrize("how", ["stop", "preempt", "pause"])
async def test_work_that_has_returned_is_handled_whatever_its_signal_says(how: str) -> None:
    """The outcome tells of the stop and keeps the value; books and checkpoint say that nobody need do it again."""
    store, cashier = MemoryCheckpoints(), Cashier()
    kept: dict[str, Any] = {"checkpoints": store, "checkpoint_id": "k", "item_type": str}
    reports: list[Outcome[Any]] = []
    loop = TurnLoop(
        cashier.plan, on_event=lambda e: reports.append(e.outcome) if isinstance(e, TurnEnded) else None, **kept
    )
    async with loop:
        loop.push("a")
        await cashier.began.wait()
        cashier.ready.set()
        getattr(loop, how)(at=StopAt.NOW)
        await drain_ready_tasks()
        loop.resume()
    exit = await loop.wait(10)
    assert (exit.handled, exit.interrupted, exit.preempted) == (1, [], [])
    assert isinstance(reports[0], Aborted)
    assert reports[0].partial == "paid a"
    assert exit.checkpoint.status == "deleted", "nothing is left to go on with"
    assert (await ended(TurnLoop(cashier.plan, **kept))).handled == 0
    assert cashier.paid == ["a"]


async def test_work_that_has_returned_is_handled_when_its_task_is_told_to_go_in_a_clean_up() -> None:
    store, cleaning = MemoryCheckpoints(), asyncio.Event()

    async def works(ctx: Context, item: str) -> str:
        async def cleans() -> None:
            cleaning.set()
            await asyncio.get_running_loop().create_future()

        ctx.on_exit(cleans)
        return "done"

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(works, items[0])

    loop = TurnLoop(plan, checkpoints=store, checkpoint_id="k", item_type=str)
    loop.push("a")
    loop.start()
    await cleaning.wait()
    assert loop._task is not None
    loop._task.cancel()
    exit = await loop.wait(10)
    assert (exit.handled, exit.interrupted) == (1, [])


async def test_a_pause_while_a_turn_is_planned_keeps_it_from_beginning() -> None:
    for at in (StopAt.TURN_END, StopAt.SAFE_POINT, StopAt.NOW):
        desk = ControlledTurns()
        desk.hold = asyncio.Event()
        async with desk.loop:
            for item in ("a", "b"):
                desk.push(item)
            await drain_ready_tasks()
            assert desk.planned == [["a", "b"]]
            desk.loop.pause(at)
            desk.hold.set()
            desk.push("c")
            await drain_ready_tasks()
            assert (desk.began, desk.loop.turn, desk.loop.waiting) == ([], None, ("a", "b", "c"))
            desk.auto = True
            desk.loop.resume()
            await drain_ready_tasks()
        exit = await desk.exit()
        assert (desk.began, exit.handled) == (["a", "b", "c"], 3)


async def test_a_pause_while_a_stopped_turn_is_planned_again_keeps_what_it_left_behind() -> None:
    hold, resumed = asyncio.Event(), list[InterruptedTurn[str]]()

    async def works(ctx: Context, value: int) -> int:
        try:
            await ctx.signal.sleep(1000 if value == 0 else 0)
        except AbortError as error:
            error.partial = value + 1
            raise
        return value

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(works, 0)

    async def resume(stopped: InterruptedTurn[str], items: list[str]) -> TurnPlan[str]:
        resumed.append(stopped)
        await hold.wait()
        return TurnPlan(works, stopped.partial, consumed=stopped.items, remaining=items)

    async with TurnLoop(plan, resume=resume) as loop:
        loop.push("a")
        await drain_ready_tasks()
        loop.pause(StopAt.NOW)
        await drain_ready_tasks()
        loop.resume()
        await drain_ready_tasks()
        assert len(resumed) == 1
        loop.pause()
        hold.set()
        await drain_ready_tasks()
        assert loop.turn is None
        loop.resume()
        await drain_ready_tasks()
    exit = await loop.wait(10)
    assert (resumed, exit.handled) == ([InterruptedTurn(("a",), 1)] * 2, 1)


@pytest.mark.parametrize("at", [None, StopAt.AFTER_TOOLS, StopAt.SAFE_POINT])
async def test_no_stop_waits_for_a_plan_that_hangs(at: StopAt | None) -> None:
    """Planning is no turn: nothing has begun, so there is nothing to let end."""
    left: list[str] = []

    async def hangs(items: list[str]) -> TurnPlan[str]:
        left.append("begun")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left.append("interrupted")
        return TurnPlan(nothing)

    loop: TurnLoop[str] = TurnLoop(hangs)
    async with loop:
        loop.push("a")
        loop.push("b")
        await drain_ready_tasks()
        ack = loop.push("c", preempt=StopAt.NOW).ack
        loop.stop(at)
        exit = await loop.wait(10)
    assert (exit.reason, exit.unhandled, left) == (None, ["a", "b", "c"], ["begun", "interrupted"])
    assert ack is not None
    assert ack.status == "loop_stopped"


@pytest.mark.parametrize(("at", "told"), [(None, "broken by the interruption"), (StopAt.NOW, "None")])
async def test_a_plan_that_breaks_when_it_is_interrupted_loses_no_item(at: StopAt | None, told: str) -> None:
    """As where it breaks by itself beside a stop: only after a stop at once nobody wants to know of it."""

    async def spoils(items: list[str]) -> TurnPlan[str]:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ValueError("broken by the interruption")
        return TurnPlan(nothing)

    loop: TurnLoop[str] = TurnLoop(spoils)
    async with loop:
        loop.push("a")
        await drain_ready_tasks()
        loop.stop(at)
    exit = await loop.wait(10)
    assert (str(exit.reason), exit.unhandled) == (told, ["a"])


async def test_a_stop_while_the_checkpoint_is_written_plans_nothing_more() -> None:
    writing, written = asyncio.Event(), asyncio.Event()

    class Waits(MemoryCheckpoints):
        async def save(self, key: str, text: str) -> None:
            writing.set()
            await written.wait()
            await super().save(key, text)

    desk = ControlledTurns(checkpoints=Waits(), checkpoint_id="k", item_type=str)
    async with desk.loop:
        desk.push("a")
        await writing.wait()
        desk.loop.stop()
        written.set()
    assert ((await desk.exit()).unhandled, desk.planned) == (["a"], [])
