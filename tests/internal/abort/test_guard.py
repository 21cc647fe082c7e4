"""Owns the tests that look inside, beside those of `tests/abort/test_guard.py`.

The guard: exactly one cancellation, balanced; outer ones untouched; results kept; nothing left over.
"""

import asyncio
import gc
import threading

import pytest

from safepoint.abort import AbortController, AbortError, AbortReason, Guard
from safepoint.abort.guard import Ambient, Waiter, enclosing, end_main_task, end_tasks, external_cancel_count
from safepoint.testing import drain_ready_tasks
from tests.abort.test_guard import forever, me

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


async def test_a_waiter_that_was_cancelled_in_the_tick_of_the_abort_is_left_alone():
    waiter = Waiter()
    waiter.future.cancel()
    waiter.deliver()
    assert waiter.future.cancelled()


def test_the_guards_on_a_thread_that_leaves_while_another_aborts_never_break(monkeypatch: pytest.MonkeyPatch):
    from safepoint.abort.guard import wake

    class Leaving:
        task = None

    wake([Leaving()])  # type: ignore[list-item]  # a guard whose own thread is just leaving it


async def test_an_ambient_signal_adds_to_those_around_and_interrupts_nothing():
    outer, inner = AbortController(), AbortController()
    with outer.signal.guard():
        with Ambient(inner.signal):
            assert enclosing() == [inner.signal, outer.signal]
            inner.abort()
            await drain_ready_tasks()
        assert enclosing() == [outer.signal]


async def test_asked_from_outside_counts_those_of_the_running_task():
    task = me()
    assert external_cancel_count() == 0
    task.cancel()
    assert external_cancel_count() == 1
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.uncancel() == external_cancel_count() == 0


def test_an_ambient_signal_of_a_coroutine_whose_loop_is_gone_is_dropped_quietly():
    async def waits() -> None:
        with Ambient(AbortController().signal):
            await forever()

    loop = asyncio.new_event_loop()
    task = loop.create_task(waits())
    loop.run_until_complete(drain_ready_tasks())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # we destroy it on purpose
    del task
    gc.collect()  # pytest would report what a finalizer raises


async def test_a_guard_says_whether_it_has_interrupted_its_body():
    controller = AbortController()
    guard = Guard(controller.signal)
    with guard:
        assert not guard.delivered
        asyncio.get_running_loop().call_soon(controller.abort)
        try:
            await forever()
        except asyncio.CancelledError:
            assert guard.delivered
    assert guard.sent
    unused = Guard(AbortController().signal)
    with unused:
        pass
    assert unused.delivered
    assert not unused.sent


async def test_a_group_of_errors_comes_out_unchanged_without_an_abort():
    async def fails() -> None:
        raise ExceptionGroup("several", [ValueError("one")])

    with pytest.raises(ExceptionGroup, match="several"):
        await AbortController().signal.run(fails())


async def test_a_group_of_nothing_but_aborts_is_the_abort():
    controller = AbortController()

    async def collects() -> None:
        controller.abort("stop")
        try:
            await forever()
        except asyncio.CancelledError as error:
            raise BaseExceptionGroup("several", [error, AbortError(AbortReason())]) from None

    with pytest.raises(AbortError, match="stop") as caught:
        await controller.signal.run(collects())
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)


def test_the_main_task_of_a_loop_in_another_thread_ends():
    began, ended = threading.Event(), threading.Event()
    found: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[object]]] = []

    async def main() -> None:
        found.append((asyncio.get_running_loop(), me()))
        began.set()
        try:
            await forever()
        finally:
            ended.set()

    def serve() -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())

    thread = threading.Thread(target=serve)
    thread.start()
    assert began.wait(10)
    end_main_task(*found[0])
    thread.join(10)
    assert ended.is_set()
    end_main_task(*found[0])  # the loop is closed: nothing is left to end


async def test_abandoned_tasks_end():
    tasks = [asyncio.create_task(forever()) for _ in range(3)]
    await drain_ready_tasks()
    await end_tasks(tasks, 10)
    assert all(task.cancelled() for task in tasks)
