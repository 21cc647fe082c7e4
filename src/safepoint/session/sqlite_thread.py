"""Owns a thread that does a database's work, one call after the other, for event loops that must not be blocked.

Knows nothing of databases: a failure comes out where the call is awaited, as it is.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["DatabaseThread"]

T = TypeVar("T")
# A call for the thread, and how its result gets back to whoever waits for it.
Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class DatabaseThread:
    """One thread. It begins with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def begun(self) -> bool:
        """True: there was a call."""
        return self._thread is not None

    @property
    def left_by_fork(self) -> int:
        """The process in which the thread is, if that is another one: a fork does not take threads along. Else 0."""
        return self._pid if self._thread is not None and self._pid != os.getpid() else 0

    def do(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Do it when its turn has come. What is begun is done, whatever becomes of whoever waits."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        done: asyncio.Future[T] = loop.create_future()
        self._calls.put((call, loop, done))
        return done

    def end(self) -> None:
        """The thread ends when it has done what was asked for before."""
        self._calls.put(None)

    def join(self) -> None:
        """Wait for its end, in another thread."""
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            call, loop, done = item
            result: Any = None
            failure: BaseException | None = None
            try:
                result = call()
            except BaseException as error:
                failure = error
            try:
                loop.call_soon_threadsafe(_tell, done, result, failure)
            except RuntimeError:
                pass  # that loop is closed: nobody is left who waits
            del item, call, loop, done, result, failure  # while it waits for the next, it keeps nothing of the last


def _tell(done: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(result)
    else:
        done.set_exception(failure)
