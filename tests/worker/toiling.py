"""Owns an agent that works for as long as it is told, for workers that are killed: `tests.worker.toiling:agent`.

`steps=3 pause=0.02 tool=0.1`: so many pieces of work, with such pauses, each of which takes so long. Each piece is
noted, with who did it, when it is begun.
"""

import asyncio
import os
import re
import time
from typing import Any

from safepoint.agent import Agent, ModelRequest, ToolContext, tool
from safepoint.messages import ToolResult, UserMessage
from safepoint.models.scripted import Call, Delay, ScriptedModel

FOLDER, NAME = "TOIL_FOLDER", "TOIL_NAME"
WALL = time.time  # what the clock says, also where a test lets it jump


def note(what: str, *words: str) -> None:
    """Write a line that survives a kill."""
    file = os.open(os.path.join(os.environ[FOLDER], what), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, (" ".join(words) + "\n").encode())
    os.close(file)


@tool
async def work(n: int, ctx: ToolContext, seconds: float = 0.0) -> str:
    """One piece of work."""
    note("effects", ctx.run_id, str(n), f"{WALL():.6f}", os.environ[NAME])
    if seconds:
        await asyncio.sleep(seconds)  # real time: there must be something to be frozen in
    return f"did {n}"


def answer(request: ModelRequest) -> Any:
    place = max(number for number, message in enumerate(request.messages) if isinstance(message, UserMessage))
    asked = request.messages[place]
    assert isinstance(asked, UserMessage)
    told = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", asked.text)}
    done = sum(isinstance(message, ToolResult) for message in request.messages[place:])
    pause = Delay(told.get("pause", 0.01))
    call = Call("work", n=done, seconds=told.get("tool", 0.0))
    return ["let me see", pause, call] if done < told.get("steps", 1) else ["that", pause, " is that"]


agent = Agent(ScriptedModel(*[answer] * 100_000), name="toiler", tools=[work], max_steps=1000)
