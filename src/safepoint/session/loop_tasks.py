"""Owns the tasks that run on one event loop, and how code on other threads and loops calls into that loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar, TypeVarTuple

from ..abort.event_loop import call_in
from ..errors import UsageError

__all__ = ["LoopTasks", "wait_uninterrupted"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopTasks:
    """Tasks that run on one event loop and end before their owner does. Made in the loop to which it belongs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def in_loop(self) -> bool:
        """Whether the calling code runs on this loop, or on its thread while the loop stands still.

        In both cases nothing else of the loop runs at the same time.
        """
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:  # no event loop runs in this thread
            return threading.get_ident() == self._thread and not self.loop_closed

    @property
    def loop_closed(self) -> bool:
        """Whether the event loop is closed, so that nothing will ever run on it again."""
        return self._loop.is_closed()

    def require_loop(self, what: str, instead: str) -> None:
        """Refuse a call from elsewhere, because its result could not be returned at once.

        Args:
            what: What was called, for the message.
            instead: What the caller can do instead, for the message.

        Raises:
            UsageError: The caller does not run on this loop.
        """
        if not self.in_loop:
            raise self._elsewhere(what, instead)

    async def run(self, work: Coroutine[object, None, T]) -> T:
        """Run a coroutine on this loop, and wait for it on the caller's loop.

        Raises:
            UsageError: The loop does not run, so that the wait might never end.
        """
        if self.in_loop:
            return await work
        try:
            if not self._loop.is_running():
                raise self._elsewhere("what has to be done in its own event loop", "")
            ended = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        return await asyncio.wrap_future(ended)

    def _elsewhere(self, what: str, instead: str) -> UsageError:
        if self.loop_closed:
            instead = "is closed: close the session, and open it again"
        elif not self._loop.is_running():
            instead = "does not run at the moment: call it from code that runs there"
        else:
            instead = f"runs in another thread: {instead}"
        return UsageError(f"{what} was called outside of the event loop of its session, which {instead}")

    def call(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Run a function on the loop: immediately if already there, otherwise from the loop's thread.

        Does nothing once the loop is closed: nothing is left there that the call could be for.
        """
        call_in(self._loop, callback, *args)

    def spawn(self, work: Coroutine[object, None, T], name: str) -> "asyncio.Task[T]":
        """Start a task on this loop. `wait_all` waits for it."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_all(self) -> None:
        """Wait until all tasks have ended, except the calling one."""
        while others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)


async def wait_uninterrupted(task: "asyncio.Task[T]") -> T:
    """Wait until `task` is done, even if the waiting task is cancelled meanwhile.

    The cancellation is raised afterwards, so the caller still ends. A second cancellation (the loop is shutting down)
    ends the wait immediately.
    """
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    return task.result()
