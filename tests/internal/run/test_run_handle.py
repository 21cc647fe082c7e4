"""A run in the hand: it starts when somebody wants it, can be stopped at any moment, and leaves nothing behind."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from safepoint.abort import AbortController, AbortReason, AbortSignal
from safepoint.abort.guard import Ambient
from safepoint.errors import UsageError
from safepoint.events import Event
from safepoint.run import Aborted, Completed, Context, Failed, Outcome, Receipt, StopAt, TimedOut
from safepoint.run.run_handle import RunHandle
from safepoint.testing import FakeClock, drain_ready_tasks

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


class Run(RunHandle[str, Outcome[str]]):
    """The least that can run."""

    def __init__(
        self,
        body: Callable[[Context], Awaitable[str]],
        *,
        signal: AbortSignal | None = None,
        timeout: float | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__("run", signal=signal, timeout=timeout, run_id=run_id, origin=None)
        self.body = body
        self.results = 0

    async def _work(self, ctx: Context, value: None, /) -> str:
        return await self.body(ctx)

    async def _result(self, outcome: Outcome[str]) -> Outcome[str]:
        self.results += 1
        return outcome


async def quick(ctx: Context) -> str:
    for number in range(3):
        ctx.progress(f"step {number}")
        await asyncio.sleep(0)
    return "done"


class Slow:
    """Work that waits until it is aborted, and takes its time to leave if `stubborn`."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.began = asyncio.Event()
        self.leave = asyncio.Event()
        self.stubborn = stubborn
        self.left = False

    async def __call__(self, ctx: Context) -> str:
        self.began.set()
        await ctx.signal.wait_async()
        if self.stubborn:
            await self.leave.wait()
        self.left = True
        return "late"


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


async def test_it_starts_with_the_first_await_and_runs_once():
    calls: list[str] = []

    async def body(ctx: Context) -> str:
        calls.append("body")
        return "done"

    run = Run(body)
    await drain_ready_tasks()
    assert calls == []
    assert not run.finished
    assert (await run).unwrap() == "done"
    assert run.finished
    assert (await run).unwrap() == "done"
    assert calls == ["body"]
    assert run.results == 1


async def test_id_and_signal_are_there_before_it_starts():
    run = Run(quick)
    assert run.id
    assert not run.signal.aborted
    assert run.id != Run(quick).id
    assert Run(quick, run_id="r7").id == "r7"
    assert isinstance(await run, Completed)


async def test_it_can_be_stopped_before_it_starts_and_then_does_nothing():
    began: list[Context] = []

    async def body(ctx: Context) -> str:
        began.append(ctx)
        return "done"

    run = Run(body)
    ack = run.stop(reason="changed my mind")
    assert ack.status == "accepted"
    assert ack.id == run.id
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "changed my mind"
    assert outcome.reason.origin is not None
    assert outcome.reason.origin.split(":")[0].endswith("test_run_handle.py")
    assert began == []


async def test_a_stop_is_acknowledged_by_what_it_found():
    slow = Slow()
    run = Run(slow)
    async with run:
        await slow.began.wait()
        first = run.stop(StopAt.SAFE_POINT, reason="enough")
        assert (first.status, first.message) == ("accepted", "stops at SAFE_POINT")
        assert not run.signal.aborted
        same = run.stop(StopAt.SAFE_POINT)
        assert (same.status, same.message) == ("already_stopping", "is stopping already")
        harder = run.abort("now")
        assert (harder.status, harder.message) == ("already_stopping", "is stopping; now at NOW")
        outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "enough"  # the oldest reason wins
    late = run.stop()
    assert (late.status, late.level) == ("already_finished", "settled")
    assert isinstance(await late.settled(1), Receipt)


async def test_a_run_whose_signal_was_aborted_by_the_caller_is_already_stopping():
    controller = AbortController()
    slow = Slow()
    async with Run(slow, signal=controller.signal) as run:
        await slow.began.wait()
        controller.abort("closed")
        assert run.stop().status == "already_stopping"
        outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "closed"


async def test_a_wrong_stop_is_refused_and_changes_nothing():
    slow = Slow()
    async with Run(slow) as run:
        await slow.began.wait()
        with pytest.raises(UsageError):
            run.stop("now")  # type: ignore[arg-type]
        with pytest.raises(UsageError):
            run.stop(within=-1)
        assert run.stop(StopAt.SAFE_POINT).status == "accepted"


async def test_settled_gives_the_receipt_or_a_timeout_error(clock: FakeClock):
    slow = Slow(stubborn=True)
    async with Run(slow) as run:
        await slow.began.wait()
        ack = run.abort("enough")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_error_of(ack.settled(timeout=2.0)))
            await drain_ready_tasks()
            clock.advance(2.0)
        assert isinstance(waiting.result(), TimeoutError)
        assert not run.finished  # whoever waited has gone, the run has not
        slow.leave.set()
        receipt = await ack.settled()
        assert receipt.reason is not None
        assert receipt.reason.message == "enough"
        assert run.finished


async def _error_of(awaitable: Awaitable[object]) -> BaseException | None:
    try:
        await awaitable
    except Exception as error:
        return error
    return None


async def test_settled_of_a_run_that_never_started_ends_it():
    run = Run(quick)
    receipt = await run.abort("enough").settled(1)
    assert receipt.reason is not None
    assert run.finished


async def test_a_safe_point_that_is_not_reached_within_its_time_is_not_waited_for(clock: FakeClock):
    slow = Slow()
    async with Run(slow) as run:
        await slow.began.wait()
        ack = run.stop(within=3.0, reason="enough")
        clock.advance(2.9)
        assert not run.signal.aborted
        clock.advance(0.1)
        outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.receipt.escalated
    assert (await ack.settled()).escalated
    assert clock.pending == 0


async def test_a_run_that_ends_before_its_limit_leaves_no_timer(clock: FakeClock):
    gate = asyncio.Event()

    async def body(ctx: Context) -> str:
        await gate.wait()
        return "done"

    async with Run(body) as run:
        run.stop(within=3.0)
        gate.set()
        assert isinstance(await run, Completed)
    assert clock.pending == 0


async def test_iterating_gives_all_events_and_the_terminal_one_is_the_last():
    run = Run(quick)
    events = [event async for event in run]
    assert kinds(events) == ["run_started", *["progress_made"] * 3, "run_ended"]
    assert {event.run_id for event in events} == {run.id}
    assert (await run).unwrap() == "done"
    assert [event async for event in run] == []


async def test_events_are_not_lost_while_nobody_reads():
    async with Run(quick) as run:
        await drain_ready_tasks()
        assert kinds([event async for event in run])[-1] == "run_ended"


async def test_breaking_out_of_the_events_leaves_nothing_behind():
    slow = Slow()
    run = Run(slow)
    async for event in run:
        assert event.kind == "run_started"
        break
    async with asyncio.timeout(5):
        while not run.finished:
            await asyncio.sleep(0)
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "disconnected"
    await drain_ready_tasks()  # the loop closes the iteration in a task of its own


async def test_leaving_the_with_block_early_aborts_and_waits_for_the_end():
    slow = Slow()
    async with Run(slow) as run:
        await slow.began.wait()
    assert run.finished
    assert slow.left
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "disconnected"


async def test_an_error_in_the_with_block_comes_out_and_the_run_has_ended():
    slow = Slow()
    with pytest.raises(LookupError):
        async with Run(slow) as run:
            await slow.began.wait()
            raise LookupError("mine")
    assert run.finished


async def test_cancelling_whoever_awaits_it_aborts_it_waits_and_comes_out():
    slow = Slow(stubborn=True)
    run = Run(slow)
    waiting = asyncio.ensure_future(_await(run))
    await slow.began.wait()
    waiting.cancel()
    await drain_ready_tasks()
    assert run.signal.reason is not None
    assert run.signal.reason.kind == "parent"
    assert not waiting.done()  # no child outlives its parent
    slow.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert run.finished
    assert isinstance(await run, Aborted)


async def test_whoever_is_cancelled_a_second_time_leaves_at_once():
    slow = Slow(stubborn=True)
    run = Run(slow)
    waiting = asyncio.ensure_future(_await(run))
    await slow.began.wait()
    waiting.cancel()
    await drain_ready_tasks()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not run.finished
    slow.leave.set()
    assert isinstance(await run, Aborted)


async def _await(run: Run) -> Outcome[str]:
    return await run


async def test_under_an_aborted_signal_only_the_terminal_event_comes():
    run = Run(quick, signal=AbortSignal.already("closed"))
    assert kinds([event async for event in run]) == ["run_ended"]
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "closed"


async def test_the_ambient_signal_is_inherited_unless_one_is_given():
    around = AbortController()
    with Ambient(around.signal):
        inherits, apart = Run(quick), Run(quick, signal=AbortSignal.never())
    around.abort("all of you")
    assert inherits.signal.aborted
    assert not apart.signal.aborted
    assert isinstance(await inherits, Aborted)
    assert isinstance(await apart, Completed)


async def test_a_deadline_gives_timed_out_and_counts_from_the_call(clock: FakeClock):
    slow = Slow()
    run = Run(slow, timeout=5.0)
    clock.advance(4.0)
    async with run:
        await slow.began.wait()
        clock.advance(1.0)
        outcome = await run
    assert isinstance(outcome, TimedOut)
    assert outcome.reason.kind == "deadline"
    assert clock.pending == 0


async def test_a_failure_is_an_outcome():
    async def body(ctx: Context) -> str:
        raise LookupError("lost")

    outcome = await Run(body)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, LookupError)


async def test_any_thread_may_stop_it():
    slow = Slow()
    async with Run(slow) as run:
        await slow.began.wait()
        thread = threading.Thread(target=run.abort, args=(AbortReason("shutdown", "from a thread"),))
        thread.start()
        outcome = await run
        thread.join(5)
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "shutdown"


async def test_every_reader_of_the_events_comes_to_an_end():
    """Two at once share the events; none of them may wait for ever."""
    gate = asyncio.Event()

    async def body(ctx: Context) -> str:
        await gate.wait()
        return "done"

    async def read(run: Run) -> list[Event]:
        return [event async for event in run]

    run = Run(body)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        readers = [group.create_task(read(run)) for _ in range(2)]
        await drain_ready_tasks()
        gate.set()
    assert sorted(event.kind for reader in readers for event in reader.result()) == ["run_ended", "run_started"]
