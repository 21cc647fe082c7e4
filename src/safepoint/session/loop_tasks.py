"""Owns where a session lives: its event loop and its tasks. Other threads hand their calls over here."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import UsageError

__all__ = ["LoopTasks", "wait_uninterrupted"]

T = TypeVar("T")


class LoopTasks:
    """One event loop, and the tasks that a session has there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def here(self) -> bool:
        """True: the code that asks runs at home, so nothing else does meanwhile."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:  # no event loop runs in this thread: at home that means that it stands still
            return threading.get_ident() == self._thread and not self.gone

    @property
    def gone(self) -> bool:
        """True: the event loop is closed. Nothing runs there any more, and nothing ever will."""
        return self._loop.is_closed()

    def require(self, what: str, instead: str) -> None:
        """Refuse a call from elsewhere, because its answer could not be given at once. Raises: UsageError."""
        if not self.here:
            raise self._elsewhere(what, instead)

    async def bring(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it at home, and wait for it here. Raises: UsageError if nothing runs there; what the work raises."""
        if self.here:
            return await work
        try:
            if not self._loop.is_running():  # it would be waited for, perhaps for ever
                raise self._elsewhere("what has to be done in its own event loop", "")
            ended = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        return await asyncio.wrap_future(ended)

    def _elsewhere(self, what: str, instead: str) -> UsageError:
        if self.gone:
            instead = "is closed: close the session, and open it again"
        elif not self._loop.is_running():
            instead = "does not run at the moment: call it from code that runs there"
        else:
            instead = f"runs in another thread: {instead}"
        return UsageError(f"{what} was called outside of the event loop of its session, which {instead}")

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Call it at home: now, if that is where we are. Where the loop is closed nothing is left to call."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            call(*args)
            return
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Begin a task that ends before the session does."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def empty(self) -> None:
        """Wait until all of them have ended, but the one that waits here."""
        while others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)


async def wait_uninterrupted(task: "asyncio.Task[T]") -> T:
    """Wait for a task that nobody may cut short. Whoever is told to go waits on, and goes then; told twice, at once."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    return task.result()
