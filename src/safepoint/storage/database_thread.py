"""Owns a thread that makes the calls of a database one after the other, so that they do not block an event loop.

Knows nothing of databases: what a call raises is raised where it is awaited.

Three things must hold, whatever happens to the caller:

- **A call that was queued is made**, even if its caller is cancelled before it begins or while it runs. The future only
  carries the result; cancelling it takes nothing out of the queue. A store relies on that: a batch that was handed over
  is either written or reported as failed, never dropped silently.
- **The result goes back into the caller's event loop**, because a future may only be set there. That loop may be closed
  by then, as at the end of `asyncio.run`. Then there is no waiter, and the result is dropped; the call itself has been
  made.
- **The thread keeps nothing of the last call while it waits for the next**: a result may be a large list of records.

The thread is a daemon, so that a program that forgets to close its store can end. A fork takes no threads along:
`left_by_fork` tells that a child process has only a copy of the object and none of its thread.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from ..abort.threads import thread_call

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
        if self._thread is None:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        run, done = thread_call(call)
        self._calls.put(run)
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
