"""Owns agents for workers in processes of their own: `safepoint worker tests.worker.agents:helper`.

`helper` does what its last message says: talk for ever, wait for ever, block its event loop, die, or answer.
"""

import asyncio
import os
import time
from typing import Any

from safepoint.agent import Agent, ModelRequest, ToolContext, tool
from safepoint.messages import UserMessage
from safepoint.models.scripted import Call, ScriptedModel, Stall


@tool
async def hog(seconds: float) -> str:
    """Block the event loop, and with it everything that runs in it."""
    await asyncio.sleep(0.1)  # real time: that it was called is to be in the log before
    time.sleep(seconds)  # real time: that is what is wrong with it
    return "slept"


@tool(effects="idempotent")  # it runs again, and dies again
async def die() -> str:
    """End the process, as a crash would."""
    os.kill(os.getpid(), 9)
    return "never"


@tool
async def hold(ctx: ToolContext) -> str:
    """Never end by itself."""
    await ctx.signal.wait_async()
    ctx.signal.raise_if_aborted()
    return "released"


def answer(request: ModelRequest) -> Any:
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return "thanks"
    plays: dict[str, list[Any]] = {
        "wait": [Stall()],
        "talk": ["half an answer", Stall()],
        "tool": [Call("hold")],
        "hog": [Call("hog", seconds=60.0)],
        "hog a little": [Call("hog", seconds=0.7)],
        "die": [Call("die")],
        "ask": [Call("ask_user", question="Well?")],
    }
    return plays.get(last.text, "done")


helper = Agent(ScriptedModel(*[answer] * 10_000), name="helper", tools=[hog, die, hold], ask_user=True)
