"""Owns the tests that look inside, beside those of `tests/abort/test_guard.py`.

The guard: exactly one cancellation, balanced; outer ones untouched; results kept; nothing left over.
"""

import asyncio
import gc

import pytest

from safepoint.abort import AbortController
from safepoint.abort.guard import Ambient, Waiter, enclosing, external_cancel_count
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
