"""Owns the tests that look inside, beside those of `tests/abort/test_stream.py`.

A stream: checked before each chunk, and its source closed on every path, in the task that read it, once.
"""

import asyncio
import gc
import logging
import weakref

import pytest

from safepoint.abort import (
    AbortController,
    AbortError,
    AbortSignal,
    stream,
)
from safepoint.testing import drain_ready_tasks
from tests.abort.test_stream import Numbers, numbers


@pytest.fixture
def closed():
    """The tasks in which a source says it was closed."""
    return []


pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


@pytest.mark.parametrize("form", ["plain", "async with"])
async def test_an_abort_between_two_chunks_asks_for_no_further_one(form):
    controller, source, chunks = AbortController(), Numbers(), []

    async def read(stream):
        async for chunk in stream:
            chunks.append(chunk)
            if chunk == 2:
                controller.abort("stop")

    with pytest.raises(AbortError):
        if form == "plain":
            await read(controller.signal.stream(source))
        else:
            async with controller.signal.stream(source) as stream:
                await read(stream)
    assert chunks == [1, 2]
    assert source.asked == 2
    assert source.closed == [asyncio.current_task()]


@pytest.mark.parametrize("make", [numbers, lambda closed, error: Numbers(error=error, closed=closed)])
async def test_an_error_of_the_source_comes_out_and_closes_it(make, closed):
    error = ValueError("wrong")
    with pytest.raises(ValueError) as caught:
        await ends_well(AbortSignal.never().stream(make(closed, error=error)))
    assert caught.value is error
    assert closed == [asyncio.current_task()]


async def ends_well(stream):
    async for _ in stream:
        pass


async def breaks_off(stream):
    async for _ in stream:
        break


async def fails(stream):
    async for _ in stream:
        raise ZeroDivisionError


@pytest.mark.parametrize("body", [ends_well, breaks_off, fails])
async def test_async_with_awaits_the_closing_on_every_path_in_the_same_task(body, closed):
    async def closing():
        for _ in range(5):
            await asyncio.sleep(0)

    try:
        async with AbortSignal.never().stream(numbers(closed, closing=closing)) as stream:
            await body(stream)
    except ZeroDivisionError:
        assert body is fails
    assert closed == [asyncio.current_task()]


async def test_async_with_awaits_the_closing_after_an_abort(closed):
    controller = AbortController()

    async def closing():
        await drain_ready_tasks()

    with pytest.raises(AbortError):
        async with controller.signal.stream(numbers(closed, closing=closing)) as stream:
            async for _ in stream:
                controller.abort("stop")
    assert closed == [asyncio.current_task()]


async def test_the_rest_of_a_closing_that_waits_runs_on_after_a_break(closed, caplog):
    began, waits_for = [], []

    async def closing():
        began.append(asyncio.current_task())
        future = asyncio.get_running_loop().create_future()
        waits_for.append(weakref.ref(future))
        await future
        await asyncio.sleep(0)

    async for _ in AbortSignal.never().stream(numbers(closed, closing=closing)):
        break
    assert began == [asyncio.current_task()]
    gc.collect()  # neither the loop nor anybody else holds the task, or what it waits for
    future = waits_for[0]()
    assert future is not None
    future.set_result(None)
    await drain_ready_tasks()
    [task] = closed
    assert task is not asyncio.current_task()
    assert task.done()
    assert not stream._closing
    assert caplog.records == []


@pytest.mark.parametrize("body", [ends_well, fails, breaks_off])
async def test_an_error_of_the_closing_is_logged_and_hides_nothing(body, caplog):
    async def closing():
        raise OSError("cannot close")

    source = Numbers()
    source.aclose = closing  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "safepoint"):
        try:
            await body(AbortSignal.never().stream(source))
        except ZeroDivisionError:
            assert body is fails
    [record] = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "cannot close"


async def test_an_error_of_the_closing_does_not_hide_the_abort(caplog):
    async def closing():
        raise OSError("cannot close")

    source = Numbers()
    source.aclose = closing  # type: ignore[method-assign]
    with pytest.raises(AbortError):
        await ends_well(AbortSignal.already("stop").stream(source))
    assert "cannot close" in caplog.text


async def test_a_closing_that_says_it_was_cancelled_does_not_hide_the_abort(caplog):
    reader = asyncio.create_task(asyncio.Event().wait())

    async def closing():
        reader.cancel()
        await reader

    source = Numbers()
    source.aclose = closing  # type: ignore[method-assign]
    with pytest.raises(AbortError):
        await ends_well(AbortSignal.already("stop").stream(source))
    assert reader.cancelled()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_cancellation_that_comes_while_a_stream_closes_goes_on():
    closing_began = asyncio.Event()

    async def closing():
        closing_began.set()
        await asyncio.Event().wait()

    source = Numbers()
    source.aclose = closing  # type: ignore[method-assign]
    task = asyncio.create_task(ends_well(AbortSignal.already("stop").stream(source)))
    await closing_began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_at_the_end_of_a_block_without_an_error_an_error_of_the_closing_comes_out():
    async def closing():
        raise OSError("cannot close")

    with pytest.raises(OSError, match="cannot close"):
        async with AbortSignal.never().stream(numbers([], closing=closing)) as stream:
            await anext(stream)


async def test_an_error_of_a_block_is_not_hidden_by_one_of_the_closing(caplog):
    async def closing():
        raise OSError("cannot close")

    with pytest.raises(ZeroDivisionError):
        async with AbortSignal.never().stream(numbers([], closing=closing)) as stream:
            await anext(stream)
            raise ZeroDivisionError
    assert "cannot close" in caplog.text


async def test_closing_again_is_harmless_and_a_closed_stream_has_ended():
    source = Numbers()
    stream = AbortSignal.never().stream(source)
    assert aiter(stream) is stream
    assert await anext(stream) == 1
    await stream.aclose()
    await stream.aclose()
    assert [chunk async for chunk in stream] == []
    assert len(source.closed) == 1


class WithClose:
    """A source that is closed by `close()`, as files and some SDKs have it."""

    def __init__(self, *, awaits):
        self.closed = []
        if awaits:
            self.close = self.close_async
        else:
            self.close = self.close_now

    def close_now(self):
        self.closed.append(asyncio.current_task())

    async def close_async(self):
        await asyncio.sleep(0)
        self.closed.append(asyncio.current_task())

    def __aiter__(self):
        return self

    async def __anext__(self):
        return 1


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("how", ["break", "abort", "async with"])
async def test_a_source_with_close_instead_of_aclose_is_closed_too(awaits, how):
    controller, source = AbortController(), WithClose(awaits=awaits)
    if how == "abort":
        with pytest.raises(AbortError):
            async for _ in controller.signal.stream(source):
                controller.abort()
    elif how == "break":
        await breaks_off(controller.signal.stream(source))
        await drain_ready_tasks()
    else:
        async with controller.signal.stream(source) as stream:
            await anext(stream)
    assert len(source.closed) == 1
    if how != "break" or not awaits:
        assert source.closed == [asyncio.current_task()]


class Response:
    """What an SDK hands out: iterating goes through generators, the connection is closed by `close()` only."""

    def __init__(self, error=None):
        self.story = []
        self.error = error

    async def __aiter__(self):
        try:
            for number in range(3):
                yield number
        finally:
            self.story.append("iterator")
            if self.error is not None:
                raise self.error

    async def close(self):
        self.story.append("connection")


@pytest.mark.parametrize("body", [ends_well, fails, breaks_off])
async def test_a_source_whose_iterator_is_a_generator_is_closed_itself_as_well(body):
    source = Response()
    try:
        await body(AbortSignal.never().stream(source))
    except ZeroDivisionError:
        assert body is fails
    assert source.story == ["iterator", "connection"]


async def test_the_source_is_closed_also_when_closing_its_iterator_fails():
    source = Response(error=OSError("cannot close"))
    with pytest.raises(OSError, match="cannot close"):
        async with AbortSignal.never().stream(source) as stream:
            await anext(stream)
    assert source.story == ["iterator", "connection"]


async def test_a_source_that_cannot_be_closed_needs_no_closing():
    class Plain:
        def __aiter__(self):
            return self

        async def __anext__(self):
            return 1

    await breaks_off(AbortSignal.never().stream(Plain()))
    async with AbortSignal.never().stream(Plain()) as stream:
        assert await anext(stream) == 1
