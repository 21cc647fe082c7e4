"""Owns a program whose tools have effects that must happen once, and which is killed at the boundary of a tool.

It starts once, and forks a life each time it is told `<seed>`; it answers with how that life ended: `killed` or `done`.
Each effect is a line: the tool, its idempotency key, and whether the call was on record when its body began.
"""

import asyncio
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

from safepoint import UsageError
from safepoint.agent import Agent, ToolContext, tool
from safepoint.messages import AssistantMessage
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.session import LocalHost, SqliteStore
from tests.session.crashing import note

LIFE_SECONDS = 20.0
ROUNDS: list[list[Any]] = [
    ["I pay", Call("pay"), Call("charge"), Call("look")],
    [Call("clerk", prompt="see to the rest"), Call("mail")],
    [Call("charge"), Call("pay")],
]
CLERK: list[list[Any]] = [[Call("pay"), Call("look")], [Call("charge")]]


def asked(request: Any) -> int:
    """How many whole answers there are already: the script goes on from there, also in a new process."""
    return sum(isinstance(message, AssistantMessage) for message in request.messages)


def scripted(rounds: list[list[Any]], last: str) -> ScriptedModel:
    """A model that says its next round, whoever asks, and however often it is asked."""

    def answer(request: Any) -> Any:
        number = asked(request)
        return rounds[number] if number < len(rounds) else last

    return ScriptedModel(*[answer] * 100)


def is_on_record(file: Path, key: str) -> bool:
    """Whether another process, which would go on after a crash now, would know of this call."""
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        found = db.execute("SELECT text FROM events WHERE text LIKE '%call_recorded%'").fetchall()
    finally:
        db.close()
    return any(key in text for (text,) in found)


def agent_of(folder: Path, chance: random.Random) -> Agent:
    """An agent with tools of every kind of effect. Some of their bodies end with the life of the process."""

    def effect(name: str, ctx: ToolContext) -> str:
        known = is_on_record(folder / "s.db", ctx.idempotency_key)
        if chance.random() < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)
        note(folder, "effects", name, ctx.idempotency_key, "recorded" if known else "unrecorded")
        dies = chance.random()
        if dies < 0.15:
            os.kill(os.getpid(), signal.SIGKILL)
        if dies < 0.35:  # while its result is on the way to the disk
            threading.Timer(0.012 * chance.random(), os.kill, (os.getpid(), signal.SIGKILL)).start()
        return f"{name} done"

    @tool(effects="irreversible")
    def pay(ctx: ToolContext) -> str:
        return effect("pay", ctx)

    @tool
    async def mail(ctx: ToolContext) -> str:
        return effect("mail", ctx)

    @tool(effects="idempotent")
    async def charge(ctx: ToolContext) -> str:
        async def reserve() -> str:
            note(folder, "parts", ctx.idempotency_key)
            return "reserved"

        assert await ctx.once("reserve", reserve) == "reserved"
        note(folder, "reserved", ctx.idempotency_key)
        return effect("charge", ctx)

    @tool(effects="read")
    async def look(ctx: ToolContext) -> str:
        await asyncio.sleep(0.002)  # real time: there must be something to be killed in
        return "nothing new"

    clerk = Agent(scripted(CLERK, "all paid"), name="clerk", tools=[pay, charge, look])
    return Agent(scripted(ROUNDS, "that is all"), name="payer", tools=[pay, mail, charge, look, clerk])


async def live(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    if seed >= 0 and chance.random() < 0.5:
        threading.Timer(0.25 * chance.random(), os.kill, (os.getpid(), signal.SIGKILL)).start()
    quiet = random.Random(0)
    quiet.random = lambda: 1.0  # type: ignore[method-assign]  # nobody is killed in the last life
    host = LocalHost(agent_of(folder, chance if seed >= 0 else quiet), SqliteStore(folder / "s.db"), resume=True)
    await host.create("s")
    session = await host.live("s")
    if not session.turns:
        try:
            session.continue_turn()  # it was cut off more often than it is resumed by itself: a person goes on with it
        except UsageError:
            if not session.messages:
                session.send("go", turn_id="first")
    end = time.monotonic() + LIFE_SECONDS
    while session.turns and time.monotonic() < end:
        await next(iter(session.turns.values()))
    await host.close()


def main(folder: Path) -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            asyncio.run(live(folder, int(line)))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print("killed" if os.WIFSIGNALED(status) else "done" if status == 0 else "failed", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
