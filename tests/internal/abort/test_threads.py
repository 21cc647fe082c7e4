"""Owns the tests that look inside, beside those of `tests/abort/test_threads.py`.

Functions in threads: an abort ends the await at once, a late end is dropped and counted, threads are given back.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

import pytest

from safepoint.abort import (
    AbandonedThreads,
    AbortController,
    AbortError,
    abandoned_threads,
    run_in_thread,
    threads,
)
from safepoint.testing import drain_ready_tasks
from tests.abort.test_threads import SECONDS
from tests.kit.waiting import wait_until


@pytest.fixture(autouse=True)
def abandoned():
    """How many functions run abandoned and how many late ends were dropped since the test began.

    Each test begins, and leaves, with none running: one that ends in the next test would be counted there.
    """
    wait_until(lambda: abandoned_threads().running == 0)
    begin = abandoned_threads()

    def since():
        now = abandoned_threads()
        return AbandonedThreads(now.running - begin.running, now.dropped - begin.dropped)

    yield since
    wait_until(lambda: abandoned_threads().running == 0)


pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def let_end(gate):
    """Open the gate and hold up the loop until the thread behind it has sent its result and is idle again."""
    idle = threads.idle_threads()
    gate.set()
    wait_until(lambda: threads.idle_threads() > idle)


async def test_a_result_on_its_way_when_the_caller_is_cancelled_is_dropped_and_counted(abandoned):
    began, gate, complaints = threading.Event(), threading.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

    def work():
        began.set()
        gate.wait(SECONDS)

    task = asyncio.create_task(run_in_thread(work))
    assert await asyncio.to_thread(began.wait, SECONDS)
    task.cancel()
    let_end(gate)
    assert abandoned() == AbandonedThreads(0, 0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert abandoned() == AbandonedThreads(0, 1)
    await drain_ready_tasks()
    assert complaints == []


async def test_a_result_that_arrives_together_with_the_abort_is_not_lost(abandoned):
    controller, began, gate = AbortController(), threading.Event(), threading.Event()

    def work():
        began.set()
        gate.wait(SECONDS)
        return "value"

    task = asyncio.create_task(run_in_thread(work, signal=controller.signal))
    assert await asyncio.to_thread(began.wait, SECONDS)
    let_end(gate)
    controller.abort("stop")
    assert await task == "value"
    assert abandoned() == AbandonedThreads(0, 0)


async def test_a_thread_that_is_idle_for_long_ends():
    inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
    done = threading.Event()
    inbox.put(done.set)
    thread = threading.Thread(target=threads.run_jobs, args=(inbox, 0.01), daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, SECONDS)
    assert not thread.is_alive()
    assert done.is_set()
    assert inbox not in threads._idle, "no job is given to the thread that has ended"
    assert await run_in_thread(lambda: "value") == "value"


def test_a_thread_that_was_just_taken_waits_for_its_job():
    class SlowInbox(SimpleQueue):  # type: ignore[type-arg]
        """An inbox in which the job arrives only after the thread's time has passed."""

        late = True

        def get(self, block=True, timeout=None):
            if self.late:
                self.late = False
                raise Empty
            return super().get(block, timeout)

    inbox, done = SlowInbox(), threading.Event()
    inbox.put(done.set)
    threading.Thread(target=threads.run_jobs, args=(inbox,), name="safepoint-worker", daemon=True).start()
    assert done.wait(SECONDS)


def test_a_loop_that_closes_before_the_thread_ends_is_not_missed(caplog):
    began, gate = threading.Event(), threading.Event()

    def work():
        began.set()
        gate.wait(SECONDS)

    async def start():
        future = threads.start_in_thread(work)
        assert not future.done()
        assert began.wait(SECONDS)

    with caplog.at_level(logging.DEBUG, "safepoint"):
        with asyncio.Runner() as runner:
            runner.run(start())
        gate.set()
        wait_until(lambda: "is closed" in caplog.text)


async def test_a_function_started_on_its_own_does_not_hear_the_caller():
    controller, gate = AbortController(), threading.Event()
    future = None
    with pytest.raises(AbortError):
        with controller.signal.guard():
            future = threads.start_in_thread(gate.wait, SECONDS)
            controller.abort()
            await asyncio.Event().wait()
    assert future is not None
    assert not future.done()
    gate.set()
    async with asyncio.timeout(SECONDS):
        assert await future
    await drain_ready_tasks()


def test_after_a_fork_the_threads_of_the_parent_are_forgotten(monkeypatch):
    monkeypatch.setattr(threads, "_idle", [SimpleQueue()])
    monkeypatch.setattr(threads, "_abandoned", {"a call": print})
    assert (threads.idle_threads(), threads.abandoned_calls()) == (1, {"a call": print})
    threads._forget_threads()
    assert (threads.idle_threads(), threads.abandoned_calls()) == (0, {})
    assert abandoned_threads().running == 0
