"""Three levels of agents: a stop at the safe point of the root, one for the whole tree, and an immediate one.

Needs no key: the models are scripted. Run it: python examples/05_subagents.py
"""

import asyncio
from typing import Any, Literal

from safepoint import Aborted, Agent, StopAt, tool
from safepoint.agent import AgentRun
from safepoint.models.scripted import Call, ScriptedModel

steps: list[str] = []


@tool
async def dig(depth: int) -> str:
    """Dig."""
    steps.append(f"dig {depth}")
    await asyncio.sleep(0.1)
    return f"dug {depth}"


def team() -> AgentRun:
    """Start a chief, whose tool is a foreman, whose tool is a digger."""

    def member(name: str, *answers: Any, uses: Any) -> Agent:
        return Agent(ScriptedModel(*answers), tools=[uses], name=name)

    digger = member("digger", [Call("dig", depth=1)], [Call("dig", depth=2)], "deep enough", uses=dig)
    foreman = member("foreman", [Call("digger", prompt="dig")], "it is dug", uses=digger.as_tool())
    chief = member("chief", [Call("foreman", prompt="see to it")], "all done", uses=foreman.as_tool())
    return chief.run("We need a hole.")


async def stop_while_it_digs(title: str, at: StopAt, scope: Literal["root", "tree"] | None = None) -> None:
    steps.clear()
    run = team()
    async with run:
        async for event in run:
            if event.kind == "leaf_started" and event.path[-1] == "dig" and not run.signal.aborted and len(steps) == 1:
                run.stop(at, scope=scope)
    outcome = await run
    print(f"\n{title}: {outcome.status}, after {', '.join(steps)}")
    assert isinstance(outcome, Aborted)
    for entry in outcome.receipt.entries:
        if entry.kind != "stream":
            print(f"  {entry.name:<28} {entry.fate}")


async def main() -> None:
    await stop_while_it_digs("After the tools of the chief: children finish first", StopAt.AFTER_TOOLS)
    await stop_while_it_digs("The whole tree, each at its own safe point", StopAt.AFTER_TOOLS, "tree")
    await stop_while_it_digs("Now", StopAt.NOW)


asyncio.run(main())
