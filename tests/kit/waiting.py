"""Ways to wait for something in a test. Each is bounded, and none of them sleeps for a fixed time and hopes."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from safepoint.testing import drain_ready_tasks

T = TypeVar("T")
SECONDS = 15.0


async def loop_until(fact: Callable[[], object]) -> None:
    """Let the event loop run until the fact is true. No real time is involved."""
    for _ in range(1000):
        if fact():
            return
        await drain_ready_tasks()
    raise AssertionError("it did not happen")


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true. The time limit of the test is the bound."""
    while not condition():
        await asyncio.sleep(0.001)  # real time: a thread, a program or a socket has to get somewhere


async def eventually(fact: Callable[[], Awaitable[Any]], seconds: float = SECONDS) -> Any:
    """Ask until the answer is true: for what happens in other threads and processes."""
    limit = time.monotonic() + seconds
    while not (found := await fact()):
        assert time.monotonic() < limit, "it did not happen"
        await asyncio.sleep(0.01)  # real time: it happens elsewhere
    return found


def wait_until(condition: Callable[[], object]) -> None:
    """Block this thread until the condition is true. Bounded."""
    __tracebackhide__ = True
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not come true in time")


async def within(seconds: float, awaitable: Any) -> Any:
    async with asyncio.timeout(seconds):
        return await awaitable
