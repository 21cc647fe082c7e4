"""Owns iterating over a source under a signal, and closing the source on every path.

Knows nothing of what the chunks are.
"""

import asyncio
import logging
import types
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Generator
from types import TracebackType
from typing import Generic, TypeVar

from .ambient import shield
from .event_loop import post
from .guard import Guard, Scope, external_cancel_count, scope
from .signal import AbortSignal

__all__ = ["Stream"]

log = logging.getLogger("safepoint")
T = TypeVar("T")

# How long a source may take to close after an abort or an error, before the stop continues without it.
CLOSE_SECONDS = 5.0

# Tasks that finish a closing. They are kept here because the loop has only weak references to tasks.
_closing: "set[asyncio.Task[None]]" = set()


class Stream(Generic[T]):
    """An iterator over a source under a signal: `async for chunk in signal.stream(source)`.

    Each chunk has a guard of its own, and the source is closed on every path. Inside
    `async with signal.stream(source) as chunks:` the closing is awaited. Without that block, a `break` closes it in
    the same task up to the first point at which closing must wait; a task of its own does the rest.
    """

    def __init__(self, signal: AbortSignal, source: AsyncIterable[T]) -> None:
        self._closed = True  # until there is a source, in case `aiter` fails
        self._signal = signal
        try:
            self._chunks: AsyncIterator[T] = aiter(source)
        except TypeError:
            raise TypeError(f"source must be an async iterable, not {type(source).__name__}") from None
        self._source = source
        self._task: asyncio.Task[object] | None = None
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
        """Close the source. Further calls do nothing."""
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
        # The error, or the end of the source, is raised unchanged. An error of the closing itself is only logged, even
        # a CancelledError from inside the source. A cancellation of this task is raised.
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
        if self._task is None:  # iteration never began, and no loop runs in which to close the source
            closing.close()
            return
        # Dropped outside of its task: by the garbage collector, or with the frame of an ended task.
        if not post(self._task.get_loop(), _finish, closing):
            closing.close()


async def _close(chunks: object, source: object) -> None:
    """Close the iterator, then the source: the streams of some SDKs return a generator and keep the connection."""
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


def _close_here(closing: Coroutine[object, None, None]) -> None:
    """Run the closing up to the first point at which it waits; a task does the rest."""
    # Guards that the closing enters must not be linked with those of the running task. If the closing waited inside
    # such a guard, that guard would remain in the chain and hold back the next abort of the task.
    separate = scope.set(Scope(AbortSignal.never(), None))
    try:
        waits_for = closing.send(None)
        entered = scope.get()
    except StopIteration:
        return
    except (Exception, asyncio.CancelledError):  # this task is running, so CancelledError comes from the closing itself
        log.warning("Closing a stream failed after a break", exc_info=True)
        return
    finally:
        scope.reset(separate)
    task = _finish(_resume(closing, waits_for))
    while isinstance(entered, Guard):  # guards that the closing has entered now interrupt the new task
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
def _resume(coroutine: Coroutine[object, None, None], waits_for: object) -> Generator[object, None, None]:
    """Continue a coroutine that has already yielded `waits_for`."""
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
