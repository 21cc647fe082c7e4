"""Owns the benchmark of the run layer: what a leaf costs when all goes well, and when a thousand are stopped."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

from safepoint.abort import AbortController, AbortError
from safepoint.abort.resource_account import current_account, reset_account
from safepoint.run import Context, Policy, leaf
from safepoint.run.leaf_run import LeafRun

from .measure import AtMost, Contender, Limit, Line, Measure, cpu, wall
from .peers import crowds

SHORT = 4
STOPPED = 1_000
ACCOUNTS = 20_000


def peers() -> dict[str, str]:
    return {}


def lines(measure: Measure) -> Iterator[Line]:
    yield from inline(measure)
    yield from threaded(measure)
    yield from stopping(measure)
    yield from auditing(measure)
    yield from accounting(measure)


def inline(measure: Measure) -> Iterator[Line]:
    ctx = Context(signal=AbortController().signal)

    async def ours() -> None:
        await leaf(ctx, answer, 1)

    async def timeout() -> None:
        async with asyncio.timeout(10):
            await answer(ctx, 1)

    samples = measure(
        "an awaited leaf", repeated(ours, 2_000), {"asyncio.timeout(10)": repeated(timeout, 2_000)}, samples=SHORT
    )
    why = (
        "beside its guard, a leaf has an entry in the receipt, a start gate, a context and an account of what it"
        " starts, which a timer does not have"
    )
    return samples.lines({"asyncio.timeout(10)": AtMost(2, why)})


def threaded(measure: Measure) -> Iterator[Line]:
    ctx = Context(signal=AbortController().signal)

    async def ours() -> None:
        await leaf(ctx, answer_in_thread, 1)

    async def to_thread() -> None:
        await asyncio.to_thread(answer_in_thread, ctx, 1)

    samples = measure(
        "a leaf in a thread",
        repeated(ours, 200, wall),
        {"asyncio.to_thread": repeated(to_thread, 200, wall)},
        samples=SHORT,
    )
    why = "measured by the wall clock between two threads, so it varies from run to run: 1.19 to 1.46 were seen"
    return samples.lines({"asyncio.to_thread": AtMost(1.35, why)})


def stopping(measure: Measure) -> Iterator[Line]:
    samples = measure(
        f"stop of {STOPPED:,} running leaves in a TaskGroup, each",
        lambda: asyncio.run(stopped(STOPPED)),
        {"task.cancel()": lambda: asyncio.run(crowds.raw(STOPPED))},
        samples=SHORT,
    )
    why = "a guarded task alone costs 1.7 x; the rest is the leaf's line in the receipt and its watch"
    return samples.lines({"task.cancel()": AtMost(3, why)})


def auditing(measure: Measure) -> Iterator[Line]:
    """A hook cannot be taken out again, so each side opens its files in a process of its own."""
    samples = measure(
        "opening 10,000 files with the audit hook",
        lambda: opening(hooked=True),
        {"without it": lambda: opening(hooked=False)},
        samples=SHORT,
    )
    return samples.lines({"without it": AtMost(1.08)})


# Inside of a leaf in both cases; the second without the hook that the leaf would install.
OPENING = """
import asyncio, sys, time
from safepoint.run import Context, leaf
from safepoint.run.owned import hook

async def tool(ctx, value):
    best = 1e9
    for _ in range(5):
        start = time.process_time()
        for _ in range(10_000):
            open(sys.executable, "rb").close()
        best = min(best, time.process_time() - start)
    return best

if sys.argv[1] == "plain":
    hook.install = lambda: None
print(asyncio.run(leaf(Context(), tool)) / 10_000)
"""


def opening(*, hooked: bool) -> float:
    command = [sys.executable, "-c", OPENING, "hooked" if hooked else "plain"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def accounting(measure: Measure) -> Iterator[Line]:
    """What the account of a leaf that starts nothing costs, on a real leaf: to name it, to take it back, to look."""
    run = asyncio.run(a_leaf())

    def accounted() -> float:
        start = cpu()
        for _ in range(ACCOUNTS):
            account = current_account.set(run)
            reset_account(account)
            if run.owned is not None:
                raise AssertionError("it has started nothing")
        return (cpu() - start) / ACCOUNTS

    def bare() -> float:
        start = cpu()
        for _ in range(ACCOUNTS):
            pass
        return (cpu() - start) / ACCOUNTS

    what = "the account of a leaf that starts nothing, beside an empty loop"
    return measure(what, accounted, {"an empty loop": bare}, samples=SHORT).lines({"an empty loop": Limit(0.3e-6)})


async def a_leaf() -> LeafRun[Context]:
    return LeafRun(Context(signal=AbortController().signal), "leaf", "await", Policy())


async def answer(ctx: Context, value: int) -> int:
    return value


def answer_in_thread(ctx: Context, value: int) -> int:
    return value


async def stopped(size: int) -> float:
    controller = AbortController()
    ctx = Context(signal=controller.signal)

    async def forever(leaf_ctx: Context, value: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def one() -> None:
        try:
            await leaf(ctx, forever)
        except AbortError:
            pass

    async with asyncio.TaskGroup() as group:
        for _ in range(size):
            group.create_task(one())
        await crowds.all_wait()
        start = cpu()
        controller.abort()
    return (cpu() - start) / size


def repeated(step: Callable[[], Awaitable[None]], count: int, clock: Callable[[], float] = cpu) -> Contender:
    async def run() -> float:
        start = clock()
        for _ in range(count):
            await step()
        return (clock() - start) / count

    return lambda: asyncio.run(run())
