"""Owns the ways to await an operation so that something else can interrupt it. Each returns the seconds for one await.

The loops are written out: a function around each would cost as much as what is measured.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio

from safepoint.abort import AbortController

from ..measure import cpu

__all__ = ["Operation", "bare", "guarded", "instant", "one_turn", "scoped", "two_tasks"]

Operation: TypeAlias = Callable[[], Awaitable[None]]


async def instant() -> None:
    """An operation that does not suspend."""


async def one_turn() -> None:
    """An operation that suspends for one turn of the loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_soon(future.set_result, None)
    await future


async def bare(operation: Operation, count: int) -> float:
    start = cpu()
    for _ in range(count):
        await operation()
    return (cpu() - start) / count


async def guarded(operation: Operation, count: int) -> float:
    signal = AbortController().signal
    start = cpu()
    for _ in range(count):
        with signal.guard():
            await operation()
    return (cpu() - start) / count


async def scoped(operation: Operation, count: int) -> float:
    start = cpu()
    for _ in range(count):
        with anyio.CancelScope():
            await operation()
    return (cpu() - start) / count


async def two_tasks(operation: Operation, count: int) -> float:
    """The usual race: whichever of two tasks ends first, and the other is ended properly."""
    event = asyncio.Event()
    start = cpu()
    for _ in range(count):
        work = asyncio.ensure_future(operation())
        stop = asyncio.ensure_future(event.wait())
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        try:
            await stop
        except asyncio.CancelledError:
            pass
        work.result()
    return (cpu() - start) / count
