"""Owns a program that keeps a session busy until it is killed. It starts once, and forks a life each time it is told.

Told `<seed> <resume>` on a line, it answers with the pid of the life, and `gone` when that has ended.
"""

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from safepoint.agent import Agent, ToolContext, tool
from safepoint.messages import UserMessage
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.session import LocalHost, SqliteStore

LIFE_SECONDS = 10.0
WAITING = 5  # turns, at most


def note(folder: Path, what: str, *words: str) -> None:
    """Write a line that survives a kill."""
    file = os.open(folder / what, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, (" ".join(words) + "\n").encode())
    os.close(file)


def worker(folder: Path, chance: random.Random) -> Agent:
    """An agent that talks and works; each piece of work is noted when it is done."""

    @tool
    async def work(n: int, ctx: ToolContext) -> str:
        note(folder, "effects", ctx.run_id, ctx.call_id, f"{time.time():.6f}")
        await asyncio.sleep(0.002 * n)  # real time: there must be something to be killed in
        return f"did {n}"

    def answer(request: Any) -> Any:
        calls = [Call("work", n=chance.randrange(3)) for _ in range(chance.randrange(1, 3))]
        likely = 0.6 if isinstance(request.messages[-1], UserMessage) else 0.3
        return ["let me see", *calls] if chance.random() < likely else "that is that"

    return Agent(ScriptedModel(*[answer] * 5000, chunk_delay=0.0005), name="worker", tools=[work])


async def live(folder: Path, seed: int, resume: bool) -> None:
    chance = random.Random(seed)
    host = LocalHost(worker(folder, chance), SqliteStore(folder / "s.db"), resume=resume)
    await host.create("s")
    session = await host.live("s")
    end = time.monotonic() + LIFE_SECONDS
    number = 0
    while time.monotonic() < end:
        number += 1
        if len(session.turns) < WAITING:
            way: Any = chance.choice(["queue", "queue", "queue", "steer", "interrupt"])
            view = await host.send("s", f"message {seed}-{number}", turn_id=f"{seed}-{number}", when_busy=way)
            note(folder, "accepted", view.id)
        await asyncio.sleep(0.02 * chance.random())  # real time: there must be something to be killed in
        if session.turns and chance.random() < 0.3:
            victim = chance.choice(list(session.turns))
            await host.stop("s", victim)
            await session.saved()
            note(folder, "stopped", victim)
    await host.close()


def main(folder: Path) -> None:
    for line in sys.stdin:
        seed, resume = map(int, line.split())
        pid = os.fork()
        if not pid:
            asyncio.run(live(folder, seed, bool(resume)))
            os._exit(0)
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
