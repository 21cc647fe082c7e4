"""Owns iterating over a source under a signal, and closing the source whatever happens.

Knows nothing of what the chunks are.
"""

import asyncio
import logging
import types
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

from .ambient import shield
from .guard import Guard, Scope, external_cancel_count, scope
from .signal import AbortSignal

__all__ = ["Stream"]

log = logging.getLogger("safepoint")
T = TypeVar("T")

# How long a source may take to close after an abort or an error, before the stop goes on without it.
CLOSE_SECONDS = 5.0

# Closings that could not finish at once: the loop holds tasks only weakly.
_closing: "set[asyncio.Task[None]]" = set()


class Stream(Generic[T]):
    """`async for chunk in signal.stream(source)`: one guard per chunk, the source closed at the end of all paths.

    Inside `async with signal.stream(source) as chunks:` the closing is awaited on every path. Without it, a `break`
    still closes the source at once and in the same task, as far as that needs no waiting; the rest of a closing
    that waits runs on in a task of its own.
    """

    def __init__(self, signal: AbortSignal, source: AsyncIterable[T]) -> None:
        self._closed = True  # until there is something to close
        self._signal = signal
        try:
            self._chunks: AsyncIterator[T] = aiter(source)
        except TypeError:
            raise TypeError(f"source must be an async iterable, not {type(source).__name__}") from None
        self._source = source
        self._task: asyncio.Task[Any] | None = None
        self._closed = False

    def __aiter__(self) -> "Stream[T]":
        return self

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        guard = Guard(self._signal)
        try:
            with guard:
                self._task = guard.task
                return await anext(self._chunks)
        except BaseException:
            await self._close_after_error()
            raise

    async def aclose(self) -> None:
        """Close the source. Again is harmless."""
        if not self._closed:
            self._closed = True
            await _close(self._chunks, self._source)

    async def __aenter__(self) -> "Stream[T]":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            await self.aclose()
        else:
            await self._close_after_error()

    async def _close_after_error(self) -> None:
        # The end of the source and an error come out as they are: what closing has to say about it goes to the log,
        # also that something of its own was cancelled; a cancellation of this task goes on.
        before = external_cancel_count()
        try:
            with shield(CLOSE_SECONDS):
                await self.aclose()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and external_cancel_count() > before:
                raise
            log.warning("Closing %r failed after the stream had ended", self._source, exc_info=True)

    def __del__(self) -> None:
        if self._closed:
            return
        closing = _close(self._chunks, self._source)
        try:
            running = asyncio.current_task()
        except RuntimeError:
            running = None
        if running is not None and self._task in (None, running):
            _close_here(closing)
            return
        if self._task is None:  # never begun, and no loop in which to close it
            closing.close()
            return
        try:  # dropped somewhere else: by the garbage collector, or with the frame of an ended task
            self._task.get_loop().call_soon_threadsafe(_finish, closing)
        except RuntimeError:  # its loop is closed
            closing.close()


async def _close(chunks: object, source: object) -> None:
    """Close the iterator, then what it came from: an SDK's stream hands out a generator and keeps the connection."""
    try:
        await _close_one(chunks)
    finally:
        if source is not chunks:
            await _close_one(source)


async def _close_one(target: object) -> None:
    close = getattr(target, "aclose", None) or getattr(target, "close", None)
    if close is not None:
        closing = close()
        if isinstance(closing, Awaitable):
            await closing


def _close_here(closing: Coroutine[Any, None, None]) -> None:
    """Run the closing as far as it goes without waiting; only a rest that waits becomes a task."""
    # Guards that the closing enters must not link up with those of the running task: when it waits inside one, that
    # one would stay behind, between the next await of this task and its abort.
    apart = scope.set(Scope(AbortSignal.never(), None))
    try:
        waits_for = closing.send(None)
        entered = scope.get()
    except StopIteration:
        return
    except (Exception, asyncio.CancelledError):  # nobody cancels this task here: the closing itself says so
        log.warning("Closing a stream failed after a break", exc_info=True)
        return
    finally:
        scope.reset(apart)
    task = _finish(_resume(closing, waits_for))
    while isinstance(entered, Guard):  # from here on it is the new task that they interrupt
        entered.task = task
        entered = entered.outer


def _finish(closing: Awaitable[None]) -> "asyncio.Task[None]":
    async def finish() -> None:
        try:
            with shield(CLOSE_SECONDS):
                await closing
        except Exception:
            log.warning("Closing a stream failed after a break", exc_info=True)

    task = asyncio.get_running_loop().create_task(finish())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
    return task


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, None], waits_for: object) -> Generator[Any, Any, None]:
    """Go on with a coroutine that has already yielded once."""
    while True:
        value, thrown = None, None
        try:
            value = yield waits_for
        except BaseException as error:
            thrown = error
        try:
            waits_for = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
        except StopIteration:
            return
