"""Scenarios without a defect: whatever is aborted in them, wherever, no law may be broken."""

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator

from safepoint.abort import AbortController, AbortError, current_clock, current_signal, fence, run_in_thread, shield
from safepoint.process import run_process
from safepoint.testing import Probe, point


async def work(seconds: float = 1.0) -> str:
    await current_clock().sleep(seconds)
    return "worked"


async def chunks(count: int = 3) -> AsyncIterator[int]:
    try:
        for number in range(count):
            await work()
            yield number
    finally:
        await asyncio.sleep(0)


async def guarded(probe: Probe) -> str:
    with probe.signal.guard():
        await work()
        return await work()


async def nested_guards(probe: Probe) -> str:
    inner = AbortController(probe.signal)
    with probe.signal.guard():
        await work()
        with inner.signal.guard():
            await work()
        return await work()


async def run_and_sleep(probe: Probe) -> str:
    await probe.signal.sleep(3)
    return await probe.signal.run(work())


async def effects_behind_a_fence(probe: Probe) -> int:
    notes = fence(probe, probe.signal)
    for number in range(3):
        await probe.signal.sleep(1)
        notes.record(f"effect {number}")
    return 3


async def streamed(probe: Probe) -> list[int]:
    received = []
    async with probe.signal.stream(chunks()) as stream:
        async for chunk in stream:
            received.append(chunk)
            await probe.signal.sleep(0.1)
    return received


async def streamed_without_a_block(probe: Probe) -> list[int]:
    async def chunks_that_close_at_once() -> AsyncIterator[int]:
        for number in range(3):
            await work()
            yield number

    received = []
    async for chunk in probe.signal.stream(chunks_that_close_at_once()):
        received.append(chunk)
        await probe.signal.sleep(0.1)
    return received


async def streamed_in_a_block_and_left_early(probe: Probe) -> int:
    async with probe.signal.stream(chunks()) as stream:
        async for chunk in stream:
            if chunk == 1:
                break
    return 1


async def shielded_cleanup(probe: Probe) -> str:
    try:
        return await probe.signal.run(work())
    finally:
        with shield(5):
            await work(2)
            probe.record("closed", cleanup=True)


async def shield_inside_a_guard(probe: Probe) -> str:
    with probe.signal.guard():
        await work()
        with shield(5):
            await work()
        return await work()


async def task_group(probe: Probe) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(probe.signal.run(work(seconds))) for seconds in (1, 2, 2)]
    return [task.result() for task in tasks]


async def nested_tasks(probe: Probe) -> str:
    async def outer() -> str:
        async with asyncio.TaskGroup() as group:
            inner = group.create_task(work(), name="inner")
            await work()
        return inner.result()

    async with asyncio.TaskGroup() as group:
        with probe.signal.guard():
            return await group.create_task(outer(), name="outer")


async def timeouts(probe: Probe) -> str:
    try:
        async with asyncio.timeout(1):
            await probe.signal.sleep(60)
    except TimeoutError:
        async with asyncio.timeout(60):
            return await probe.signal.run(work())
    raise AssertionError("it did not time out")


async def queue(probe: Probe) -> list[int]:
    items: asyncio.Queue[int | None] = asyncio.Queue(1)
    received = []

    async def produce() -> None:
        for number in (1, 2, 3, None):
            await probe.signal.run(items.put(number))

    async with asyncio.TaskGroup() as group:
        group.create_task(produce(), name="producer")
        while (item := await probe.signal.run(items.get())) is not None:
            received.append(item)
    return received


async def lock(probe: Probe) -> int:
    shared = asyncio.Lock()
    count = 0

    async def add() -> None:
        nonlocal count
        with probe.signal.guard():
            async with shared:
                await work()
                count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(add())
    assert not shared.locked()
    return count


async def polled(probe: Probe) -> int:
    for _ in range(3):
        probe.signal.raise_if_aborted()
        await asyncio.sleep(0)
    return 3


async def evented(probe: Probe) -> str:
    probe.event("run_started")
    try:
        probe.event("tool_started")
        point("between")
        try:
            return await probe.signal.run(work())
        finally:
            probe.event("tool_ended")
    finally:
        probe.event("run_ended")


async def listened(probe: Probe) -> str:
    with probe.signal.add_listener(lambda: None):
        return await probe.signal.run(work())


async def turned_into_an_abort(probe: Probe) -> str:
    """A stop and any exception is a stop."""
    try:
        return await probe.signal.run(work())
    except AbortError as error:
        try:
            raise ValueError("while cleaning up")
        except ValueError:
            raise error from None


PURE = [
    guarded,
    nested_guards,
    run_and_sleep,
    effects_behind_a_fence,
    streamed,
    streamed_without_a_block,
    streamed_in_a_block_and_left_early,
    shielded_cleanup,
    shield_inside_a_guard,
    task_group,
    nested_tasks,
    timeouts,
    queue,
    lock,
    polled,
    evented,
    listened,
    turned_into_an_abort,
]


async def in_a_thread(probe: Probe) -> str:
    def cooperates() -> str:
        return "ended" if current_signal().wait(0.01) else "waited"

    return await run_in_thread(cooperates, signal=probe.signal)


async def in_an_executor(probe: Probe) -> str:
    gate = threading.Event()
    asyncio.get_running_loop().call_soon(gate.set)
    with probe.signal.guard():
        await asyncio.to_thread(gate.wait, 10)
    return "waited"


async def in_a_process(probe: Probe) -> bytes:
    program = [sys.executable, "-S", "-c", "print('hello')"]
    return (await run_process(program, signal=probe.signal)).stdout


async def over_a_socket(probe: Probe) -> bytes:
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.setblocking(False)
        async with asyncio.TaskGroup() as group:
            group.create_task(probe.signal.run(loop.sock_sendall(there, b"hello")))
            return await probe.signal.run(loop.sock_recv(here, 100))


IMPURE = [in_a_thread, in_an_executor, in_a_process, over_a_socket]
