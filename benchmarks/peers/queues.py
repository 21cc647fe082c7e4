"""Owns the usual code without a turn loop: a queue and a task."""

import asyncio

from ..measure import cpu

__all__ = ["bare", "replaced"]


async def work(value: object) -> object:
    return value


async def bare(size: int) -> float:
    """`await create_task(work(await queue.get()))`, for each item."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def serve() -> None:
        for _ in range(size):
            await asyncio.create_task(work(await queue.get()))

    start = cpu()
    for item in range(size):
        queue.put_nowait(item)
    await asyncio.create_task(serve())
    return (cpu() - start) / size


async def replaced(size: int) -> float:
    """`task.cancel()`, then a new task, until that has begun."""
    begun = asyncio.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(forever())
    await begun.wait()
    start = cpu()
    for _ in range(size):
        begun.clear()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        task = asyncio.create_task(forever())
        await begun.wait()
    cost = (cpu() - start) / size
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    return cost
