"""Owns agents for servers in child processes: `safepoint serve tests.server.agents:NAME`."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from safepoint import AbortSignal
from safepoint.agent import Agent, AnswerEnded, CallDelta, Chunk, ModelRequest, TextDelta, ToolContext, tool
from safepoint.messages import UserMessage


class Calling:
    """A model that says a few words, then calls the tool that the person names, then says what came of it."""

    name = "calling"

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        last = request.messages[-1]
        if not isinstance(last, UserMessage):
            yield TextDelta("It is done.")
            yield AnswerEnded("stop")
            return
        yield TextDelta("I begin.")
        if last.text == "stall":
            await signal.wait_async()
        if last.text in {spec.name for spec in request.tools}:
            yield CallDelta(index=0, call_id="call-1", name=last.text)
            yield CallDelta(index=0, arguments="{}")
            yield AnswerEnded("tool_calls")
        else:
            yield AnswerEnded("stop")


@tool
async def steps(ctx: ToolContext) -> str:
    """Go on for long, in steps that may be stopped between."""
    for step in range(100_000):
        ctx.progress(f"step {step}")
        await ctx.safe_point()
        await asyncio.sleep(0.02)  # real time: a tool in another process, which works
    return "all steps"


@tool(on_abort="finish", grace=60)
async def slow(ctx: ToolContext) -> str:
    """Take its time, without a safe point inside."""
    ctx.progress("at work")
    await asyncio.sleep(60)  # real time: a tool in another process, which works
    return "slow"


@tool
def stuck(ctx: ToolContext) -> str:
    """Be in C code for long: no interrupt arrives there."""
    ctx.progress("at work")
    time.sleep(60)  # real time: this is what cannot be interrupted
    return "stuck"


@tool
async def blocking(ctx: ToolContext) -> str:
    """Block the whole event loop."""
    ctx.progress("at work")
    await asyncio.sleep(0.3)  # real time: the progress has to go out first
    time.sleep(60)  # real time: this is what cannot be interrupted
    return "blocking"


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask the person."""
    return await ctx.ask_user("Which colour?")


helper = Agent(Calling(), tools=[steps, slow, stuck, blocking, ask], name="helper")
no_agent = 3


def made() -> Agent:
    return helper


def broken() -> Any:
    raise RuntimeError("no key")
