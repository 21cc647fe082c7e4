"""Owns the benchmark of turns: what one costs beside a bare queue and a task, and what a million waiting items cost."""

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

from safepoint.run import Context, StopAt
from safepoint.turns import TurnLoop, TurnPlan

from .measure import AtMost, Limit, Line, Measure, cpu
from .peers import queues

SHORT = 4
ITEMS = 1_000
PREEMPTS = 300
MANY, FEW = 1_000_000, 10_000


def peers() -> dict[str, str]:
    return {}


def lines(measure: Measure) -> Iterator[Line]:
    yield from one_by_one(measure)
    yield from preempting(measure)
    yield from queued(measure)
    yield from kept(measure)


def one_by_one(measure: Measure) -> Iterator[Line]:
    samples = measure(
        "one item per turn",
        lambda: asyncio.run(turns(ITEMS)),
        {"await create_task(work(await queue.get()))": lambda: asyncio.run(queues.bare(ITEMS))},
        samples=SHORT,
    )
    why = (
        "half of it is the leaf and its outcome (see the benchmark of runs); the other half the plan under its guard,"
        " and a signal, a stop and a context of the turn's own. Beside a turn that asks a model, 40 us are nothing"
    )
    return samples.lines({"await create_task(work(await queue.get()))": AtMost(5.8, why)})


def preempting(measure: Measure) -> Iterator[Line]:
    samples = measure(
        "a preempt, until the next turn has begun",
        lambda: asyncio.run(preempted(PREEMPTS)),
        {"task.cancel() and a new task": lambda: asyncio.run(queues.replaced(PREEMPTS))},
        samples=SHORT,
    )
    why = "it is two turns: one that is interrupted and ends with its receipt, one that is planned and begun"
    return samples.lines({"task.cancel() and a new task": AtMost(9, why)})


def queued(measure: Measure) -> Iterator[Line]:
    """A hundred times as many: one costs the same."""
    samples = measure(
        f"pushing and handling each of {MANY:,} items, 100 a turn",
        lambda: asyncio.run(turns(MANY, batch=100)),
        {f"itself with {FEW:,}": lambda: asyncio.run(turns(FEW, batch=100))},
    )
    return samples.lines({f"itself with {FEW:,}": AtMost(1.2)})


def kept(measure: Measure) -> Iterator[Line]:
    """Not a matter of time, hence not of rounds: what a queue needs for each item, beside an `asyncio.Queue`."""
    what = f"memory of each of {MANY:,} items that wait"
    measure.tell(what)
    loop: TurnLoop[int] = TurnLoop(plan)
    queue: asyncio.Queue[int] = asyncio.Queue()
    ours = memory(lambda item: loop.push(item)) / MANY
    theirs = memory(queue.put_nowait) / MANY
    why = "each item has an entry of its own, so that it can be taken out again without a lock"
    yield Line(
        what=what, ours=ours, peer="asyncio.Queue", theirs=theirs, ratio=ours / theirs, unit="B", target=Limit(100, why)
    )


def memory(put: object) -> int:
    assert callable(put)
    gc.collect()
    tracemalloc.start()
    try:
        for item in range(MANY):
            put(item)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


async def work(ctx: Context, value: object) -> object:
    return value


async def plan(items: list[int]) -> TurnPlan[int]:
    return TurnPlan(work, items)


async def turns(size: int, batch: int = 1) -> float:
    done = asyncio.Event()

    async def handle(ctx: Context, items: list[int]) -> None:
        if items[-1] == size - 1:
            done.set()

    async def plan_all(items: list[int]) -> TurnPlan[int]:
        return TurnPlan(handle, items)

    loop: TurnLoop[int] = TurnLoop(plan_all, batch=batch)
    start = cpu()
    for item in range(size):
        loop.push(item)
    async with loop:
        await done.wait()
        return (cpu() - start) / size


async def preempted(size: int) -> float:
    begun = asyncio.Event()

    async def forever(ctx: Context, value: object) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def plan_forever(items: list[int]) -> TurnPlan[int]:
        return TurnPlan(forever)

    loop: TurnLoop[int] = TurnLoop(plan_forever)
    async with loop:
        loop.push(0)
        await begun.wait()
        start = cpu()
        for item in range(size):
            begun.clear()
            loop.push(item, preempt=StopAt.NOW)
            await begun.wait()
        cost = (cpu() - start) / size
        loop.stop(at=StopAt.NOW)
    return cost
