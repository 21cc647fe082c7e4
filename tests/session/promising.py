"""Owns a program that asks something of a host over SQLite, and kills itself in the moment of the answer.

It is given a database, what to ask (`stop`, `remove`, `edit`, or `nothing`), and of which turn (`running`, `queued`).
"""

import asyncio
import os
import signal
import sys
from typing import Any

from safepoint.agent import Agent
from safepoint.models.scripted import ScriptedModel, Stall
from safepoint.session import LocalHost, SqliteStore
from tests.kit.sessions import first_text


def agent(*answers: Any) -> Agent:
    return Agent(ScriptedModel(*answers), name="teller")


async def ask(path: str, way: str, turn_id: str) -> None:
    """Begin one turn, let another one wait, ask, and die of the answer."""
    host = LocalHost(agent(["half", Stall()]), SqliteStore(path))
    await host.create("s")
    await host.send("s", "first", turn_id="running")
    await first_text(await host.live("s"))
    await host.send("s", "second", turn_id="queued")
    match way:
        case "stop":
            ack = await host.stop("s", turn_id, reason="enough")
            level = ack.level
        case "remove":
            level = (await host.remove("s", turn_id)).level
        case "edit":
            level = (await host.edit("s", turn_id, "another")).level
        case _:
            await (await host.live("s")).saved()
            level = "recorded"
    os.write(1, level.encode())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(ask(*sys.argv[1:]))
