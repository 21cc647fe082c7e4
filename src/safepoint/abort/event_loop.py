"""Owns how code reaches and waits for what runs in one event loop: calls from elsewhere, futures, events, changes.

What belongs to an event loop is used in its own thread only, and a call from elsewhere has to be posted there. That the
loop is closed is no error in this module: nothing runs there any longer that would have to know.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

__all__ = ["Broadcast", "call_in", "fail", "post", "resolve", "set_within", "wake"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
    """Call a function in an event loop soon. May be used in any thread.

    Returns:
        False if the loop is closed, so that the function will not be called.
    """
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        return False
    return True


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call a function in an event loop: immediately if that loop runs this code, otherwise soon."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:  # no event loop runs in this thread
        here = False
    if here:
        callback(*args)
    else:
        post(loop, callback, *args)


def resolve(future: "asyncio.Future[T]", value: T) -> None:
    """Set the result of a future, unless it is done: the task that waited for it may have been cancelled."""
    if not future.done():
        future.set_result(value)


def fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    """Set the exception of a future, unless it is done."""
    if not future.done():
        future.set_exception(error)


def wake(waiter: "asyncio.Future[None]") -> None:
    """Resolve a future in its own event loop. May be used in any thread."""
    call_in(waiter.get_loop(), resolve, waiter, None)


async def set_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait until `event` is set, but no longer than `seconds`.

    Even if no time is left, other tasks run once, so that a loop around this cannot block the event loop.

    Returns:
        Whether the event is set.
    """
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Broadcast:
    """Wakes all tasks of one event loop that wait for the next change.

    A task takes `next` *before* it looks at what may change, and waits on it afterwards. So it does not miss a change
    that happens between the two.
    """

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def notify(self) -> None:
        """Wake the tasks that wait. What is taken from `next` after this waits for a later change."""
        self.next.set()
        self.next = asyncio.Event()
