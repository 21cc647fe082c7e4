"""Press Ctrl-C: a polite tool, a deaf thread, a process tree and a retry stop, and the receipt says how."""

import asyncio
import signal
import threading

from safepoint import AbortController, AbortError, run_process
from safepoint.run import Context, Policy, Retry, leaf, settle


async def polite(ctx: Context, _: object) -> None:
    await ctx.signal.sleep(60)


def naive(ctx: Context, _: object) -> None:
    while True:  # ignores its signal, but stands in its own file: interrupted as by Ctrl-C
        sum(range(100_000))


def deaf(ctx: Context, _: object) -> None:
    threading.Event().wait(60)  # inside a library: named and left behind, never pretended to be stopped


async def build(ctx: Context, _: object) -> None:
    await run_process(["sh", "-c", "trap '' TERM; sleep 60 & sleep 60"], signal=ctx.signal, grace=0.5)


async def fetch(ctx: Context, _: object) -> None:
    async def attempt() -> None:
        raise ConnectionError("the server is down")

    await Retry(attempts=100, delay=20).run(attempt, ctx=ctx)


TOOLS = {polite: Policy(), naive: Policy(), deaf: Policy(abandon_after=1), build: Policy(grace=30), fetch: Policy()}


async def work(ctx: Context, _: object) -> None:
    print("Five tools are at work. Press Ctrl-C.", flush=True)

    async def tool(function: object, policy: Policy) -> None:
        try:
            await leaf(ctx, function, policy=policy)  # type: ignore[arg-type]
        except AbortError:
            pass  # the signal is the truth: settle looks at it

    async with asyncio.TaskGroup() as group:
        for function, policy in TOOLS.items():
            group.create_task(tool(function, policy))


async def main() -> None:
    controller = AbortController()
    with controller.on_signals(signal.SIGINT):
        outcome = await settle(Context(signal=controller.signal), work, None)
    print("completed" if outcome.status == "completed" else outcome.receipt)


asyncio.run(main())
