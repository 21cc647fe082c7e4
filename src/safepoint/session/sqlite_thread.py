"""Owns a thread that makes the calls of a database one after the other, so that they do not block an event loop.

Knows nothing of databases: what a call raises is raised where it is awaited.

Three things must hold, whatever happens to the caller:

- **A call that was queued is made**, even if its caller is cancelled before it begins or while it runs. The future only
  carries the result; cancelling it takes nothing out of the queue. A store relies on that: a batch that was handed over
  is either written or reported as failed, never dropped silently.
- **The result goes back through `call_soon_threadsafe`**, because a future may only be set in its own event loop. That
  loop may be closed by then, as at the end of `asyncio.run`. Then there is no waiter, and the result is dropped; the
  call itself has been made.
- **The thread keeps nothing of the last call while it waits for the next.** A result may be a large list of records;
  and the traceback of an exception refers to the frame of `_make`, which would refer back to the future and so to the
  exception: a cycle that keeps all of it alive until the garbage collector runs. The `del` statements prevent both.

The thread is a daemon, so that a program that forgets to close its store can end. A fork takes no threads along:
`left_by_fork` tells that a child process has only a copy of the object and none of its thread.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

__all__ = ["DatabaseThread"]

T = TypeVar("T")


class DatabaseThread:
    """One thread, which is started by the first call.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def begun(self) -> bool:
        """Whether there was a call, so that the thread has been started."""
        return self._thread is not None

    @property
    def left_by_fork(self) -> int:
        """The process that has the thread, if this process is a fork of it; else 0."""
        return self._pid if self._thread is not None and self._pid != os.getpid() else 0

    def do(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue a call. It is made even if the caller stops waiting for the future."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = loop.create_future()
        self._calls.put(partial(_make, call, loop, done))
        return done

    def end(self) -> None:
        """Let the thread end when the calls that are queued have been made."""
        self._calls.put(None)

    def join(self) -> None:
        """Wait for the end of the thread. Call it in another thread."""
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (queued := self._calls.get()) is not None:
            queued()
            del queued


def _make(call: Callable[[], T], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[T]") -> None:
    """Make a call, and send its result to the event loop of its caller."""
    try:
        result = call()
    except BaseException as error:
        _send(loop, partial(_set_exception, done, error))
    else:
        _send(loop, partial(_set_result, done, result))
        del result
    finally:
        del call, loop, done


def _send(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass  # that event loop is closed: there is no waiter


def _set_result(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():
        done.set_result(result)


def _set_exception(done: "asyncio.Future[T]", error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
