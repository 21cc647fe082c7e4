"""Owns the agent of tests whose work runs in processes of its own: `tests.worker.cast:actor`.

It does what its last message says, `tool` or `tool argument`; anything else it answers with "done".
"""

import asyncio
import os
import subprocess
import time
from typing import Any

from safepoint.agent import Agent, ModelRequest, ToolContext, tool
from safepoint.messages import ToolResult, UserMessage
from safepoint.models.scripted import Call, ScriptedModel, Stall


@tool
async def pid(ctx: ToolContext) -> str:
    """Say in which process this is."""
    return str(os.getpid())


@tool
async def block(ctx: ToolContext) -> str:
    """Block the event loop for a minute."""
    ctx.progress("at work")
    await asyncio.sleep(0.1)  # real time: the progress has to go out first
    time.sleep(60)  # real time: this is what cannot be interrupted
    return "never"


@tool(on_abort="cooperate")
async def ignore(ctx: ToolContext) -> str:
    """Go on whatever happens."""
    ctx.progress("at work")
    await asyncio.sleep(60)  # real time: nobody lets it go
    return "never"


@tool
async def spawn(ctx: ToolContext) -> str:
    """Start a program that leaves the process group, then block the event loop."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    ctx.progress(str(child.pid))
    await asyncio.sleep(0.1)  # real time: the progress has to go out first
    time.sleep(60)  # real time: this is what cannot be interrupted
    return "never"


@tool(effects="idempotent")  # it runs again, and dies again
async def die(ctx: ToolContext) -> str:
    """End the process, as a crash would."""
    os.kill(os.getpid(), 9)
    return "never"


TOOLS = {one.name: one for one in (pid, block, ignore, spawn, die)}


def answer(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if isinstance(last, ToolResult):
        return last.content
    if isinstance(last, UserMessage) and last.text in TOOLS:
        return [Call(last.text)]
    if isinstance(last, UserMessage) and last.text == "talk":
        return ["half an answer", Stall()]
    return "done"


actor = Agent(ScriptedModel(*[answer] * 1000), name="actor", tools=list(TOOLS.values()))
TARGET = "tests.worker.cast:actor"
