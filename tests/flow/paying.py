"""A program whose flow has agents in its nodes, with tools whose effects must happen once, and which is killed in them.

It starts once, and forks a life each time it is told `<seed>`; it answers with how that life ended: `killed` or `done`.
Each effect is a line: the tool, its idempotency key, and whether the call was on record when its body began. The flow
has a store of its own (`folder` or `sqlite`), or is a tool of the agent of a `session`.
"""

import asyncio
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safepoint import UsageError
from safepoint.agent import Agent, ToolContext, tool
from safepoint.flow import END, Checkpoint, Flow, NodeContext
from safepoint.models.scripted import Call
from safepoint.run import Checkpoints, FolderCheckpoints, SqliteCheckpoints
from safepoint.session import LocalHost, SqliteStore
from tests.session.crashing import note
from tests.session.paying import scripted

LIFE_SECONDS = 20.0
KEY = "run"


@dataclass
class Books:
    """The state of the flow."""

    done: list[str] = field(default_factory=list)


def store_of(folder: Path, kind: str) -> Checkpoints:
    return SqliteCheckpoints(folder / "c.db") if kind == "sqlite" else FolderCheckpoints(folder / "store")


async def is_on_record(folder: Path, kind: str, ctx: ToolContext) -> bool:
    """Whether another process, which would go on after a crash now, would know of this call."""
    scope = ctx.idempotency_key.removesuffix(f":{ctx.call_id}")
    if kind == "session":
        db = sqlite3.connect(f"file:{folder / 's.db'}?mode=ro", uri=True)
        try:
            texts = [text for (text,) in db.execute("SELECT text FROM events WHERE text LIKE '%part_recorded%'")]
        finally:
            db.close()
        return any(f'"{scope}"' in text and ctx.call_id in text and "unknown" in text for text in texts)
    saved = await Checkpoint.recall(store_of(folder, kind), KEY)
    assert saved is not None
    parts = [text for name, text in saved.once.items() if name.startswith(f"{scope}/messages/")]
    return any(ctx.call_id in text and "unknown" in text for text in parts)


def tools_of(folder: Path, kind: str, chance: random.Random) -> list[Any]:
    """Tools of every kind of effect. Some of their bodies end with the life of the process."""

    async def effect(name: str, ctx: ToolContext) -> str:
        known = await is_on_record(folder, kind, ctx)
        if chance.random() < 0.08:
            os.kill(os.getpid(), signal.SIGKILL)
        note(folder, "effects", name, ctx.idempotency_key, "recorded" if known else "unrecorded")
        dies = chance.random()
        if dies < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)
        if dies < 0.25:  # while its result is on the way to the disk
            threading.Timer(0.012 * chance.random(), os.kill, (os.getpid(), signal.SIGKILL)).start()
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
            note(folder, "parts", ctx.idempotency_key)
            return "reserved"

        assert await ctx.once("reserve", reserve) == "reserved"
        note(folder, "reserved", ctx.idempotency_key)
        return await effect("charge", ctx)

    @tool(effects="read")
    async def look(ctx: ToolContext) -> str:
        await asyncio.sleep(0.002)  # real time: there must be something to be killed in
        return "nothing new"

    return [pay, mail, charge, look]


def flow_of(folder: Path, kind: str, chance: random.Random) -> Flow[Books, Any]:
    """A node of several agents, a scatter of agents, and a sub-flow with one."""
    tools = tools_of(folder, kind, chance)
    clerk = Agent(scripted([[Call("pay"), Call("look")], [Call("charge")]], "all paid"), name="clerk", tools=tools)
    rounds: list[list[Any]] = [[Call("pay"), Call("charge"), Call("look")], [Call("clerk", prompt="go"), Call("mail")]]
    payer = Agent(scripted(rounds, "paid"), name="payer", tools=[*tools, clerk])
    short = Agent(scripted([[Call("pay")], [Call("charge")]], "short"), name="short", tools=tools)

    async def several(state: Books, ctx: NodeContext[Any]) -> None:
        async def ask() -> str:
            return (await short(ctx, "in a part")).text

        state.done.append((await payer(ctx, "go")).text)
        state.done.append((await short.run("by itself")).unwrap().text)
        state.done.append(await ctx.once("ask", ask))

    async def item(number: int, ctx: NodeContext[Any]) -> str:
        return f"{number} {(await short(ctx, f'item {number}')).text}"

    async def last(state: Books, ctx: NodeContext[Any]) -> None:
        both = await asyncio.gather(short(ctx, "left"), short(ctx, "right"))
        state.done += [result.text for result in both]

    inner: Flow[Books, Any] = Flow("inner", start="last")
    inner.node("last", last)
    inner.route("last", END)
    flow: Flow[Books, Any] = Flow("books", start="several")
    flow.node("several", several)
    flow.scatter("each", items=lambda state: [1, 2, 3], body=item, concurrency=2, gather=lambda s, r: s.done.extend(r))
    flow.subflow("rest", inner)
    flow.route("several", "each")
    flow.route("each", "rest")
    flow.route("rest", END)
    return flow


async def live(folder: Path, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    if seed >= 0 and chance.random() < 0.5:
        threading.Timer(0.4 * chance.random(), os.kill, (os.getpid(), signal.SIGKILL)).start()
    quiet = random.Random(0)
    quiet.random = lambda: 1.0  # type: ignore[method-assign]  # nobody is killed in the last life
    flow = flow_of(folder, kind, chance if seed >= 0 else quiet)
    if kind == "session":
        await in_session(folder, flow)
        return
    store = store_of(folder, kind)
    async with asyncio.timeout(LIFE_SECONDS):
        result = await flow.execute(Books(), resume="auto", checkpoints=store, checkpoint_id=KEY)
    (folder / "result").write_text("\n".join(result.outcome.unwrap().done))


async def in_session(folder: Path, flow: Flow[Books, Any]) -> None:
    agent = Agent(scripted([[Call("books", done=[])]], "that is all"), name="boss", tools=[tool(flow, name="books")])
    host = LocalHost(agent, SqliteStore(folder / "s.db"), resume=True)
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
    last = session.messages[-1]
    await host.close()
    (folder / "result").write_text(getattr(last, "text", ""))


def main(folder: Path, kind: str) -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                asyncio.run(live(folder, kind, int(line)))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        print("killed" if os.WIFSIGNALED(status) else "done" if status == 0 else "failed", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
