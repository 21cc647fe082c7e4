"""Functions in threads: looked after together, less and less often, and ended with the leaf they belong to."""

import asyncio
import functools
import threading
import time

import pytest

from safepoint import run_in_thread
from safepoint.run import Context, Policy
from tests.kit.leaves import Gate, stop


async def test_a_loop_inside_a_tool_is_ended_through_its_main_task():
    gate, cleaned = Gate(), []

    async def inside() -> None:
        gate.open()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.append(1)

    def tool(ctx: Context, value: object) -> None:
        asyncio.run(inside())

    stopped = await stop(tool, gate._event.is_set)
    assert stopped.seconds < 1
    assert stopped.fate("tool") == "stopped"
    assert cleaned == [1]


@pytest.mark.parametrize("call", ["to_thread", "run_in_executor", "run_in_thread"])
async def test_a_thread_behind_an_await_is_interrupted_by_the_same_rules(call):
    gate, effects = Gate(), []

    def function() -> None:
        gate.open()
        while True:
            effects.append(1)
            time.sleep(0.005)  # real time: a tool that has to be interrupted

    async def tool(ctx: Context, value: object) -> None:
        if call == "to_thread":
            await asyncio.to_thread(function)
        elif call == "run_in_executor":
            await asyncio.get_running_loop().run_in_executor(None, function)
        else:
            await run_in_thread(function)

    stopped = await stop(tool, gate._event.is_set)
    assert stopped.seconds < 2
    assert stopped.fate("function") == "stopped"
    after = len(effects)
    await asyncio.sleep(0.05)  # real time: if the thread went on, it would show
    assert len(effects) == after


@pytest.mark.parametrize("call", ["to_thread", "run_in_thread"])
async def test_a_thread_behind_an_await_that_cannot_be_interrupted_is_named(call):
    gate, let_go = Gate(), threading.Event()

    def function() -> None:
        gate.open()
        let_go.wait(30)  # inside a library

    async def tool(ctx: Context, value: object) -> None:
        await (asyncio.to_thread if call == "to_thread" else run_in_thread)(function)

    stopped = await stop(tool, gate._event.is_set)
    let_go.set()
    [entry] = stopped.entries("function")
    assert (entry.fate, entry.kind) == ("still_running", "thread")
    assert entry.where is not None
    assert f"{__file__}:{function.__code__.co_firstlineno + 2}" in entry.where
    assert stopped.seconds < 2


async def test_the_first_wait_before_an_interrupt_is_an_option():
    effects: list[float] = []

    def tool(ctx: Context, value: object) -> None:
        while True:
            effects.append(time.monotonic())
            time.sleep(0.01)  # real time: an effect every ten milliseconds

    stopped = await stop(tool, lambda: len(effects) > 2, Policy(interrupt_after=0.0))
    assert stopped.fate("tool") == "stopped"
    assert stopped.seconds < 0.09


async def test_hundreds_of_deaf_threads_cost_little():
    number, gates = 200, []
    let_go = threading.Event()

    def tool(gate: Gate, ctx: Context, value: object) -> None:
        gate.open()
        let_go.wait(120)  # inside a library

    async def all_of_them(ctx: Context, value: object) -> None:
        from safepoint.run import leaf

        async with asyncio.TaskGroup() as group:
            for _ in range(number):
                gates.append(Gate())
                group.create_task(leaf(ctx, functools.partial(tool, gates[-1]), name="deaf"))

    async def measure() -> float:
        """The share of a core that the process used: its own CPU time, whatever else the machine does."""
        before, start = time.process_time(), time.monotonic()
        await asyncio.sleep(1)  # real time: long enough to measure
        return (time.process_time() - before) / (time.monotonic() - start)

    idle = await measure()  # what other tests have left in this process
    running = asyncio.ensure_future(
        stop(all_of_them, lambda: len(gates) == number and all(gate._event.is_set() for gate in gates))
    )
    while not (len(gates) == number and all(gate._event.is_set() for gate in gates)):
        await asyncio.sleep(0.01)  # real time: threads have to start
    await asyncio.sleep(2)  # real time: the sampling has slowed down by then
    shares = [await measure() for _ in range(5)]
    let_go.set()
    await running
    assert min(shares) - idle < 0.05
