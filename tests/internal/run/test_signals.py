"""Ctrl-C as a press of Stop: the first waits, the second does not, the third interrupts; a double one is one."""

import asyncio
import os
import signal
import threading

import pytest

from safepoint.abort import AbortController, AbortReason
from safepoint.errors import UsageError
from safepoint.run import Aborted, Context, leaf
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.internal.run.test_run_handle import Run

SECONDS = 10.0


class Deaf:
    """A run whose one leaf is inside a library, in a thread, until it is let go."""

    def __init__(self) -> None:
        self.inside, self.let_go, self.out = threading.Event(), threading.Event(), threading.Event()
        self.run = Run(lambda ctx: leaf(ctx, self._wait, name="deaf"))

    def _wait(self, ctx: Context, value: object) -> str:
        self.inside.set()
        try:
            self.let_go.wait(SECONDS)
        finally:
            self.out.set()
        return "late"

    async def begin(self) -> "asyncio.Task[object]":
        task = asyncio.ensure_future(self.run._wait())
        assert await asyncio.to_thread(self.inside.wait, SECONDS)
        while not self.let_go._cond._waiters:  # type: ignore[attr-defined]  # before that it is in its own code
            await asyncio.sleep(0.001)  # real time: a thread on its way into a lock
        return task

    async def end(self) -> None:
        self.let_go.set()
        assert await asyncio.to_thread(self.out.wait, SECONDS)
        await drain_ready_tasks()


async def heard(condition: object) -> None:
    """The handler stops the run in another thread: wait until it has."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.001)  # real time: a thread that nobody can wait for


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "counts as the same" in record.getMessage()]


async def test_the_first_signal_stops_the_second_leaves_and_the_third_interrupts(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    deaf = Deaf()
    task = await deaf.begin()
    with deaf.run.on_signals(signal.SIGUSR1):
        os.kill(os.getpid(), signal.SIGUSR1)
        await heard(lambda: deaf.run.signal.aborted)
        await drain_ready_tasks()
        assert not task.done()
        await clock.elapse(0.9)
        os.kill(os.getpid(), signal.SIGUSR1)  # a double click is one press
        await heard(lambda: hints(caplog))  # it is logged by a thread, which must not outlive this test
        assert deaf.run._ctx.stop.request.abandon is None
        await clock.elapse(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)
        outcome = await asyncio.wait_for(task, SECONDS)
        assert isinstance(outcome, Aborted)
        assert outcome.reason == AbortReason("shutdown", "SIGUSR1")
        assert outcome.reason.origin is not None
        assert outcome.reason.origin.startswith(f"{__file__}:")
        (entry,) = outcome.receipt.still_running
        assert entry.name == "run/deaf"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGUSR1)
    await deaf.end()


async def test_whoever_presses_again_too_early_is_told_once_what_the_next_press_does(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    deaf = Deaf()
    task = await deaf.begin()
    with deaf.run.on_signals(signal.SIGUSR1):
        signal.raise_signal(signal.SIGUSR1)
        await heard(lambda: deaf.run.signal.aborted)
        assert hints(caplog) == []
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
        await heard(lambda: hints(caplog))
        assert not task.done()
        assert deaf.run._ctx.stop.request.abandon is None
        await clock.elapse(1)
        signal.raise_signal(signal.SIGUSR1)
        assert isinstance(await asyncio.wait_for(task, SECONDS), Aborted)
    [told] = hints(caplog)
    assert told.startswith("SIGUSR1: the run is being stopped; a press within 1 s of the first one counts as the same.")
    assert "Press again to go on without what ignores the stop" in told
    await deaf.end()


async def test_ctrl_c_is_a_users_stop_and_the_handlers_come_back(clock: FakeClock):
    before = signal.getsignal(signal.SIGINT)
    deaf = Deaf()
    task = await deaf.begin()
    with deaf.run.on_signals(signal.SIGINT, signal.SIGRTMIN):
        assert signal.getsignal(signal.SIGINT) is not before
        signal.raise_signal(signal.SIGINT)
        await heard(lambda: deaf.run.signal.aborted)
        await deaf.end()
        outcome = await asyncio.wait_for(task, SECONDS)
        assert isinstance(outcome, Aborted)
        assert outcome.reason == AbortReason("user", "SIGINT")
    assert signal.getsignal(signal.SIGINT) is before


async def test_a_signal_that_has_a_number_only_is_named_by_it(clock: FakeClock):
    deaf = Deaf()
    task = await deaf.begin()
    with deaf.run.on_signals(signal.SIGRTMIN + 1):
        signal.raise_signal(signal.SIGRTMIN + 1)
        await heard(lambda: deaf.run.signal.aborted)
    await deaf.end()
    await task
    assert deaf.run.signal.reason is not None
    assert deaf.run.signal.reason.message == f"signal {signal.SIGRTMIN + 1}"


async def test_a_signal_while_the_stop_is_being_changed_does_not_wait_for_itself(clock: FakeClock):
    deaf = Deaf()
    task = await deaf.begin()
    with deaf.run.on_signals(signal.SIGUSR1):
        with deaf.run._ctx.stop._lock:
            signal.raise_signal(signal.SIGUSR1)  # the handler runs here, in the thread that holds the lock
        await heard(lambda: deaf.run.signal.aborted)
    await deaf.end()
    await task


async def test_a_signal_after_the_end_of_the_run_does_nothing(clock: FakeClock):
    async def quick(ctx: Context) -> str:
        return "done"

    run = Run(quick)
    with run.on_signals(signal.SIGUSR1):
        await run
        signal.raise_signal(signal.SIGUSR1)
        await drain_ready_tasks()
    assert not AbortController(run.signal).signal.aborted


async def test_it_needs_a_signal_and_the_main_thread():
    async def quick(ctx: Context) -> str:
        return "done"

    run = Run(quick)
    with pytest.raises(UsageError, match="at least one"), run.on_signals():
        pass

    def elsewhere() -> None:
        with pytest.raises(UsageError, match="main thread"), run.on_signals(signal.SIGUSR1):
            pass

    await asyncio.to_thread(elsewhere)
