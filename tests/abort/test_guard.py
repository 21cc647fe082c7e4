"""The guard: exactly one cancellation, balanced; outer ones untouched; results kept; nothing left over."""

import asyncio
import gc
import inspect
import os
import signal as os_signals
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, AbortTimeout, Guard, shield, use_clock
from safepoint.errors import UsageError
from safepoint.testing import FakeClock, drain_ready_tasks

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


Form = Callable[[AbortSignal, Awaitable[Any]], Awaitable[Any]]


async def by_guard(signal: AbortSignal, awaitable: Awaitable[Any]) -> Any:
    with signal.guard():
        return await awaitable


async def by_run(signal: AbortSignal, awaitable: Awaitable[Any]) -> Any:
    return await signal.run(awaitable)


@pytest.fixture(params=[by_guard, by_run], ids=["guard", "run"])
def under(request: pytest.FixtureRequest) -> Form:
    """The two ways to put an await under a signal; every scenario must hold for both."""
    form: Form = request.param
    return form


def me() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


def soon(call: Callable[..., object], *args: object) -> None:
    asyncio.get_running_loop().call_soon(call, *args)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def nothing_is_left(signal: AbortSignal, outer_cancels: int = 0) -> None:
    """The invariants after every exit: counters balanced, no stale cancellation, no entry left."""
    assert me().cancelling() == outer_cancels
    for _ in range(3):
        await asyncio.sleep(0)
    assert signal.observers == 0


async def test_an_abort_interrupts_the_await_and_abort_error_comes_out(under: Form):
    controller = AbortController()
    soon(controller.abort, "stop")
    with pytest.raises(AbortError) as caught:
        await under(controller.signal, forever())
    assert caught.value.reason is controller.signal.reason
    assert caught.value.reason.message == "stop"
    await nothing_is_left(controller.signal)


async def test_without_an_abort_the_value_comes_through(under: Form):
    controller = AbortController()

    async def body() -> str:
        await asyncio.sleep(0)
        return "value"

    assert await under(controller.signal, body()) == "value"
    await nothing_is_left(controller.signal)


async def test_an_aborted_signal_lets_no_body_begin():
    controller = AbortController()
    controller.abort("early")
    begun = []
    with pytest.raises(AbortError):
        with controller.signal.guard():
            begun.append(True)
    assert begun == []
    await nothing_is_left(controller.signal)


async def test_run_closes_a_coroutine_that_could_not_begin():
    controller = AbortController()
    controller.abort()
    coroutine = forever()
    with pytest.raises(AbortError):
        await controller.signal.run(coroutine)
    assert (
        inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    )  # closed: no "never awaited" warning, nothing left


async def test_run_cancels_a_task_that_is_handed_to_an_aborted_signal():
    controller = AbortController()
    controller.abort()
    task = asyncio.ensure_future(forever())
    with pytest.raises(AbortError):
        await controller.signal.run(task)
    await asyncio.wait([task])
    assert task.cancelled()


async def test_run_leaves_an_awaitable_it_cannot_end_alone():
    class Custom:
        def __await__(self) -> Any:
            raise AssertionError("must not begin")
            yield

    controller = AbortController()
    controller.abort()
    with pytest.raises(AbortError):
        await controller.signal.run(Custom())


async def test_an_abort_from_inside_that_is_followed_by_no_await_keeps_the_value(under: Form):
    controller = AbortController()

    async def body() -> str:
        controller.abort()
        return "value"

    assert await under(controller.signal, body()) == "value"
    assert controller.signal.aborted
    await nothing_is_left(controller.signal)


async def test_an_abort_from_inside_interrupts_the_next_await(under: Form):
    controller = AbortController()

    async def body() -> None:
        controller.abort("from inside")
        await forever()

    with pytest.raises(AbortError, match="from inside"):
        await under(controller.signal, body())
    await nothing_is_left(controller.signal)


async def test_an_abort_reaches_a_body_that_only_yields_to_the_loop(under: Form):
    controller = AbortController()

    async def body() -> None:
        controller.abort()
        while True:
            await asyncio.sleep(0)

    with pytest.raises(AbortError):
        await under(controller.signal, body())
    await nothing_is_left(controller.signal)


async def test_a_result_that_came_before_the_abort_in_the_same_tick_is_kept(under: Form):
    controller = AbortController()
    future = asyncio.get_running_loop().create_future()

    def complete_then_abort() -> None:
        future.set_result("kept")
        controller.abort()

    soon(complete_then_abort)
    assert await under(controller.signal, future) == "kept"
    await nothing_is_left(controller.signal)


async def test_a_result_that_comes_after_the_abort_in_the_same_tick_is_kept_too(under: Form):
    controller = AbortController()
    future = asyncio.get_running_loop().create_future()

    def abort_then_complete() -> None:
        controller.abort()
        future.set_result("kept")

    soon(abort_then_complete)
    assert await under(controller.signal, future) == "kept"
    await nothing_is_left(controller.signal)


async def test_after_a_kept_result_the_next_await_of_the_body_is_interrupted(under: Form):
    controller = AbortController()
    future = asyncio.get_running_loop().create_future()
    got = []

    async def body() -> None:
        got.append(await future)
        await forever()

    def complete_then_abort() -> None:
        future.set_result("kept")
        controller.abort()

    soon(complete_then_abort)
    with pytest.raises(AbortError):
        await under(controller.signal, body())
    assert got == ["kept"]
    await nothing_is_left(controller.signal)


async def test_a_body_that_is_always_just_ready_is_interrupted_all_the_same(under: Form):
    controller = AbortController()
    loop = asyncio.get_running_loop()
    steps = 0

    async def body() -> None:
        nonlocal steps
        while True:  # each future completes before the guard can look at it
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            await future
            steps += 1

    loop.call_soon(controller.abort)
    with pytest.raises(AbortError):
        await under(controller.signal, body())
    assert steps < 10
    await nothing_is_left(controller.signal)


async def test_clean_up_may_await_after_the_interruption(under: Form):
    controller = AbortController()
    cleaned = []

    async def body() -> None:
        try:
            await forever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.append(True)

    soon(controller.abort)
    with pytest.raises(AbortError):
        await under(controller.signal, body())
    assert cleaned == [True]
    await nothing_is_left(controller.signal)


async def test_a_body_that_swallows_the_cancellation_returns_its_value_and_aborted_is_still_seen(under: Form):
    controller = AbortController()

    async def body() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            pass
        await asyncio.sleep(0)
        return "swallowed"

    soon(controller.abort)
    assert await under(controller.signal, body()) == "swallowed"
    assert controller.signal.aborted
    await nothing_is_left(controller.signal)


async def test_a_body_that_raises_its_own_error_keeps_it(under: Form):
    controller = AbortController()

    async def body() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise LookupError("mine") from None

    soon(controller.abort)
    with pytest.raises(LookupError, match="mine"):
        await under(controller.signal, body())
    await nothing_is_left(controller.signal)


async def test_a_bodys_private_cancelled_error_without_an_abort_passes_unchanged(under: Form):
    async def body() -> None:
        raise asyncio.CancelledError("mine")

    with pytest.raises(asyncio.CancelledError, match="mine"):
        await under(AbortController().signal, body())


async def test_a_subclass_of_cancelled_error_raised_for_our_cancellation_becomes_abort_error(under: Form):
    class Mine(asyncio.CancelledError):
        pass

    async def body() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise Mine from None

    controller = AbortController()
    soon(controller.abort)
    with pytest.raises(AbortError):
        await under(controller.signal, body())
    await nothing_is_left(controller.signal)


async def test_the_place_where_the_body_waited_is_in_the_context_of_the_error():
    controller = AbortController()
    soon(controller.abort)
    with pytest.raises(AbortError) as caught:
        with controller.signal.guard():
            await forever()
    assert isinstance(caught.value.__context__, asyncio.CancelledError)


async def test_many_tasks_under_one_signal_are_all_interrupted():
    controller = AbortController()

    async def victim() -> bool:
        with pytest.raises(AbortError):
            await controller.signal.run(forever())
        return me().cancelling() == 0

    tasks = [asyncio.ensure_future(victim()) for _ in range(200)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert controller.signal.observers == 200
    controller.abort()
    assert all(await asyncio.gather(*tasks))
    await nothing_is_left(controller.signal)


async def test_a_timed_out_signal_raises_abort_timeout_which_is_a_timeout_error():
    with pytest.raises(TimeoutError) as caught:
        with AbortSignal.timeout(0.01).guard():
            await forever()
    assert isinstance(caught.value, AbortTimeout)
    assert caught.value.reason.kind == "timeout"


@pytest.mark.parametrize(
    "order", ["cancel", "cancel abort", "abort cancel", "abort cancel cancel", "cancel abort cancel"]
)
async def test_an_outer_cancellation_in_the_same_tick_wins_in_every_order(under: Form, order: str):
    controller = AbortController()
    ended = []

    async def victim() -> None:
        try:
            await under(controller.signal, forever())
        except asyncio.CancelledError:
            ended.append("cancelled")
            await nothing_is_left(controller.signal, order.count("cancel"))
            raise

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    for act in order.split():
        controller.abort() if act == "abort" else task.cancel()
    await asyncio.wait([task])
    assert ended == ["cancelled"]
    assert task.cancelled()


async def test_an_outer_cancellation_one_tick_after_the_delivery_wins():
    controller = AbortController()
    ended = []

    async def body() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)  # the outer cancellation comes during this clean-up
            await asyncio.sleep(0)

    async def victim() -> None:
        try:
            await controller.signal.run(body())
        except asyncio.CancelledError:
            ended.append(me().cancelling())
            raise

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    controller.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert ended == [1]


async def test_a_guard_in_the_clean_up_of_a_cancelled_task_works():
    controller = AbortController()
    seen: list[object] = []

    async def victim() -> None:
        try:
            await forever()
        finally:
            with pytest.raises(AbortError):
                await controller.signal.run(forever())
            seen.append(me().cancelling())

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    task.cancel()
    await drain_ready_tasks()
    controller.abort()
    await asyncio.wait([task])
    assert seen == [1]  # the outer cancel's own count, untouched
    assert task.cancelled()


async def test_a_second_outer_cancellation_inside_such_a_guard_passes_through():
    controller = AbortController()
    seen: list[object] = []

    async def victim() -> None:
        try:
            await forever()
        finally:
            try:
                await controller.signal.run(forever())
            except asyncio.CancelledError:
                seen.append(me().cancelling())

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    task.cancel()
    await drain_ready_tasks()
    controller.abort()
    task.cancel()
    await asyncio.wait([task])
    assert seen == [2]


async def test_an_outer_cancellation_that_is_pending_at_entry_is_not_taken_for_ours(under: Form):
    controller = AbortController()
    ended = []

    async def victim() -> None:
        me().cancel()  # asked for, not thrown yet
        try:
            controller_abort_soon()
            await under(controller.signal, forever())
        except asyncio.CancelledError:
            ended.append(me().cancelling())
            raise

    def controller_abort_soon() -> None:
        soon(controller.abort)

    task = asyncio.ensure_future(victim())
    await asyncio.wait([task])
    assert ended == [1]
    assert task.cancelled()


async def test_a_pending_outer_cancellation_wins_over_an_abort_from_inside():
    controller = AbortController()
    ended = []

    async def swallow_once() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await forever()  # hides the outer one; then ours comes

    async def victim() -> None:
        me().cancel()
        soon(controller.abort)
        try:
            await controller.signal.run(swallow_once())
        except asyncio.CancelledError:
            ended.append(me().cancelling())
            raise

    task = asyncio.ensure_future(victim())
    await asyncio.wait([task])
    assert ended == [1]


async def test_asyncio_timeout_outside_that_expires_in_the_same_tick_raises_its_timeout(under: Form):
    for abort_first in (True, False):
        controller = AbortController()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(None) as scope:

                def both(
                    scope: asyncio.Timeout = scope, first: bool = abort_first, c: AbortController = controller
                ) -> None:
                    if first:
                        c.abort()
                        soon(scope.reschedule, 0)
                    else:
                        scope.reschedule(0)
                        soon(c.abort)

                soon(both)
                try:
                    await under(controller.signal, forever())
                except AbortError:
                    await forever()  # the abort was first; now the timeout
        assert not isinstance(caught.value, AbortError)
        await nothing_is_left(controller.signal)


async def test_asyncio_timeout_inside_that_expires_is_the_bodys_own(under: Form):
    controller = AbortController()

    async def body() -> str:
        try:
            async with asyncio.timeout(0):
                await forever()
        except TimeoutError:
            return "inner timeout"
        raise AssertionError

    assert await under(controller.signal, body()) == "inner timeout"
    await nothing_is_left(controller.signal)


async def test_an_abort_passes_through_asyncio_timeout_inside(under: Form):
    controller = AbortController()

    async def body() -> None:
        async with asyncio.timeout(30):
            await forever()

    soon(controller.abort)
    with pytest.raises(AbortError):
        await under(controller.signal, body())
    await nothing_is_left(controller.signal)


async def test_an_abort_ends_a_task_group_inside_with_its_children(under: Form):
    controller = AbortController()
    ended = []

    async def child() -> None:
        try:
            await forever()
        finally:
            ended.append("child")

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    asyncio.get_running_loop().call_later(0.005, controller.abort)
    with pytest.raises(AbortError):
        await under(controller.signal, body())
    assert ended == ["child", "child"]
    await nothing_is_left(controller.signal)


async def test_errors_of_children_that_an_abort_ends_come_out_as_the_group_they_are(under: Form):
    controller = AbortController()

    async def child() -> None:
        try:
            await forever()
        finally:
            raise LookupError("child")

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    asyncio.get_running_loop().call_later(0.005, controller.abort)
    with pytest.raises(ExceptionGroup):
        await under(controller.signal, body())
    assert controller.signal.aborted
    await nothing_is_left(controller.signal)


async def test_a_guard_inside_a_task_group_child_ends_only_that_child():
    controller = AbortController()
    ended = []

    async def guarded() -> None:
        with pytest.raises(AbortError):
            await controller.signal.run(forever())
        ended.append("guarded")

    async def other() -> None:
        await asyncio.sleep(0.01)  # real time: it must outlive the abort
        ended.append("other")

    async with asyncio.TaskGroup() as group:
        group.create_task(guarded())
        group.create_task(other())
        soon(soon, controller.abort)
    assert ended == ["guarded", "other"]


async def test_a_failing_sibling_in_the_tick_of_the_abort_is_not_lost():
    for abort_first in (True, False):
        controller = AbortController()
        fail = asyncio.get_running_loop().create_future()

        async def child(fail: "asyncio.Future[None]" = fail) -> None:
            await fail

        def both(first: bool = abort_first, c: AbortController = controller, f: Any = fail) -> None:
            if first:
                c.abort()
            f.set_exception(LookupError("sibling"))
            if not first:
                c.abort()

        asyncio.get_running_loop().call_later(0.005, both)
        with pytest.raises((ExceptionGroup, AbortError)):
            with controller.signal.guard():
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
                    await forever()
        await nothing_is_left(controller.signal)


async def test_nested_guards_on_one_signal_raise_one_abort_error_at_the_innermost():
    controller = AbortController()
    path = []
    soon(controller.abort)
    with pytest.raises(AbortError):
        with controller.signal.guard():
            try:
                with controller.signal.guard():
                    await forever()
            except AbortError:
                path.append("inner")
                for _ in range(5):  # a second cancellation for the outer guard would hit this clean-up
                    await asyncio.sleep(0)
                path.append("cleaned")
                raise
    assert path == ["inner", "cleaned"]
    await nothing_is_left(controller.signal)


async def test_an_abort_of_the_outer_signal_alone_passes_the_inner_guard():
    outer, inner = AbortController(), AbortController()
    soon(outer.abort, "outer")
    with pytest.raises(AbortError, match="outer"):
        with outer.signal.guard():
            with pytest.raises(asyncio.CancelledError):
                with inner.signal.guard():
                    await forever()
            raise asyncio.CancelledError
    await nothing_is_left(outer.signal)
    assert inner.signal.observers == 0


async def test_an_abort_of_the_inner_signal_alone_does_not_end_the_outer_body():
    outer, inner = AbortController(), AbortController()
    soon(inner.abort)
    with outer.signal.guard():
        with pytest.raises(AbortError):
            with inner.signal.guard():
                await forever()
        await asyncio.sleep(0)
    await nothing_is_left(outer.signal)


@pytest.mark.parametrize("first", ["outer", "inner"])
async def test_two_signals_aborted_in_one_tick_both_arrive_the_inner_one_first(first: str):
    outer, inner = AbortController(), AbortController()
    path = []

    def both() -> None:
        for controller in (outer, inner) if first == "outer" else (inner, outer):
            controller.abort("outer" if controller is outer else "inner")

    soon(both)
    with pytest.raises(AbortError, match="outer"):
        with outer.signal.guard():
            try:
                with inner.signal.guard():
                    await forever()
            except AbortError as error:
                path.append(error.reason.message)
            await forever()  # the inner abort was handled: the outer one must still end this
    assert path == ["inner"]
    await nothing_is_left(outer.signal)


async def test_an_inner_body_that_swallows_is_interrupted_again_by_the_outer_guard():
    controller = AbortController()
    path = []
    soon(controller.abort)
    with pytest.raises(AbortError):
        with controller.signal.guard():
            with controller.signal.guard():
                try:
                    await forever()
                except asyncio.CancelledError:
                    path.append("swallowed")
            await forever()
    assert path == ["swallowed"]
    await nothing_is_left(controller.signal)


async def test_an_inner_guard_that_keeps_its_result_hands_the_abort_to_the_outer_one():
    controller = AbortController()
    future = asyncio.get_running_loop().create_future()

    def complete_then_abort() -> None:
        future.set_result("kept")
        controller.abort()

    soon(complete_then_abort)
    got = []
    with pytest.raises(AbortError):
        with controller.signal.guard():
            with controller.signal.guard():
                got.append(await future)
            await forever()
    assert got == ["kept"]
    await nothing_is_left(controller.signal)


async def test_three_levels_and_composites_end_with_one_error_and_no_leftovers():
    a, b = AbortController(), AbortController()
    both = AbortSignal.any([a.signal, b.signal])
    soon(a.abort)
    with pytest.raises(AbortError):
        with both.guard():
            with a.signal.guard():
                with both.guard():
                    await forever()
    await nothing_is_left(a.signal)
    await nothing_is_left(b.signal)


async def test_an_outer_guard_that_hears_of_two_aborts_at_once_is_served_once():
    a, b = AbortController(), AbortController()
    soon(a.abort, "a")
    soon(b.abort, "b")
    path = []
    with pytest.raises(AbortError, match="a"):
        with AbortSignal.any([a.signal, b.signal]).guard():
            try:
                with a.signal.guard():
                    await forever()
            finally:
                await drain_ready_tasks()
                path.append("cleaned")
    assert path == ["cleaned"]
    await nothing_is_left(a.signal)


async def test_a_guard_of_a_parent_task_does_not_hold_back_the_one_of_its_child():
    controller = AbortController()

    async def child() -> str:
        with pytest.raises(AbortError):
            await controller.signal.run(forever())
        return "child ended"

    with pytest.raises(AbortError):
        with controller.signal.guard():
            task = asyncio.ensure_future(child())
            await drain_ready_tasks()
            controller.abort()
            await asyncio.sleep(0)
            await forever()
    assert await task == "child ended"
    await nothing_is_left(controller.signal)


async def test_an_abort_inside_a_shield_waits_for_its_end_and_then_arrives():
    controller = AbortController()
    path = []
    with pytest.raises(AbortError):
        with controller.signal.guard():
            with shield(30):
                controller.abort()
                for _ in range(5):
                    await asyncio.sleep(0)
                path.append("shielded")
            await forever()
    assert path == ["shielded"]
    await nothing_is_left(controller.signal)


async def test_a_guard_inside_a_shield_hears_its_own_signal():
    controller = AbortController()
    soon(controller.abort)
    with shield(30):
        with pytest.raises(AbortError):
            await controller.signal.run(forever())


async def test_a_shield_ends_its_body_when_its_time_is_up():
    clock = FakeClock()
    with use_clock(clock):
        with pytest.raises(AbortTimeout):
            with shield(3):
                soon(clock.advance, 3)
                await forever()


async def test_the_bound_of_an_outer_shield_is_not_extended_by_an_inner_one():
    clock = FakeClock()
    with use_clock(clock):
        with pytest.raises(AbortTimeout, match="3 s"):
            with shield(3):
                soon(clock.advance, 4)
                with shield(60):
                    await forever()


async def test_an_abort_held_by_two_nested_shields_arrives_after_both():
    controller = AbortController()
    path = []
    with pytest.raises(AbortError):
        with controller.signal.guard():
            with shield(30):
                with shield(30):
                    controller.abort()
                    await drain_ready_tasks()
                    path.append("inner")
                await drain_ready_tasks()
                path.append("outer")
            await forever()
    assert path == ["inner", "outer"]
    await nothing_is_left(controller.signal)


async def test_an_abort_from_another_thread_wakes_the_loop_at_once(under: Form):
    controller = AbortController()
    began = time.perf_counter()
    thread = threading.Thread(target=controller.abort)
    soon(thread.start)
    with pytest.raises(AbortError):
        await under(controller.signal, asyncio.sleep(30))  # real time: the only timer of the loop is far away
    assert time.perf_counter() - began < 10
    thread.join()
    await nothing_is_left(controller.signal)


async def test_an_abort_in_a_raw_signal_handler_wakes_a_loop_that_sleeps_in_select():
    controller = AbortController()
    began = time.perf_counter()
    before = os_signals.signal(os_signals.SIGUSR1, lambda *_: controller.abort("handler"))
    # The signal must come while the loop is inside select(), not before: from a thread, after a moment.
    timer = threading.Timer(0.1, os.kill, (os.getpid(), os_signals.SIGUSR1))
    timer.start()
    try:
        with pytest.raises(AbortError, match="handler"):
            await controller.signal.run(asyncio.sleep(30))  # real time: the only timer of the loop is far away
    finally:
        timer.join()
        os_signals.signal(os_signals.SIGUSR1, before)
    assert time.perf_counter() - began < 10


async def test_an_abort_from_a_finalizer_reaches_the_task():
    controller = AbortController()

    class Owner:
        def __del__(self) -> None:
            controller.abort("finalizer")

    owners = [Owner()]
    soon(owners.clear)
    with pytest.raises(AbortError, match="finalizer"):
        await controller.signal.run(forever())


async def test_fifty_threads_abort_at_once_and_the_task_is_cancelled_once():
    controller = AbortController()
    barrier = threading.Barrier(50)
    won: list[bool] = []

    def abort() -> None:
        barrier.wait(10)
        won.append(controller.abort())

    threads = [threading.Thread(target=abort) for _ in range(50)]
    for thread in threads:
        thread.start()
    try:
        with controller.signal.guard():
            await forever()
    except AbortError:
        pass
    for thread in threads:
        thread.join()
    assert won.count(True) == 1
    await nothing_is_left(controller.signal)


def test_one_abort_reaches_guards_on_two_loops_in_two_threads():
    controller = AbortController()
    ready = threading.Barrier(3)
    ended = []

    async def victim() -> None:
        soon(soon, ready.wait, 10)
        with pytest.raises(AbortError):
            await controller.signal.run(forever())
        ended.append(True)

    threads = [threading.Thread(target=asyncio.run, args=(victim(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    controller.abort()
    for thread in threads:
        thread.join(10)
    assert ended == [True, True]


def test_an_abort_that_finds_a_closed_loop_is_harmless_and_so_is_collecting_its_task(caplog: pytest.LogCaptureFixture):
    controller = AbortController()
    loop = asyncio.new_event_loop()
    task = loop.create_task(controller.signal.run(forever()))
    loop.run_until_complete(drain_ready_tasks())
    loop.close()
    with caplog.at_level("DEBUG", logger="safepoint"):
        assert controller.abort()
    assert "closed event loop" in caplog.text
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # we destroy it on purpose
    del task
    gc.collect()  # pytest would report what a finalizer raises


async def test_wait_async_returns_on_abort_and_leaves_nothing():
    controller = AbortController()
    soon(controller.abort)
    await controller.signal.wait_async()
    await controller.signal.wait_async()  # aborted already: at once
    await nothing_is_left(controller.signal)


async def test_wait_async_that_is_cancelled_leaves_nothing():
    controller = AbortController()
    task = asyncio.ensure_future(controller.signal.wait_async())
    await drain_ready_tasks()
    assert controller.signal.observers == 1
    task.cancel()
    await asyncio.wait([task])
    assert controller.signal.observers == 0


async def test_a_waiter_sees_an_abort_that_comes_while_it_attaches(monkeypatch: pytest.MonkeyPatch):
    controller = AbortController()
    attach = type(controller.signal).attach

    def abort_then_attach(signal: Any, entry: Any) -> None:
        controller.abort()
        attach(signal, entry)

    monkeypatch.setattr(type(controller.signal), "attach", abort_then_attach)
    await controller.signal.wait_async()


async def test_sleep_ends_at_once_on_abort_and_otherwise_on_time():
    clock = FakeClock()
    with use_clock(clock):
        controller = AbortController()
        soon(clock.advance, 5)
        await controller.signal.sleep(5)
        soon(controller.abort)
        with pytest.raises(AbortError):
            await controller.signal.sleep(5)
        assert clock.pending == 0


def test_a_guard_outside_of_a_task_says_what_to_do_and_registers_nothing():
    controller = AbortController()
    with pytest.raises(UsageError, match=r"signal\.wait"):
        with controller.signal.guard():
            pass
    assert controller.signal.observers == 0


async def test_a_guard_in_a_loop_callback_without_a_task_is_a_clear_error():
    controller = AbortController()
    caught = asyncio.get_running_loop().create_future()

    def callback() -> None:
        try:
            with controller.signal.guard():
                pass
        except UsageError as error:
            caught.set_result(str(error))

    soon(callback)
    assert "no running asyncio task" in await caught
    assert controller.signal.observers == 0


async def test_a_guard_is_used_once():
    guard = AbortController().signal.guard()
    with guard:
        pass
    with pytest.raises(UsageError, match="new one"):
        with guard:
            pass


async def test_a_guard_held_across_yield_and_left_by_another_task_is_a_clear_error_and_leaves_nothing():
    controller = AbortController()

    async def source() -> Any:
        with controller.signal.guard():
            yield 1
            yield 2

    generator = source()

    async def first() -> None:
        await anext(generator)

    await asyncio.ensure_future(first())
    assert controller.signal.observers == 1
    with pytest.raises(UsageError, match="yield"):
        await generator.aclose()
    assert controller.signal.observers == 0


async def test_after_such_an_error_the_outer_guard_of_the_first_task_still_works():
    controller, inner = AbortController(), AbortController()

    async def source() -> Any:
        with inner.signal.guard():
            yield 1

    generator = source()

    async def closing() -> None:
        with pytest.raises(UsageError):
            await generator.aclose()
        inner.abort()  # a stale link to the inner guard would now hold the outer one back
        controller.abort()

    with pytest.raises(AbortError):
        with controller.signal.guard():
            await anext(generator)
            task = asyncio.ensure_future(closing())
            await task
            await forever()
    await task


async def test_a_task_without_the_private_attributes_is_interrupted_all_the_same():
    class Plain:
        """A task factory's product that hides what the guard likes to look at."""

        def __init__(self, task: "asyncio.Task[Any]") -> None:
            self._task = task

        def __getattr__(self, name: str) -> Any:
            if name in ("_fut_waiter", "_must_cancel"):
                raise AttributeError(name)
            return getattr(self._task, name)

    controller = AbortController()
    guard = Guard(controller.signal)
    soon(controller.abort)
    with pytest.raises(AbortError):
        with guard:
            guard.task = Plain(me())  # type: ignore[assignment]
            await forever()
    await nothing_is_left(controller.signal)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.backends("eager")
async def test_an_eager_child_that_aborts_in_its_first_step_leaves_no_stale_cancellation():
    controller = AbortController()

    async def child() -> None:
        controller.abort()

    with controller.signal.guard():
        task = asyncio.ensure_future(child())  # runs here and now, inside our own step
    await nothing_is_left(controller.signal)
    await task


async def test_a_guard_that_was_left_does_not_keep_its_task():
    guard = AbortController().signal.guard()
    with guard:
        assert guard.task is me()
    assert guard.task is None


async def test_an_abort_in_the_clean_up_of_a_cancelled_task_without_the_private_attributes_becomes_abort_error(
    monkeypatch: pytest.MonkeyPatch,
):
    class Hiding:
        def __init__(self, task: "asyncio.Task[Any]") -> None:
            self._task = task

        def __getattr__(self, name: str) -> Any:
            if name in ("_fut_waiter", "_must_cancel"):
                raise AttributeError(name)
            return getattr(self._task, name)

    controller = AbortController()
    guard = controller.signal.guard()

    async def victim() -> str:
        hiding = Hiding(me())
        try:
            await forever()
        except asyncio.CancelledError:
            monkeypatch.setattr("safepoint.abort.guard.current_task", lambda: hiding)
            with pytest.raises(AbortError):
                with guard:
                    assert guard.task is hiding  # type: ignore[comparison-overlap]
                    await forever()
        return "cleaned"

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    task.cancel()
    await drain_ready_tasks()
    controller.abort()
    assert await task == "cleaned"


def test_a_body_whose_coroutine_is_collected_does_not_go_on_behind_the_block():
    controller = AbortController()
    went_on = []

    async def victim() -> None:
        with controller.signal.guard():
            await forever()
        went_on.append(True)

    loop = asyncio.new_event_loop()
    task = loop.create_task(victim())
    loop.run_until_complete(drain_ready_tasks())
    loop.close()
    controller.abort()  # until then the signal keeps its guard, and the guard its task
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # we destroy it on purpose
    collected = weakref.ref(task)
    del task
    gc.collect()
    assert collected() is None
    assert went_on == []


def test_a_body_whose_loop_is_closed_is_collected_in_silence_also_while_another_loop_runs(
    monkeypatch: pytest.MonkeyPatch,
):
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: complaints.append(args.exc_value))

    async def victim() -> None:
        await AbortSignal.never().run(forever())

    loop = asyncio.new_event_loop()
    task = loop.create_task(victim())
    loop.run_until_complete(drain_ready_tasks())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # we destroy it on purpose
    collected = weakref.ref(task)
    del task

    async def elsewhere() -> None:
        gc.collect()

    asyncio.run(elsewhere())
    assert collected() is None
    assert complaints == []


async def test_a_body_whose_next_result_is_always_there_already_keeps_one_and_is_interrupted():
    controller = AbortController()
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(50)]
    got: list[int] = []

    def complete(number: int) -> None:  # one in each tick, just after the body has begun to wait for it
        futures[number].set_result(number)
        if number + 1 < len(futures):
            loop.call_soon(complete, number + 1)

    loop.call_soon(complete, 0)
    with pytest.raises(AbortError):
        with controller.signal.guard():
            for future in futures:
                if len(got) == 5:
                    controller.abort()
                got.append(await future)
    assert len(got) == 6
    await nothing_is_left(controller.signal)


@pytest.mark.parametrize("served", [True, False], ids=["served by an inner guard", "delivered"])
async def test_a_later_abort_does_not_hit_the_clean_up_after_the_first(served: bool):
    a, b = AbortController(), AbortController()
    cleaned = []
    soon(a.abort, "first")
    with pytest.raises(AbortError) as caught:
        with AbortSignal.any([a.signal, b.signal]).guard():
            try:
                with (a if served else AbortController()).signal.guard():
                    await forever()
            finally:
                b.abort("second")
                await drain_ready_tasks()
                cleaned.append(True)
    assert cleaned == [True]
    assert caught.value.reason.message == "first"
    await nothing_is_left(a.signal)


async def test_run_that_is_closed_while_it_waits_leaves_the_future_alone_as_await_does():
    future = asyncio.get_running_loop().create_future()
    running = AbortController().signal.run(future)
    running.send(None)
    running.close()
    assert not future.done()


async def test_a_body_that_goes_on_can_be_interrupted_again_and_each_cancellation_is_taken_back():
    controller = AbortController()
    guard = controller.signal.guard()
    swallowed: list[int] = []
    over: list[bool] = []

    async def body() -> None:
        while len(swallowed) < 3:
            try:
                await forever()
            except asyncio.CancelledError:
                if over:
                    raise
                swallowed.append(me().cancelling())
        await forever()

    async def victim() -> None:
        with pytest.raises(AbortError):
            with guard:
                await body()
        assert not guard.deliver_again()  # left
        await nothing_is_left(controller.signal)

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    assert not guard.deliver_again()  # not aborted
    controller.abort()
    await drain_ready_tasks()
    try:
        for _ in range(3):
            assert guard.deliver_again()
            await drain_ready_tasks()
        assert swallowed == [1, 2, 3]
    finally:
        over.append(True)  # a body that still swallowed would keep a failing test from ending
    await task


async def test_an_outer_cancellation_wins_over_an_abort_that_was_delivered_twice():
    controller = AbortController()
    guard = controller.signal.guard()
    ended = []

    async def victim() -> None:
        try:
            with guard:
                try:
                    await forever()
                except asyncio.CancelledError:
                    await forever()
        except asyncio.CancelledError:
            ended.append(me().cancelling())
            raise

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    controller.abort()
    await drain_ready_tasks()
    assert guard.deliver_again()
    task.cancel()
    await asyncio.wait([task])
    assert ended == [1]


@pytest.mark.parametrize("between", [True, False], ids=["a guard between", "nothing between"])
async def test_a_shield_holds_off_a_second_interruption_and_a_plain_guard_does_not(between: bool):
    controller = AbortController()
    guard = controller.signal.guard()
    path = []

    async def victim() -> None:
        with pytest.raises(AbortError):
            with guard:
                try:
                    await forever()
                except asyncio.CancelledError:
                    with AbortController().signal.guard() if between else nullcontext():
                        with shield(30):
                            path.append(guard.deliver_again())
                            await drain_ready_tasks()
                        path.append(guard.deliver_again())
                        await forever()

    task = asyncio.ensure_future(victim())
    await drain_ready_tasks()
    controller.abort()
    await task
    assert path == [False, True]
    await nothing_is_left(controller.signal)


def test_waiting_outside_of_a_task_is_a_clear_error_and_registers_nothing():
    controller = AbortController()
    with pytest.raises(UsageError, match="no running asyncio task"):
        controller.signal.wait_async().send(None)
    assert controller.signal.observers == 0
