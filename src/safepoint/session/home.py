"""Owns where a session lives: its event loop and its tasks. Other threads hand their calls over here."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Home", "outlast"]

T = TypeVar("T")


class Home:
    """One event loop, and the tasks that a session has there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

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


async def outlast(task: "asyncio.Task[T]") -> T:
    """Wait for a task that nobody may cut short. Whoever is told to go waits on, and goes then; told twice, at once."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    return task.result()
