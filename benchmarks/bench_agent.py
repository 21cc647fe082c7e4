"""Owns the benchmark of agents: what a turn and a streamed chunk cost on top of the bare SDK, beside four frameworks.

The provider is a process of its own and the same for all; only the client's processor time counts. Then: what an import
costs, and two hundred streams stopped at once.
"""

import asyncio
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import TypeAlias

from safepoint import AbortController

from .measure import AtMost, Contender, Limit, Line, Measure, Unit, cpu
from .peers.agents import PEERS, Pieces, Turns, run_all
from .peers.provider import ProviderProcess, Seen

Stop: TypeAlias = "Callable[[list[asyncio.Task[None]]], object]"

TURNS, CHUNKS = 10, 400
STREAMS = 200
# A stream that nobody closes would go on for thirty seconds; one looks no longer than this.
START_SECONDS = 30.0
LOST_SECONDS = 2.0
# Two hundred streams of each of them take their time to begin.
STOP_ROUNDS = 5
BARE = "the bare SDK"
WHY_TIME = (
    "where chunks came faster than they were read, ours reads those that are here already, to unwind the SDK's"
    " generators and leave none to the garbage collector; that is about a quarter of its time"
)
WHY_CHUNKS = "the provider goes on until it sees a connection close, so this follows the time above, and its noise"
IMPORTS = {
    "openai-agents": "import agents",
    "pydantic-ai": "import pydantic_ai, pydantic_ai.models.openai",
    "LangGraph": "import langgraph.graph, langchain_openai",
    "autogen": "import autogen_agentchat.agents, autogen_ext.models.openai",
}
OURS = "import safepoint, safepoint.models.openai, openai"
CORE = "import safepoint.agent"
# Between this process and the measured one: Linux counts the memory of whoever starts a process as that process's.
START = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
# One event loop for all: LangChain shares its client among models, and a client belongs to a loop.
RUNNER = asyncio.Runner()


def peers() -> dict[str, str]:
    names = ("openai", "openai-agents", "pydantic-ai-slim", "langgraph", "langchain-openai", "autogen-agentchat")
    return {**{name: version(name) for name in names}, "rounds of stopped streams": str(STOP_ROUNDS)}


def lines(measure: Measure) -> Iterator[Line]:
    with ProviderProcess() as provider:
        turns = Turns(provider.base_url)
        targets = dict.fromkeys(PEERS, AtMost(0.5, "half of the best is the aim; at most 1 is the promise"))
        for what, name, count, per in (
            ("a turn, on top of the SDK", "words-1", TURNS, TURNS),
            ("a streamed chunk, on top of the SDK", f"words-{CHUNKS}", 1, CHUNKS),
        ):
            ours = contender(turns.ours(), name, count, per)
            others = {BARE: turns.bare(), **{peer: make(turns) for peer, make in PEERS.items()}}
            rest = {peer: contender(pieces, name, count, per) for peer, pieces in others.items()}
            yield from measure(what, ours, rest, samples=3).over(BARE).lines(targets)
        yield from stopping(measure, provider, turns)
    yield from importing(measure)


def contender(pieces: Pieces, name: str, turns: int, per: int) -> Contender:
    work = run_all(pieces, name, turns)

    def once() -> float:
        began = cpu()
        work(RUNNER)
        return (cpu() - began) / per

    return once


def stopping(measure: Measure, provider: ProviderProcess, turns: Turns) -> Iterator[Line]:
    """Until every client has ended and the provider has seen every connection close, and what was sent meanwhile.

    Ours is stopped by one abort; peers by cancelling their tasks. What goes on after `LOST_SECONDS` counts as that.
    """
    late: dict[str, list[int]] = {}

    def stop_all(name: str, make: Callable[[], tuple[Pieces, Stop]]) -> Contender:
        def once() -> float:
            gc.enable()  # some close a connection when garbage is collected
            seconds, chunks = RUNNER.run(begin_and_stop(provider, *make()))
            late.setdefault(name, []).append(chunks)
            return seconds

        return once

    def ours() -> tuple[Pieces, Stop]:
        controller = AbortController()
        return turns.ours(controller.signal), lambda tasks: controller.abort("stop")

    others = {name: stop_all(name, partial(cancelled, make, turns)) for name, make in PEERS.items()}
    measure = Measure(STOP_ROUNDS, measure.tell)
    samples = measure(f"{STREAMS} streams stopped, until all have ended", stop_all("ours", ours), others)
    yield from samples.lines(dict.fromkeys(others, AtMost(1, WHY_TIME)))
    chunks = {name: statistics.median(counts[1:]) for name, counts in late.items()}  # the first round does not count
    for name in others:
        yield Line(
            what=f"{STREAMS} streams stopped, chunks sent after that",
            ours=chunks["ours"],
            peer=name,
            theirs=chunks[name],
            ratio=chunks["ours"] / chunks[name] if chunks[name] else None,
            unit="",
            target=Limit(chunks[name], WHY_CHUNKS),
        )


def cancelled(make: Callable[[Turns], Pieces], turns: Turns) -> tuple[Pieces, Stop]:
    return make(turns), lambda tasks: [task.cancel() for task in tasks]


async def begin_and_stop(provider: ProviderProcess, pieces: Pieces, stop: Stop) -> tuple[float, int]:
    """Begin all of them, wait until each has said something, stop them together: how long, how many chunks."""
    provider.hang_up()
    heard = [asyncio.Event() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(read(pieces, event)) for event in heard]
    async with asyncio.timeout(START_SECONDS):
        for event in heard:
            await event.wait()
    stopped_at = time.monotonic()
    stop(tasks)
    await asyncio.wait(tasks, timeout=LOST_SECONDS)
    ended_at = time.monotonic()
    seen = await asyncio.to_thread(when_closed, provider, stopped_at + LOST_SECONDS)
    provider.hang_up()
    await asyncio.gather(*tasks, return_exceptions=True)
    last = max([ended_at, *(one.closed_at or math.inf for one in seen)])
    return min(last - stopped_at, LOST_SECONDS), sum(at > stopped_at for one in seen for at in one.sent_at)


async def read(pieces: Pieces, heard: asyncio.Event) -> None:
    async for _ in pieces("slow-300"):
        heard.set()


def when_closed(provider: ProviderProcess, deadline: float) -> list[Seen]:
    """What became of all streams, once their connections are closed, or at the deadline."""
    while True:
        seen = provider.exchanges()
        if all(one.closed_at is not None for one in seen) or time.monotonic() >= deadline:
            assert len(seen) == STREAMS, f"{len(seen)} requests came, not {STREAMS}"
            return seen
        time.sleep(0.01)  # the moments come from the provider: it may take them in peace


def importing(measure: Measure) -> Iterator[Line]:
    """A fresh process each: its processor time, and the memory it has at the end."""
    fields: tuple[tuple[str, str, Unit], ...] = (
        ("importing it with its client, in processor time", "seconds", "s"),
        ("importing it with its client, in memory", "bytes", "B"),
    )
    for what, field, unit in fields:
        samples = measure(what, imports(OURS, field), {name: imports(code, field) for name, code in IMPORTS.items()})
        yield from samples.lines(dict.fromkeys(IMPORTS, AtMost(1)), unit)
    alone = {"the SDK alone": imports("import openai", "seconds")}
    samples = measure("importing the agent without a client", imports(CORE, "seconds"), alone)
    yield from samples.lines({"the SDK alone": Limit(0.3)})


def imports(code: str, field: str) -> Contender:
    script = (
        "import json, resource, time; began = time.process_time();"
        f" {code};"
        " used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024;"
        " print(json.dumps({'seconds': time.process_time() - began, 'bytes': used}))"
    )

    def once() -> float:
        command = [sys.executable, "-c", START, script]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return float(json.loads(ended.stdout.splitlines()[-1])[field])

    return once
