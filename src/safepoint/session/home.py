"""Owns where a session lives: its event loop and its tasks. Other threads hand their calls over here."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Home"]


class Home:
    """One event loop, and the tasks that a session has there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Call it at home: now, if that is where we are."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            call(*args)
        else:
            self._loop.call_soon_threadsafe(call, *args)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Begin a task that ends before the session does."""
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def empty(self) -> None:
        """Wait until all of them have ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
