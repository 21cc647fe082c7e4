"""Nodes that run in processes of their own: there they are found by module and name."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from safepoint.flow import NodeContext
from tests.kit.flows import FOREVER, Trail


def note(state: Trail, ctx: NodeContext[Any]) -> str:
    state.notes.append(f"attempt {ctx.attempt} of {ctx.services}")
    state.found.append(ctx.idempotency_key)
    ctx.collect_error("ELSEWHERE", f"not in process {os.getpid()}")
    return "found"


async def note_async(state: Trail, ctx: NodeContext[Any]) -> str:
    await asyncio.sleep(0)
    await ctx.safe_point()
    return note(state, ctx)


def breaks(state: Trail) -> None:
    raise LookupError("broken elsewhere")


def waits(state: Trail, ctx: NodeContext[Any]) -> None:
    Path(state.found[0]).write_text(str(os.getpid()))
    time.sleep(FOREVER)  # real time: it is killed


def double(item: int, ctx: NodeContext[Any]) -> int:
    return 2 * item


def leaves(state: Trail) -> None:
    raise SystemExit(2)
