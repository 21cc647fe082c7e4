"""Owns functions that tools run in processes of their own: a process imports them by name."""

import os
import sys
import time
from pathlib import Path

from safepoint.agent import ToolContext, tool


@tool(isolation="process")
def own_pid(word: str, ctx: ToolContext) -> str:
    return f"{word} {os.getpid()} {ctx.call_id} {ctx.idempotency_key}"


@tool(isolation="process")
def joins(fn: str, signal: str, kill: str, grace: str, on_start: str) -> str:
    """Its arguments have names that the code which starts a process uses as well."""
    return f"{fn} {signal} {kill} {grace} {on_start}"


@tool(isolation="process", grace=0.5)
def works_for_ever(started: str) -> str:
    """Work until it is killed; `started` is a file that says it has begun, and as which process."""
    Path(started).write_text(str(os.getpid()), encoding="utf-8")
    while True:
        time.sleep(0.01)  # real time: a process that works


@tool(isolation="process")
def asks(question: str, ctx: ToolContext) -> str:
    import asyncio

    return asyncio.run(ctx.ask_user(question))


@tool(isolation="process")
def breaks() -> str:
    raise ValueError("broken in its process")


@tool(isolation="process")
def exits() -> str:
    sys.exit(2)
