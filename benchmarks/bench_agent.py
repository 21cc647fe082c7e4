"""Owns the benchmark of agents: what a turn and a streamed chunk cost on top of the bare SDK, beside four frameworks.

The provider is a process of its own and the same for all; only the client's processor time counts. Then: what an import
costs, and two hundred streams stopped at once.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from importlib.metadata import version

from .measure import AtMost, Contender, Line, Measure, cpu, wall
from .peers.agents import PEERS, Pieces, Turns, run_all
from .peers.provider import ProviderProcess

TURNS, CHUNKS = 10, 400
STREAMS = 200
BARE = "the bare SDK"
IMPORTS = {
    "openai-agents": "import agents",
    "pydantic-ai": "import pydantic_ai, pydantic_ai.models.openai",
    "LangGraph": "import langgraph.graph, langchain_openai",
    "autogen": "import autogen_agentchat.agents, autogen_ext.models.openai",
}
OURS = "import safepoint, safepoint.models.openai, openai"
CORE = "import safepoint.agent"
# One event loop for all: LangChain shares its client among models, and a client belongs to a loop.
RUNNER = asyncio.Runner()


def peers() -> dict[str, str]:
    names = ("openai", "openai-agents", "pydantic-ai-slim", "langgraph", "langchain-openai", "autogen-agentchat")
    return {name: version(name) for name in names}


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
    """Until the provider has seen every connection close. Peers are stopped by cancelling their tasks."""

    def stop_all(make: Callable[[], Pieces]) -> Contender:
        def once() -> float:
            provider.exchanges()
            stopped_at = RUNNER.run(begin_and_stop(make()))
            deadline = wall() + 10
            closed: list[float] = []
            while len(closed) < STREAMS and wall() < deadline:
                closed += [one["closed_at"] for one in provider.exchanges() if one["closed_at"] is not None]
            return max(closed, default=stopped_at + 10.0) - stopped_at if len(closed) >= STREAMS else 10.0

        return once

    others = {name: stop_all(partial(make, turns)) for name, make in PEERS.items()}
    samples = measure(f"{STREAMS} streams stopped, until all are closed", stop_all(turns.ours), others)
    yield from samples.lines(dict.fromkeys(others, AtMost(1)))


async def begin_and_stop(pieces: Pieces) -> float:
    """Begin all of them, wait until each has said something, end them together; the moment of the stop."""
    started = 0
    all_there = asyncio.Event()

    async def one() -> None:
        nonlocal started
        first = True
        source: AsyncIterator[str] = pieces("slow-300")
        async for _ in source:
            if first:
                first = False
                started += 1
                if started == STREAMS:
                    all_there.set()

    tasks = [asyncio.ensure_future(one()) for _ in range(STREAMS)]
    await asyncio.wait([asyncio.ensure_future(all_there.wait())], timeout=30)
    stopped_at = time.monotonic()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return stopped_at


def importing(measure: Measure) -> Iterator[Line]:
    """A fresh process each: its processor time, and the memory it has at the end."""
    for what, field in (("importing it, in processor time", "seconds"), ("importing it, in memory", "bytes")):
        samples = measure(what, imports(OURS, field), {name: imports(code, field) for name, code in IMPORTS.items()})
        yield from samples.lines(dict.fromkeys(IMPORTS, AtMost(1)))
    alone = {"openai alone": imports("import openai", "seconds")}
    yield from measure("importing the agent alone", imports(CORE, "seconds"), alone).lines()


def imports(code: str, field: str) -> Contender:
    script = (
        "import json, resource, time; began = time.process_time();"
        f" {code};"
        " used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024;"
        " print(json.dumps({'seconds': time.process_time() - began, 'bytes': used}))"
    )

    def once() -> float:
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
        return float(json.loads(ended.stdout.splitlines()[-1])[field])

    return once
