"""A stop at any moment of a tool's life: what the tool started has ended, or the receipt names it by its pid."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from safepoint import AbortController
from safepoint.run import Completed, Context, leaf, settle
from tests.conftest import TORTURE, counts
from tests.kit.programs import children

pytestmark = [
    pytest.mark.usefixtures("programs_of_closed_loops"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning", "ignore:subprocess:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.timeout(400 if TORTURE else 60),
]

# In each tool `length` is a number of seconds that nobody else on the machine sleeps for: by it its programs are found.
# What a tool appends to `second` stands on the line after the one that was cut off.
second: list[str] = []
left_behind: list[asyncio.Task[None]] = []


def run_in_a_loop(ctx: Context, length: str) -> None:
    while True:
        subprocess.run(["sh", "-c", "sleep 0.005; :", length], check=False)


def capture(ctx: Context, length: str) -> None:
    text = subprocess.check_output(["sleep", length])
    second.append(f"captured {text!r}")


def shell(ctx: Context, length: str) -> None:
    subprocess.run(f"sleep {length} & sleep {length}; sleep {length}", shell=True, check=False)
    second.append("shell")


def sessions_of_their_own(ctx: Context, length: str) -> None:
    command = f"setsid sleep {length} & env -i setsid sleep {length}; wait"
    subprocess.run(["sh", "-c", command], check=False)
    second.append("sessions")


def system(ctx: Context, length: str) -> None:
    os.system(f"sleep {length}")
    second.append("system")


def spawn(ctx: Context, length: str) -> None:
    os.waitpid(os.posix_spawnp("sleep", ["sleep", length], os.environ), 0)
    second.append("spawn")


def fork(ctx: Context, length: str) -> None:
    pid = os.fork()
    if pid == 0:
        os.execvp("sleep", ["sleep", length])
    os.waitpid(pid, 0)
    second.append("fork")


def pool(ctx: Context, length: str) -> None:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: capture(ctx, length), range(4)))
    second.append("pool")


async def program(ctx: Context, length: str) -> None:
    process = await asyncio.create_subprocess_exec("sleep", length)
    await process.wait()
    second.append("program")


async def to_thread(ctx: Context, length: str) -> None:
    await asyncio.to_thread(capture, ctx, length)
    second.append("to_thread")


async def group(ctx: Context, length: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(program(ctx, length))
        tasks.create_task(to_thread(ctx, length))


async def task_left_behind(ctx: Context, length: str) -> None:
    async def wait_for_a_program() -> None:  # it goes on, so its program does too, and its next line may run
        process = await asyncio.create_subprocess_exec("sleep", length)
        await process.wait()

    left_behind.append(asyncio.create_task(wait_for_a_program()))
    await program(ctx, length)


TOOLS: list[Callable[[Context, str], Any]] = [
    run_in_a_loop,
    capture,
    shell,
    sessions_of_their_own,
    system,
    spawn,
    fork,
    pool,
    program,
    to_thread,
    group,
    task_left_behind,
]


@pytest.mark.parametrize("tool", TOOLS)
async def test_after_a_stop_at_any_moment_no_program_runs_that_the_receipt_does_not_name(
    tool: Callable[[Context, str], Any],
):
    rounds = counts(5, 100)
    second.clear()
    for number in range(rounds):
        length = f"{random.uniform(300, 400):.9f}"
        controller = AbortController()

        async def work(ctx: Context, length: str) -> None:
            await leaf(ctx, tool, length)

        running = asyncio.ensure_future(settle(Context(signal=controller.signal), work, length))
        await asyncio.sleep(0.05 * number / rounds)  # real time: from before the tool's start to its long wait
        controller.abort("stop")
        outcome = await running
        assert not isinstance(outcome, Completed)
        runs = children(length)
        named = {entry.pid for entry in outcome.receipt.still_running}
        assert set(runs) <= named, outcome.receipt
        assert outcome.receipt.end_survivors() == ()
        assert children(length) == []
    await asyncio.gather(*left_behind)
    left_behind.clear()
    if sys.version_info >= (3, 12):  # on 3.11 the exception may come one line late; the value is dropped all the same
        assert second == []
    assert len(second) <= max(1, rounds // 20)
