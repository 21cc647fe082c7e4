"""Press Ctrl-C: eight ordinary tools stop, and the receipt says how."""

import asyncio
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable

from safepoint import AbortController, run_process
from safepoint.run import Context, Policy, Retry, leaf, settle


async def cooperative(ctx: Context, _: object) -> None:
    await ctx.signal.sleep(60)


def naive(ctx: Context, _: object) -> None:
    while True:  # never checks its signal; it is interrupted in its own code, as by Ctrl-C
        sum(range(100_000))


def stuck(ctx: Context, _: object) -> None:
    threading.Event().wait(60)  # waits inside a library: it is abandoned, and listed as still running


def convert(ctx: Context, _: object) -> None:
    subprocess.run(["sleep", "60"], check=True)  # the program ends with the tool


def download(ctx: Context, _: object) -> bytes:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts the connection and never answers
        data: bytes = urllib.request.urlopen(f"http://127.0.0.1:{silent.getsockname()[1]}/").read()
    return data


async def transcode(ctx: Context, _: object) -> None:
    program = await asyncio.create_subprocess_exec("sleep", "60")
    await program.wait()


async def build(ctx: Context, _: object) -> None:
    await run_process(["sh", "-c", "trap '' TERM; sleep 60 & sleep 60"], signal=ctx.signal, grace=0.1)


async def fetch(ctx: Context, _: object) -> None:
    async def attempt() -> None:
        raise ConnectionError("the server is down")

    await Retry(attempts=100, delay=20).run(attempt, ctx=ctx)


TOOLS: list[Callable[..., object]] = [cooperative, naive, stuck, convert, download, transcode, build, fetch]
POLICIES: dict[Callable[..., object], Policy] = {stuck: Policy(abandon_after=0.2), build: Policy(grace=30)}


async def work(ctx: Context, _: object) -> None:
    print("Eight tools are running. Press Ctrl-C.", flush=True)

    async def tool(function: Callable[..., object]) -> None:
        try:
            await leaf(ctx, function, policy=POLICIES.get(function, Policy()))
        except Exception:
            pass  # settle decides by the signal, whichever error came out

    async with asyncio.TaskGroup() as group:
        for function in TOOLS:
            group.create_task(tool(function))


async def main() -> None:
    controller = AbortController()
    with controller.on_signals(signal.SIGINT):
        outcome = await settle(Context(signal=controller.signal), work, None)
    print("completed" if outcome.status == "completed" else outcome.receipt)


asyncio.run(main())
