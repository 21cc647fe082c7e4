"""Owns groups of many waiting tasks, and the ways to end them all. Each returns the seconds per task until the end.

"Until the end" is until the group that owns the tasks has closed; for bare tasks, which nobody owns, until the last
one has run.
"""

import asyncio

import anyio
import trio
import trio.testing

from safepoint.abort import AbortController, AbortError, AbortSignal

from ..measure import cpu

__all__ = ["aborted", "aborted_bare", "anyio_group", "event_set", "raw", "raw_bare", "trio_nursery"]


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def guarded(signal: AbortSignal) -> None:
    try:
        with signal.guard():
            await asyncio.get_running_loop().create_future()
    except AbortError:
        pass


async def all_wait() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def aborted(size: int) -> float:
    controller = AbortController()
    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(guarded(controller.signal))
        await all_wait()
        start = cpu()
        controller.abort()
    return (cpu() - start) / size


async def raw(size: int) -> float:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(forever()) for _ in range(size)]
        await all_wait()
        start = cpu()
        for task in tasks:
            task.cancel()
        tasks.clear()  # so that the tasks vanish as they end, like those of the others
    return (cpu() - start) / size


async def event_set(size: int) -> float:
    event = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(event.wait())
        await all_wait()
        start = cpu()
        event.set()
    return (cpu() - start) / size


async def anyio_group(size: int) -> float:
    async with anyio.create_task_group() as group:
        for _ in range(size):
            group.start_soon(forever)
        await all_wait()
        start = cpu()
        group.cancel_scope.cancel()
    return (cpu() - start) / size


def trio_nursery(size: int) -> float:
    async def main() -> float:
        async with trio.open_nursery() as nursery:
            for _ in range(size):
                nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
            start = cpu()
            nursery.cancel_scope.cancel()
        return (cpu() - start) / size

    return float(trio.run(main))


async def aborted_bare(size: int) -> float:
    controller = AbortController()
    tasks = [asyncio.ensure_future(guarded(controller.signal)) for _ in range(size)]
    await all_wait()
    start = cpu()
    controller.abort()
    await asyncio.wait(tasks[-1:])  # they run in the order in which they were made
    return (cpu() - start) / size


async def raw_bare(size: int) -> float:
    tasks = [asyncio.ensure_future(forever()) for _ in range(size)]
    await all_wait()
    start = cpu()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks[-1:])
    return (cpu() - start) / size
