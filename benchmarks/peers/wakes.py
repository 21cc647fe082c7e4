"""Owns the way from a thread to a task: the thread stamps before its call, the task stamps when it runs again."""

import asyncio
import threading
from collections.abc import Callable
from time import sleep

from safepoint.abort import AbortController, AbortError

from ..measure import wall

__all__ = ["abort", "call_soon_threadsafe"]

FALLING_ASLEEP = 0.001  # seconds in which a loop with nothing to do comes to rest


class Caller(threading.Thread):
    """Calls when the task that made it waits and its loop sleeps, and keeps when it did."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call
        self._waiting = threading.Event()
        self.stamp = 0.0
        self.start()
        asyncio.get_running_loop().call_soon(self._waiting.set)

    def run(self) -> None:
        self._waiting.wait()
        sleep(FALLING_ASLEEP)
        self.stamp = wall()
        self._call()


async def abort() -> float:
    controller = AbortController()
    future = asyncio.get_running_loop().create_future()
    thread = Caller(controller.abort)
    try:
        with controller.signal.guard():
            await future
    except AbortError:
        awake = wall()
    thread.join()
    return awake - thread.stamp


async def call_soon_threadsafe() -> float:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    thread = Caller(lambda: loop.call_soon_threadsafe(future.set_result, None))
    await future
    awake = wall()
    thread.join()
    return awake - thread.stamp
