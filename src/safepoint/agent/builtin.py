"""Owns the tools that every agent may have: asking the person, and waiting. Knows nothing of who answers."""

from typing import Annotated

from pydantic import Field

from .context import ToolContext
from .tool import tool

__all__ = ["ask_user", "wait"]


@tool(effects="read")  # a question that a stop withdrew may be asked again
async def ask_user(question: str, ctx: ToolContext) -> str:
    """Ask the user a question and wait for the answer."""
    return await ctx.ask_user(question)


@tool(effects="read")
async def wait(seconds: Annotated[float, Field(ge=0, le=3600)], ctx: ToolContext) -> str:
    """Wait for some seconds."""
    await ctx.wait(seconds)
    return f"waited {seconds:g} s"
