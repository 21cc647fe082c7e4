"""A thousand leaves of all kinds, stopped at a random moment: every entry of the receipt is true, nothing is left."""

import asyncio
import os
import random
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError
from safepoint.run import Aborted, Context, Policy, Retry, ask, leaf, settle, stream, wait
from tests.conftest import counts
from tests.run import leaf_functions


class Truth:
    """What one leaf knows of itself: whether its body began, and whether it is over."""

    def __init__(self) -> None:
        self.began = False
        self.over = False

    def __enter__(self) -> None:
        self.began = True

    def __exit__(self, *_: object) -> None:
        self.over = True


async def awaiting(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    seconds = rng.uniform(0, 2)

    async def body(leaf_ctx: Context, _: object) -> None:
        with truth:
            await asyncio.sleep(seconds)  # real time: some end before the stop, some after

    await leaf(ctx, body, name=name)


async def threaded(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    seconds = rng.uniform(0, 2)

    def body(leaf_ctx: Context, _: object) -> None:
        with truth:
            leaf_ctx.signal.wait(seconds)

    await leaf(ctx, body, name=name)


async def naive(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    await leaf(ctx, leaf_functions.spinning, truth, name=name)


async def streaming(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    last = rng.randint(0, 40)

    async def source() -> AsyncIterator[int]:
        with truth:
            for number in range(last):
                await asyncio.sleep(0.05)  # real time: some end before the stop, some after
                yield number

    async with stream(ctx, source(), name=name) as chunks:
        async for _ in chunks:
            pass


async def retrying(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    async def body(leaf_ctx: Context, _: object) -> None:
        with truth:
            await Retry(attempts=9, delay=0.3).run(failing, ctx=leaf_ctx)

    async def failing() -> None:
        raise ConnectionError("down")

    try:
        await leaf(ctx, body, name=name)
    except ConnectionError:
        pass


async def asking(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    seconds = rng.uniform(0, 2)

    async def person(question: str) -> str:
        with truth:
            await asyncio.sleep(seconds)  # real time: a person thinks
            return "yes"

    await ask(ctx.child(name), "?", person)


async def pausing(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    try:
        await wait(ctx.child(name), rng.uniform(0, 2))
    finally:
        truth.over = True  # a pause has no body of ours that could tell whether it began


async def isolated(ctx: Context, name: str, truth: Truth, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "pid")
        try:
            policy = Policy(isolation="process", grace=0.2)
            await leaf(ctx, leaf_functions.process_naive, str(told), name=name, policy=policy)
        finally:
            truth.began = told.exists()
            truth.over = not (truth.began and Path("/proc", told.read_text()).exists())


KINDS = [(awaiting, 380), (threaded, 150), (naive, 20), (streaming, 150), (retrying, 100), (asking, 100), (pausing, 96)]


async def run_all(seed: int) -> None:
    rng = random.Random(seed)
    controller = AbortController()
    truths: dict[str, Truth] = {}

    async def one(ctx: Context, kind: Any, name: str) -> None:
        truths[name] = Truth()
        try:
            await asyncio.sleep(rng.uniform(0, 4))  # real time: some have not started when the stop comes
            await kind(ctx, name, truths[name], rng)
        except AbortError:
            pass

    async def work(ctx: Context, _: object) -> None:
        async with asyncio.TaskGroup() as group:
            for kind, number in [*KINDS, (isolated, 4)]:
                for index in range(number):
                    group.create_task(one(ctx, kind, f"{kind.__name__}-{index}"))

    async def stop() -> None:
        """At a random moment, but in the middle: on a busy machine that may come later."""
        await asyncio.sleep(rng.uniform(0.3, 1.2))  # real time: leaves begin and end
        while sum(truth.began and not truth.over for truth in truths.values()) < 20:
            await asyncio.sleep(0.01)  # real time: some more begin
        controller.abort("random moment")

    async with asyncio.TaskGroup() as group:
        group.create_task(stop())
        outcome = await settle(Context(signal=controller.signal), work, None)
    assert isinstance(outcome, Aborted)
    fates = Counter(entry.fate for entry in outcome.receipt.entries)
    assert fates["stopped"] > 0
    assert fates["not_started"] > 0
    assert fates["unknown"] == fates["still_running"] == 0
    for entry in outcome.receipt.entries:
        truth = truths[entry.name.split("/")[1]]
        if entry.fate == "not_started":
            assert not truth.began, f"{entry} began"
        else:
            assert truth.over, f"{entry} is not over"
    assert controller.signal.observers == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(counts(1, 20)))
async def test_every_entry_is_true_and_nothing_is_left(seed: int):
    files, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    before = children_of(os.getpid())  # such as a server that other tests share
    await run_all(seed)
    new = set(threading.enumerate()) - threads
    assert [thread.name for thread in new if not thread.name.startswith("safepoint-")] == [], "threads were left"
    assert len(os.listdir("/proc/self/fd")) <= files + 2, "files were left open"
    assert set(children_of(os.getpid())) <= set(before), "processes were left"


def children_of(parent: int) -> list[int]:
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        return [int(pid) for pid in file.read().split()]
