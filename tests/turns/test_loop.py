"""Owns the tests of a loop's commands: legal at any time and from anywhere, and clear when they make no sense."""

import asyncio
import functools
import gc
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from safepoint import AbortController, UsageError
from safepoint.events import LoopStopping, TurnPreempted, TurnStarted
from safepoint.run import Context, MemoryCheckpoints, StopAt
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import Preempt, Pushed, Turn, TurnLoop, TurnPlan
from tests.conftest import counts
from tests.kit.turn_loops import ControlledTurns, balanced

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


async def plan(items: list[Any]) -> TurnPlan[Any]:
    return TurnPlan(nothing, items)


async def nothing(ctx: Context, value: object) -> object:
    return value


class Hearing:
    """A listener that nobody awaits."""

    async def __call__(self, event: object) -> None:
        """Never runs."""


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_id": "k"},
        {"checkpoints": MemoryCheckpoints()},
        {"max_items": 0},
        {"batch": 0},
        {"on_event": plan},
        {"on_event": functools.partial(plan)},
        {"on_event": Hearing()},
        {"checkpoints": MemoryCheckpoints(), "checkpoint_id": "k", "item_type": threading.Lock},
    ],
    ids=lambda options: ",".join(options),
)
def test_what_makes_no_sense_is_refused_when_the_loop_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        TurnLoop(plan, **options)


WRONG: list[Callable[[TurnLoop[str]], object]] = [
    lambda loop: loop.stop("now"),  # type: ignore[arg-type]
    lambda loop: loop.stop(within=0),
    lambda loop: loop.stop(when_idle_for=-1),
    lambda loop: loop.stop(at=StopAt.NOW, when_idle_for=1),
    lambda loop: loop.stop(within=1, when_idle_for=1),
    lambda loop: loop.push("a", preempt=StopAt.TURN_END),
    lambda loop: loop.push("a", within=1),
    lambda loop: loop.push("a", delay=1),
    lambda loop: loop.push("a", preempt=Preempt(StopAt.NOW), within=1),
    lambda loop: loop.push("a", preempt="now"),  # type: ignore[arg-type]
    lambda loop: loop.push("a", preempt=lambda turn: "now"),  # type: ignore[arg-type,return-value]
    lambda loop: loop.preempt(StopAt.TURN_END),
    lambda loop: loop.pause(at="now"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", WRONG, ids=range(len(WRONG)))
async def test_a_command_that_makes_no_sense_is_refused_and_changes_nothing(
    call: Callable[[TurnLoop[str]], object],
) -> None:
    desk = ControlledTurns()
    with pytest.raises(ValueError):
        call(desk.loop)
    assert desk.loop.waiting == ()
    desk.auto = True
    async with desk.loop:
        desk.push("b")
        await drain_ready_tasks()
    assert (await desk.exit()).handled == 1


async def test_a_push_says_why_it_was_refused(clock: FakeClock) -> None:
    desk = ControlledTurns(max_items=1)
    desk.push("a")
    full = desk.loop.push("b", preempt=StopAt.NOW)
    assert (bool(full), full.ack is not None and full.ack.status, "max_items=1" in full.why) == (
        False,
        "no_turn",
        True,
    )
    desk.loop.stop()
    late = desk.push("c")
    assert "stopped" in late.why
    desk.loop.start()
    assert (await desk.exit()).unhandled == ["a"], "what found no room is not late: it may be pushed again"


async def test_put_waits_for_room_in_order_and_gets_an_answer_when_the_loop_stops() -> None:
    desk = ControlledTurns(max_items=1, batch=1)
    async with desk.loop, asyncio.TaskGroup() as group:
        desk.push("a")
        await desk.running("a")
        desk.push("b")
        waiting = [group.create_task(desk.loop.put(item)) for item in ("c", "d", "e")]
        await drain_ready_tasks()
        assert desk.loop.waiting == ("b",)
        await desk.finish("a")
        await desk.finish("b")
        assert desk.loop.waiting == ("d",)
        desk.loop.stop(at=StopAt.NOW)
    answers = [task.result() for task in waiting]
    assert [answer.accepted for answer in answers] == [True, True, False]
    exit = await desk.loop.wait()
    balanced(exit, ["a", "b", "c", "d"])
    assert (exit.late, exit.interrupted, exit.unhandled) == (["e"], ["c"], ["d"])


async def test_put_tries_again_when_another_thread_took_the_room() -> None:
    """With eight threads between, a put is answered `accepted` or `closed`, never `no room`."""
    loop: TurnLoop[str] = TurnLoop(plan, max_items=2)
    going = True

    def crowd() -> None:
        while going:
            loop.push("crowd")

    threads = [threading.Thread(target=crowd) for _ in range(2)]
    async with loop:
        for thread in threads:
            thread.start()
        try:
            for _ in range(counts(50, 2000)):
                async with asyncio.timeout(30):
                    assert await loop.put("mine")
        finally:
            going = False
            for thread in threads:
                thread.join()


async def test_an_item_can_be_taken_out_of_the_queue_until_a_turn_has_it() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        for item in ("a", "b", "c"):
            desk.push(item)
        await desk.running("a")
        assert desk.loop.remove("b")
        assert not desk.loop.remove("b")
        assert not desk.loop.remove("a"), "its turn runs"
        await desk.finish("a")
        await desk.finish("c")
    exit = await desk.exit()
    assert (exit.dropped, exit.handled, desk.began) == (["b"], 2, ["a", "c"])


async def test_a_strategy_looks_at_the_turn_and_decides() -> None:
    desk = ControlledTurns()
    seen: list[list[str] | None] = []

    def decide(turn: Turn[str] | None) -> Preempt | None:
        seen.append(None if turn is None else turn.consumed)
        return Preempt(StopAt.NOW) if turn is not None and "old" in turn.consumed else None

    async with desk.loop:
        idle = desk.push("old", preempt=decide, within=5)
        assert idle.ack is None, "it decided against it; then how long does not matter"
        await desk.running("old")
        assert desk.push("new", preempt=decide).ack is not None
        await desk.running("new")
        assert desk.push("newer", preempt=decide).ack is None
        await desk.finish("new")
        await desk.finish("newer")
    exit = await desk.exit()
    assert (seen, exit.preempted, exit.handled) == ([None, ["old"], ["new"]], ["old"], 2)


async def test_a_strategy_that_breaks_breaks_the_push_and_nothing_else() -> None:
    desk = ControlledTurns()
    desk.auto = True
    async with desk.loop:
        with pytest.raises(ZeroDivisionError):
            desk.loop.push("a", preempt=lambda turn: 1 / 0)  # type: ignore[arg-type,return-value]
        desk.push("b")
        await drain_ready_tasks()
    assert (await desk.exit()).handled == 1


async def test_commands_are_legal_from_inside_of_everything() -> None:
    """Push and stop from a plan, from work and from `on_event`."""
    answers: list[Pushed] = []

    async def plans(items: list[str]) -> TurnPlan[str]:
        if items == ["a"]:
            answers.append(loop.push("b"))
        return TurnPlan(works, items)

    async def works(ctx: Context, items: list[str]) -> None:
        if items == ["b"]:
            answers.append(loop.push("c"))

    def hears(event: Any) -> None:
        if event.kind == "turn_started" and len(answers) == 2:
            answers.append(loop.push("d"))
            loop.stop()
            answers.append(loop.push("late"))

    loop = TurnLoop(plans, on_event=hears)
    loop.push("a")
    loop.start()
    exit = await loop.wait(10)
    assert [bool(answer) for answer in answers] == [True, True, True, False]
    balanced(exit, ["a", "b", "c", "d"])
    assert (exit.handled, exit.unhandled, exit.late) == (3, ["d"], ["late"])


async def test_a_turn_cannot_wait_for_its_own_loop() -> None:
    async def waits(ctx: Context, value: object) -> None:
        await loop.wait()

    async def plans(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(waits)

    loop = TurnLoop(plans)
    async with loop:
        loop.push("a")
        await drain_ready_tasks()
    assert (await loop.wait()).failed == ["a"]


async def test_a_stop_is_answered_at_once_and_settles_with_the_receipt_of_the_turn() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        ack = desk.loop.stop(at=StopAt.NOW, reason="enough")
        assert (ack.status, desk.loop.stop().status) == ("accepted", "already_stopping")
        receipt = await ack.settled(5)
    assert {entry.name: entry.fate for entry in receipt.entries} == {"work/work": "stopped"}
    assert desk.loop.stop().status == "already_finished"
    assert await desk.loop.stop().settled(5) == receipt


async def test_a_stop_of_an_idle_loop_does_not_settle_with_the_receipt_of_an_earlier_turn() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.preempt(StopAt.NOW)
        await drain_ready_tasks()
        assert desk.loop.turn is None
        receipt = await desk.loop.stop(at=StopAt.NOW, reason="enough").settled(5)
    assert receipt.entries == ()
    assert receipt.reason is not None
    assert receipt.reason.message == "enough"


async def test_settled_gives_up_after_its_time_and_the_stop_goes_on(clock: FakeClock) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        ack = desk.loop.stop()
        waiting = asyncio.ensure_future(ack.settled(5))
        await clock.elapse(5)
        with pytest.raises(TimeoutError):
            await waiting
        assert not desk.loop.finished
        await desk.finish("a")
        await ack.settled(5)


async def test_leaving_the_block_by_an_error_stops_now_and_by_the_end_lets_the_turn_finish() -> None:
    desk = ControlledTurns()
    with pytest.raises(ZeroDivisionError):
        async with desk.loop:
            desk.push("a")
            await desk.running("a")
            raise ZeroDivisionError
    assert (await desk.exit()).interrupted == ["a"]

    desk = ControlledTurns()
    async with asyncio.TaskGroup() as group:
        async with desk.loop:
            desk.push("a")
            await desk.running("a")
            group.create_task(desk.finish("a"))
    assert (await desk.exit()).handled == 1


async def test_whoever_is_told_to_go_while_the_block_ends_leaves_no_turn_behind() -> None:
    desk = ControlledTurns()

    async def use() -> None:
        async with desk.loop:
            desk.push("a")
            await desk.running("a")

    task = asyncio.ensure_future(use())
    await desk.running("a")
    await drain_ready_tasks()
    assert not task.done(), "it waits for the turn"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.loop.finished
    assert (await desk.exit()).interrupted == ["a"]


async def test_an_outside_signal_ends_the_loop_as_a_stop_now_does() -> None:
    outside = AbortController()
    desk = ControlledTurns(signal=outside.signal)
    async with desk.loop:
        desk.push("a")
        desk.push("b")
        await desk.running("a")
        outside.abort("closing time")
        desk.push("late")
        exit = await desk.exit()
    assert (exit.reason, exit.interrupted, exit.unhandled, exit.late) == (None, ["a"], ["b"], ["late"])

    idle = ControlledTurns(signal=(outside := AbortController()).signal)
    async with idle.loop:
        await drain_ready_tasks()
        await asyncio.to_thread(outside.abort)
        await idle.exit()


async def test_the_loop_tells_what_was_asked_of_it() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.preempt(StopAt.AFTER_TOOLS)
        desk.loop.stop(reason="deploy")
        desk.loop.stop(reason="deploy")
        desk.loop.stop(at=StopAt.NOW)
    told = [event for event in desk.events if isinstance(event, TurnPreempted | LoopStopping)]
    assert [event.at_point for event in told] == ["AFTER_TOOLS", "TURN_END", "NOW"], "what changed nothing is not told"
    assert {event.cause for event in told if isinstance(event, LoopStopping)} == {"deploy"}
    assert {event.run_id for event in told} == {desk.loop.id}


async def test_a_preempt_is_told_when_it_happens_and_not_when_it_is_asked_for(clock: FakeClock) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        never = desk.loop.preempt(StopAt.NOW, delay=60)
        await desk.finish("a")
        assert (await never, "turn_preempted" in desk.kinds()) == ("turn_over", False)
        desk.push("b")
        await desk.running("b")
        desk.loop.preempt(StopAt.NOW, delay=5)
        await clock.elapse(4.9)
        assert "turn_preempted" not in desk.kinds()
        await clock.elapse(0.2)
    told = [event for event in desk.events if isinstance(event, TurnPreempted)]
    turns = [event.turn_id for event in desk.events if isinstance(event, TurnStarted)]
    assert [(event.turn_id, event.at_point, event.at) for event in told] == [(turns[1], "NOW", clock.time() - 0.1)]
    assert desk.kinds().index("turn_preempted") < len(desk.kinds()) - 1 - desk.kinds()[::-1].index("turn_ended")


async def test_a_preempt_of_a_turn_that_is_planned_is_told_when_that_turn_begins() -> None:
    desk = ControlledTurns()
    desk.hold = asyncio.Event()
    async with desk.loop:
        desk.push("a")
        await drain_ready_tasks()
        desk.loop.preempt(StopAt.AFTER_TOOLS)
        await drain_ready_tasks()
        assert "turn_preempted" not in desk.kinds()
        desk.hold.set()
        await desk.running("a")
        assert "turn_preempted" in desk.kinds()
        await desk.finish("a")


@pytest.mark.parametrize("kind", ["coroutine", "awaitable"])
async def test_a_listener_whose_answer_nobody_would_await_ends_the_loop_with_a_clear_error(kind: str) -> None:
    """An event that is dropped without a word is worse than an end that says why."""

    async def hears(event: object) -> None:
        """Never runs."""

    class Awaitable:
        def __await__(self) -> Generator[Any, None, None]:
            yield

    loop = TurnLoop(plan, on_event=lambda event: hears(event) if kind == "coroutine" else Awaitable())
    loop.push("a")
    loop.start()
    exit = await loop.wait(10)
    assert isinstance(exit.reason, UsageError)
    assert "on_event" in str(exit.reason)


async def test_a_listener_may_begin_a_task_of_its_own_which_runs_by_itself() -> None:
    heard: list[str] = []

    async def hears(event: Any) -> None:
        heard.append(event.kind)

    loop = TurnLoop(plan, on_event=lambda event: asyncio.ensure_future(hears(event)))
    async with loop:
        loop.push("a")
        await drain_ready_tasks()
    assert (await loop.wait()).reason is None
    assert "turn_ended" in heard


async def test_what_a_thread_of_its_own_reports_is_heard_in_the_thread_of_the_loop() -> None:
    heard: list[tuple[str, int]] = []

    async def works(ctx: Context, value: object) -> None:
        thread = threading.Thread(target=ctx.progress, args=("from a thread",))
        thread.start()
        await asyncio.to_thread(thread.join)

    async def plans(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(works)

    loop = TurnLoop(plans, on_event=lambda event: heard.append((event.kind, threading.get_ident())))
    async with loop:
        loop.push("a")
        await drain_ready_tasks()
    assert "progress_made" in [kind for kind, _ in heard]
    assert {thread for _, thread in heard} == {threading.get_ident()}


def test_a_stop_settles_in_the_event_loop_of_another_thread() -> None:
    """`stop()` may come from any thread: so whoever waits for its end there must be woken there."""
    desk_ready, desk_holder = threading.Event(), list[ControlledTurns]()
    settled: list[object] = []

    async def foreign() -> None:
        ack = desk_holder[0].loop.stop(at=StopAt.NOW)
        async with asyncio.timeout(20):
            settled.append(await ack.settled())

    def other_thread() -> None:
        assert desk_ready.wait(20)
        asyncio.run(foreign())

    async def main() -> None:
        desk = ControlledTurns()
        desk_holder.append(desk)
        thread = threading.Thread(target=other_thread)
        thread.start()
        async with desk.loop:
            desk.push("a")
            await desk.running("a")
            desk_ready.set()
            await asyncio.to_thread(thread.join, 30)

    asyncio.run(main())
    assert len(settled) == 1


async def test_the_idle_stop_is_told_too(clock: FakeClock) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.loop.stop(when_idle_for=5, reason="quiet")
        await clock.elapse(5)
    assert desk.kinds() == ["loop_idle", "loop_stopping"]
    assert (await desk.exit()).stop_cause == "quiet"


async def test_pausing_lets_the_running_turn_end_and_begins_no_other(clock: FakeClock) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        desk.push("b")
        await desk.running("a")
        desk.loop.pause()
        await desk.finish("a")
        assert (desk.loop.turn, desk.loop.waiting) == (None, ("b",))
        assert desk.kinds()[-1] == "turn_ended", "it is paused, not idle: there is something to do"
        desk.loop.resume()
        await desk.running("b")
        await desk.finish("b")
    assert (await desk.exit()).handled == 2


async def test_without_a_resume_function_the_items_of_a_paused_turn_wait_again_before_all_others() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        desk.push("b")
        await desk.running("a")
        desk.loop.pause(at=StopAt.NOW)
        await drain_ready_tasks()
        assert desk.stopped == {"a": "user"}
        desk.loop.resume()
        await drain_ready_tasks()
        assert desk.planned[-1] == ["a", "b"]
        await desk.finish("a")
        await desk.finish("b")
    assert (await desk.exit()).handled == 2


async def test_a_paused_loop_is_not_idle_and_its_time_begins_anew(clock: FakeClock) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        await drain_ready_tasks()
        desk.loop.stop(when_idle_for=10)
        await clock.elapse(9)
        desk.loop.pause()
        await clock.elapse(100)
        assert not desk.loop.finished
        desk.loop.resume()
        await clock.elapse(9)
        assert not desk.loop.finished
        await clock.elapse(1)
        assert desk.loop.finished


async def test_a_pause_after_a_stop_changes_nothing() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.stop()
        desk.loop.pause(at=StopAt.SAFE_POINT)
        await desk.step("a")
        await desk.finish("a")
    assert (await desk.exit()).handled == 1


async def test_a_paused_loop_can_be_stopped() -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.push("a")
        await desk.running("a")
        desk.loop.pause(at=StopAt.NOW)
        await drain_ready_tasks()
        desk.push("b")
        desk.loop.stop()
    exit = await desk.exit()
    assert (exit.interrupted, exit.unhandled) == (["a"], ["b"])


async def test_the_first_idle_time_starts_when_it_is_asked_for(clock: FakeClock) -> None:
    """A loop that has been idle for an hour is not stopped at once: whoever asks for a minute gets a minute."""
    desk = ControlledTurns()
    async with desk.loop:
        await clock.elapse(3600)
        desk.loop.stop(when_idle_for=60)
        await clock.elapse(59)
        assert not desk.loop.finished
        await clock.elapse(1)
        assert desk.loop.finished


async def test_an_idle_stop_that_has_come_to_pass_cannot_be_withdrawn(clock: FakeClock) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        assert not desk.loop.withdraw_idle_stop(), "there is none"
        desk.loop.stop(when_idle_for=5)
        assert desk.loop.withdraw_idle_stop()
        desk.loop.stop(when_idle_for=5)
        await clock.elapse(5)
        assert not desk.loop.withdraw_idle_stop()
        assert desk.loop.stop(when_idle_for=5).status == "already_finished"


async def test_eight_threads_push_while_the_loop_stops_and_the_books_are_exact() -> None:
    for _ in range(counts(10, 300)):
        loop: TurnLoop[str] = TurnLoop(plan)
        answers: list[dict[str, bool]] = [{} for _ in range(8)]
        start = threading.Barrier(9)

        def produce(answer: dict[str, bool], loop: TurnLoop[str] = loop, start: threading.Barrier = start) -> None:
            start.wait()
            for number in range(50):
                item = f"{id(answer)}:{number}"
                answer[item] = bool(loop.push(item, preempt=StopAt.NOW if number % 7 == 0 else None))

        threads = [threading.Thread(target=produce, args=(answer,)) for answer in answers]
        loop.start()
        for thread in threads:
            thread.start()
        await asyncio.to_thread(start.wait)
        for _ in range(5):
            await asyncio.sleep(0)
        loop.stop(at=StopAt.NOW)
        exit = await loop.wait(20)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        accepted = [item for answer in answers for item, taken in answer.items() if taken]
        refused = [item for answer in answers for item, taken in answer.items() if not taken]
        balanced(exit, accepted)
        assert sorted(exit.late) == sorted(refused)


async def test_pushes_near_the_idle_deadline_are_handled_if_they_were_accepted() -> None:
    """In real time, from threads: accepted is handled, refused is late, and nothing between."""
    for _ in range(counts(20, 500)):
        loop: TurnLoop[str] = TurnLoop(plan)
        answers: dict[str, bool] = {}
        loop.start()
        loop.stop(when_idle_for=0.005)

        def produce(answers: dict[str, bool] = answers, loop: TurnLoop[str] = loop) -> None:
            pause = threading.Event()
            for number in range(6):
                pause.wait(0.004)
                answers[str(number)] = bool(loop.push(str(number)))

        threads = [threading.Thread(target=produce) for _ in range(1)]
        for thread in threads:
            thread.start()
        exit = await loop.wait(20)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert exit.handled == sum(answers.values())
        assert exit.unhandled == []
        assert exit.late == [item for item, taken in answers.items() if not taken]


async def test_an_item_that_came_in_the_moment_of_the_idle_deadline_is_handled_and_then_it_is_over(
    clock: FakeClock,
) -> None:
    desk = ControlledTurns()
    async with desk.loop:
        desk.loop.stop(when_idle_for=5)
        await drain_ready_tasks()
        clock.advance(5)  # the loop has been woken, and has not run yet
        desk.push("a")
        await desk.running("a")
        await desk.finish("a")
        await clock.elapse(5)
        exit = await desk.exit()
    assert exit.handled == 1


def test_the_end_of_the_program_is_not_told_again_as_an_error_that_nobody_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def plan(items: list[str]) -> TurnPlan[str]:
            raise SystemExit("bye")

        loop = TurnLoop(plan)
        loop.push("a")
        loop.start()
        await asyncio.Event().wait()

    with pytest.raises(SystemExit, match="bye"):
        asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text
