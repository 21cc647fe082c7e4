"""Owns an agent whose effects must happen once, for workers that are killed: `tests.worker.paying:agent`.

Each effect is a line: the tool, its idempotency key, and whether the broker had the call when its body began. The tools
end their process, or the whole worker, until there were `KILLS` such ends.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

from safepoint.agent import Agent, ToolContext, tool
from safepoint.events import CallRecorded
from safepoint.worker import NatsBroker
from safepoint.worker.broker import BrokerConnection
from tests.kit.workers import logged
from tests.session.paying import CLERK, ROUNDS, scripted
from tests.worker.toiling import FOLDER, note

NATS, NAMESPACE, KILLS = "PAY_NATS", "PAY_NAMESPACE", "PAY_KILLS"
CHANCE = random.Random()
LINKS: list[BrokerConnection] = []


def lines(what: str) -> list[list[str]]:
    file = Path(os.environ[FOLDER], what)
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def die() -> None:
    """End this process, or its supervisor with it, as a crash would; not after there were enough of them."""
    if len(lines("kills")) >= int(os.environ[KILLS]):
        return
    whole = CHANCE.random() < 0.5
    note("kills", "worker" if whole else "child")
    if whole:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


async def is_on_record(session: str, key: str) -> bool:
    """Whether another worker, which would go on after a crash now, would know of this call."""
    if not LINKS:
        LINKS.append(await NatsBroker(os.environ[NATS], namespace=os.environ[NAMESPACE]).connect("effects"))
    events = await logged(LINKS[0], session)
    return any(isinstance(event, CallRecorded) and event.idempotency_key == key for event in events)


async def effect(name: str, ctx: ToolContext) -> str:
    session = ctx.idempotency_key.partition(":")[0]
    known = await is_on_record(session, ctx.idempotency_key)
    if CHANCE.random() < 0.1:
        die()
    note("effects", name, ctx.idempotency_key, "recorded" if known else "unrecorded")
    dies = CHANCE.random()
    if dies < 0.2:
        die()
    if dies < 0.4:  # while its result is on the way to the broker
        asyncio.get_running_loop().call_later(0.012 * CHANCE.random(), die)
    return f"{name} done"


@tool(effects="irreversible")
async def pay(ctx: ToolContext) -> str:
    return await effect("pay", ctx)


@tool
async def mail(ctx: ToolContext) -> str:
    return await effect("mail", ctx)


@tool(effects="idempotent")
async def charge(ctx: ToolContext) -> str:
    async def reserve() -> str:
        note("parts", "begun", ctx.idempotency_key)
        return "reserved"

    assert await ctx.once("reserve", reserve) == "reserved"
    note("parts", "done", ctx.idempotency_key)
    return await effect("charge", ctx)


@tool(effects="read")
async def look(ctx: ToolContext) -> str:
    return "nothing new"


clerk = Agent(scripted(CLERK, "all paid"), name="clerk", tools=[pay, charge, look])
agent = Agent(scripted(ROUNDS, "that is all"), name="payer", tools=[pay, mail, charge, look, clerk])
