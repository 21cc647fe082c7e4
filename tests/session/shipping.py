"""Owns a program whose agent has a flow as a tool, and which is killed in the node that a file names.

Each node that begins, and each part that runs, is a line in a file of the folder, with its key.
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safepoint.agent import Agent, tool
from safepoint.flow import END, End, Flow, NodeContext
from safepoint.models.scripted import Call
from safepoint.session import LocalHost, SqliteStore
from tests.session.crashing import note
from tests.session.paying import scripted

NODES = ("pack", "label", "send")


@dataclass
class Parcel:
    """The state of the flow."""

    to: str
    done: list[str] = field(default_factory=list)


def flow_of(folder: Path) -> Flow[Parcel, Any]:
    """pack → label → send."""

    def node(name: str) -> Any:
        async def run(state: Parcel, ctx: NodeContext[Any]) -> None:
            def part() -> str:
                note(folder, "parts", name)
                return name

            note(folder, "nodes", name, ctx.idempotency_key)
            state.done.append(await ctx.once("part", part))
            if (folder / f"die in {name}").exists():
                (folder / f"die in {name}").unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        return run

    flow: Flow[Parcel, Any] = Flow("ship", start=NODES[0])
    targets: list[str | End] = [*NODES[1:], END]
    for name, target in zip(NODES, targets, strict=True):
        flow.node(name, node(name))
        flow.route(name, target)
    return flow


async def live(folder: Path) -> None:
    ship = tool(flow_of(folder), description="Ship something.")
    wanted = [Call("ship", to="the owls")]
    if (folder / "by a clerk").exists():
        clerk = Agent(scripted([wanted], "it is shipped"), name="clerk", tools=[ship])
        ship, wanted = clerk.as_tool(), [Call("clerk", prompt="ship all")]
    agent = Agent(scripted([wanted], "that is all"), name="shop", tools=[ship])
    host = LocalHost(agent, SqliteStore(folder / "s.db"), resume=True)
    await host.create("s")
    session = await host.live("s")
    if not (session.turns or session.messages):
        session.send("go", turn_id="first")
    while session.turns:
        await next(iter(session.turns.values()))
    await host.close()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])))
