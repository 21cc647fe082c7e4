"""A stream: checked before each chunk, and its source closed on every path, in the task that read it, once."""

import asyncio
import gc
import sys
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from safepoint.abort import (
    AbortController,
    AbortError,
    AbortReason,
    AbortSignal,
    AbortTimeout,
    current_signal,
    shield,
)
from safepoint.testing import drain_ready_tasks

SECONDS = 10.0


pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


async def numbers(closed, *, last=3, closing=None, error=None, then_wait=False):
    """An async generator that says in which task it was closed."""
    try:
        for number in range(1, last + 1):
            yield number
        if error is not None:
            raise error
        if then_wait:
            await asyncio.Event().wait()
    finally:
        if closing is not None:
            await closing()
        closed.append(asyncio.current_task())


class Numbers:
    """An async iterator with a closing of its own, as the streams of SDKs are."""

    def __init__(self, last=3, error=None, closed=None):
        self.asked = 0
        self.closed = [] if closed is None else closed
        self.last = last
        self.error = error

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.asked += 1
        if self.asked > self.last:
            raise self.error or StopAsyncIteration
        return self.asked

    async def aclose(self):
        self.closed.append(asyncio.current_task())


@pytest.fixture
def closed():
    """The tasks in which a source says it was closed."""
    return []


@pytest.fixture
def finalizer_calls():
    """The generators that the garbage collector had to close, because nobody else did."""
    calls: list[Any] = []

    @contextmanager
    def watched():
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=calls.append)
        try:
            yield calls
        finally:
            gc.collect()
            sys.set_asyncgen_hooks(*before)

    return watched


async def test_the_chunks_come_in_order_and_the_end_closes_the_source(closed):
    source = Numbers()
    assert [chunk async for chunk in AbortSignal.never().stream(numbers(closed))] == [1, 2, 3]
    assert [chunk async for chunk in AbortSignal.never().stream(source)] == [1, 2, 3]
    assert closed == source.closed == [asyncio.current_task()]


async def test_an_abort_while_waiting_for_a_chunk_closes_the_source(closed):
    controller, chunks = AbortController(), []
    with pytest.raises(AbortError) as caught:
        async for chunk in controller.signal.stream(numbers(closed, then_wait=True)):
            chunks.append(chunk)
            if chunk == 3:
                asyncio.get_running_loop().call_soon(controller.abort, "stop")
    assert chunks == [1, 2, 3]
    assert closed == [asyncio.current_task()]
    assert caught.value.reason is controller.signal.reason


async def test_under_an_aborted_signal_the_source_does_not_begin_and_is_closed():
    source = Numbers()
    with pytest.raises(AbortError):
        async for _ in AbortSignal.already("before").stream(source):
            pytest.fail("no chunk")
    assert source.asked == 0
    assert source.closed == [asyncio.current_task()]


async def test_a_chunk_that_arrives_together_with_the_abort_is_not_lost():
    controller, chunks = AbortController(), []
    arriving: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def source():
        yield await arriving
        yield "second"

    def both():
        controller.abort("stop")
        arriving.set_result("first")

    asyncio.get_running_loop().call_soon(both)
    with pytest.raises(AbortError):
        async for chunk in controller.signal.stream(source()):
            chunks.append(chunk)  # noqa: PERF401  # a comprehension would keep its chunks to itself
    assert chunks == ["first"]


async def test_a_break_closes_the_source_at_once_and_in_the_same_task(closed):
    source = Numbers()
    async for _ in AbortSignal.never().stream(numbers(closed)):
        break
    async for _ in AbortSignal.never().stream(source):
        break
    assert closed == source.closed == [asyncio.current_task()]


async def test_an_error_in_the_body_closes_the_source_at_once_and_in_the_same_task(closed):
    source = Numbers()
    with pytest.raises(ZeroDivisionError):
        async for _ in AbortSignal.never().stream(numbers(closed)):
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async for _ in AbortSignal.never().stream(source):
            raise ZeroDivisionError
    assert closed == source.closed == [asyncio.current_task()]


async def test_an_outer_cancellation_passes_through_and_closes_the_source(closed):
    waiting = asyncio.Event()

    async def read():
        async for chunk in AbortSignal.never().stream(numbers(closed, then_wait=True)):
            if chunk == 3:
                asyncio.get_running_loop().call_soon(waiting.set)

    task = asyncio.create_task(read())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [task]


async def test_a_closing_that_waits_is_not_interrupted_by_the_abort_that_made_it_necessary(closed):
    controller = AbortController()

    async def closing():
        assert not current_signal().aborted
        await drain_ready_tasks()

    with pytest.raises(AbortError):
        with controller.signal.guard():
            async for _ in controller.signal.stream(numbers(closed, closing=closing)):
                controller.abort("stop")
    assert closed == [asyncio.current_task()]


async def test_a_closing_that_waits_behind_its_own_shield_does_not_keep_the_abort_from_the_one_who_broke_off(closed):
    controller, go_on = AbortController(), asyncio.Event()

    async def closing():
        with shield(60):
            await go_on.wait()

    with pytest.raises(AbortError):
        with controller.signal.guard():
            async for _ in controller.signal.stream(numbers(closed, closing=closing)):
                break
            assert current_signal() is controller.signal
            asyncio.get_running_loop().call_soon(controller.abort, "stop")
            async with asyncio.timeout(SECONDS):
                await asyncio.Event().wait()
    assert current_signal() is not controller.signal
    go_on.set()
    await drain_ready_tasks()


async def test_a_closing_whose_own_shield_ends_does_not_interrupt_the_one_who_broke_off(clock, caplog):
    began, ended, start = [], [], clock.monotonic()

    async def closing():
        with shield(3), shield(2):
            began.append(1)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(clock.monotonic() - start)

    async def break_off():
        async for _ in AbortSignal.never().stream(numbers([], closing=closing)):
            break
        assert began == [1]
        await clock.sleep(10)
        return "undisturbed"

    async with asyncio.TaskGroup() as group:
        task = group.create_task(break_off())
        await clock.elapse(10)
    assert task.result() == "undisturbed"
    assert ended == [2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_closing_that_hangs_after_a_break_is_bounded(clock, caplog):
    ended = []

    async def closing():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.monotonic())

    start = clock.monotonic()
    async for _ in AbortSignal.never().stream(numbers([], closing=closing)):
        break
    await clock.elapse(10)
    assert ended == [start + 5]
    assert "after a break" in caplog.text


@pytest.mark.parametrize("how", ["plain", "async with"])
async def test_a_closing_that_hangs_after_an_abort_is_bounded_and_does_not_hide_the_abort(how, clock, caplog):
    controller, source = AbortController(), Numbers()

    async def hang():
        source.closed.append(clock.monotonic())
        await asyncio.Event().wait()

    source.aclose = hang  # type: ignore[method-assign]

    async def read():
        with pytest.raises(AbortError) as caught:
            if how == "plain":
                async for _ in controller.signal.stream(source):
                    controller.abort("stop")
            else:
                async with controller.signal.stream(source):
                    controller.abort("stop")
                    controller.signal.raise_if_aborted()
        return caught.value, clock.monotonic()

    start = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(read())
        await clock.elapse(4.9)
        assert not task.done()
        await clock.elapse(0.1)
    error, ended = task.result()
    assert error.reason is controller.signal.reason
    assert not isinstance(error, AbortTimeout)
    assert source.closed == [start]
    assert ended == start + 5
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_an_error_in_the_rest_of_a_closing_after_a_break_is_logged(caplog):
    async def closing():
        await asyncio.sleep(0)
        raise OSError("cannot close")

    async for _ in AbortSignal.never().stream(numbers([], closing=closing)):
        break
    await drain_ready_tasks()
    assert "cannot close" in caplog.text


async def test_a_closing_after_a_break_that_says_it_was_cancelled_is_logged(caplog):
    async def closing():
        raise asyncio.CancelledError("a reader of its own")

    async for _ in AbortSignal.never().stream(numbers([], closing=closing)):
        break
    assert "a reader of its own" in caplog.text


@pytest.mark.parametrize("source", [None, 7, [1, 2], iter(())], ids=lambda source: type(source).__name__)
def test_a_source_must_be_an_async_iterable(source):
    with pytest.raises(TypeError, match=f"^source must be an async iterable, not {type(source).__name__}$"):
        AbortSignal.never().stream(source)


@pytest.mark.parametrize("how", ["end", "break", "body error", "source error", "abort while waiting", "abort between"])
async def test_nothing_is_left_for_the_garbage_collector(how, finalizer_calls, closed):
    controller = AbortController()
    source = numbers(
        closed, error=ValueError() if how == "source error" else None, then_wait=how == "abort while waiting"
    )
    with finalizer_calls() as calls:
        try:
            async for chunk in controller.signal.stream(source):
                if how == "break":
                    break
                if how == "body error":
                    raise ZeroDivisionError
                if how == "abort between":
                    controller.abort()
                if how == "abort while waiting" and chunk == 3:
                    asyncio.get_running_loop().call_soon(controller.abort)
        except (ZeroDivisionError, ValueError, AbortError):
            pass
        assert closed == [asyncio.current_task()]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        del source
    assert calls == []


async def test_the_finalizer_of_a_generator_without_a_stream_would_have_been_called(finalizer_calls):
    async def plain():
        yield 1

    with finalizer_calls() as calls:
        async for _ in plain():
            break
    assert len(calls) == 1
    await calls[0].aclose()


async def test_a_stream_that_is_dropped_before_it_began_closes_its_source():
    source = Numbers()
    AbortSignal.never().stream(source)
    assert source.closed == [asyncio.current_task()]
    assert source.asked == 0


def test_a_stream_that_is_dropped_where_there_is_no_loop_leaves_its_source_alone(caplog):
    source = Numbers()
    AbortSignal.never().stream(source)
    assert source.closed == []
    assert caplog.records == []


async def test_a_stream_that_is_dropped_by_a_callback_of_the_loop_is_closed_in_a_task():
    source = Numbers()
    held = [AbortSignal.never().stream(source)]
    await anext(held[0])
    asyncio.get_running_loop().call_soon(held.clear)
    await drain_ready_tasks()
    [task] = source.closed
    assert task is not None
    assert task is not asyncio.current_task()


async def test_a_stream_that_is_dropped_in_another_task_is_closed_by_the_loop():
    source = Numbers()
    held = [AbortSignal.never().stream(source)]
    await anext(held[0])

    async def drop():
        held.clear()

    dropping = asyncio.create_task(drop())
    await dropping
    await drain_ready_tasks()
    [task] = source.closed
    assert task not in (None, dropping, asyncio.current_task())


async def test_a_stream_that_is_dropped_in_another_thread_is_closed_in_its_loop():
    source, closed = Numbers(), asyncio.Event()
    threads = []

    async def close():
        threads.append(threading.current_thread())
        closed.set()

    source.aclose = close  # type: ignore[method-assign]
    held = [AbortSignal.never().stream(source)]
    await anext(held[0])
    await asyncio.to_thread(held.clear)
    async with asyncio.timeout(SECONDS):
        await closed.wait()
    await drain_ready_tasks()
    assert threads == [threading.current_thread()]


def test_a_stream_that_is_dropped_after_its_loop_was_closed_makes_no_noise(caplog, closed):
    held = []

    async def read():
        held.append(AbortSignal.never().stream(numbers(closed)))
        await anext(held[0])

    with asyncio.Runner() as runner:
        runner.run(read())
    held.clear()
    gc.collect()
    assert caplog.records == []


async def test_a_stream_is_closed_once_when_it_is_aborted_by_a_deadline(clock):
    source, chunks = Numbers(last=1_000), []
    with pytest.raises(AbortTimeout) as caught:
        async for chunk in AbortSignal.timeout(5).stream(source):
            chunks.append(chunk)
            clock.advance(1)
    assert chunks == [1, 2, 3, 4, 5]
    assert source.closed == [asyncio.current_task()]
    assert caught.value.reason == AbortReason("timeout", "5 s passed")
    assert clock.pending == 0
