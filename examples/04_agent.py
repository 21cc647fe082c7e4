"""An agent is stopped in the middle of three tool calls, and then continues where it was.

Needs no key: the model is scripted. Run it: python examples/04_agent.py
"""

import asyncio
import time

from safepoint import Aborted, Agent, ToolContext, tool
from safepoint.agent import validate
from safepoint.models.scripted import Call, ScriptedModel


@tool(effects="read")
async def search(query: str) -> str:
    """Search, quickly."""
    return f"three books about {query}"


@tool
async def read(book: str, ctx: ToolContext) -> str:
    """Read a book, page by page."""
    for page in range(1, 4):
        ctx.progress(f"page {page} of 3", page / 3)
        await ctx.wait(0.3)
    return f"{book} says: owls see in the dark"


@tool
def dig(hours: float) -> str:
    """Run in a thread without checking any signal."""
    until = time.monotonic() + hours
    while time.monotonic() < until:
        time.sleep(0.01)
    return "nothing in the archive"


async def main() -> None:
    calls = [Call("search", query="owls"), Call("read", book="Strigiformes"), Call("dig", hours=0.8)]
    model = ScriptedModel(["Let me look.", *calls], "They see in the dark.")
    agent = Agent(model, tools=[search, read, dig], instructions="You are a librarian.")

    run = agent.run("What do owls see?")
    async with run:
        async for event in run:
            if event.kind == "progress_made" and event.message.startswith("page 2"):
                print(f"{event.path[-1]}: {event.message}. Stop!")
                print(f"answered at once: {run.stop(reason='the visitor is in a hurry').status}")
    outcome = await run
    assert isinstance(outcome, Aborted)
    assert outcome.partial is not None
    print(f"\n{outcome.receipt}\n")

    validate(outcome.partial.messages)
    print("The conversation is valid. Each call has one result:")
    for message in outcome.partial.messages:
        if message.kind == "tool_result":
            print(f"  {message.name:<7} {message.status}")

    resumed = await agent.run(resume=outcome.partial)
    print(f"\nResumed, with only read and dig run again: {resumed.unwrap().text}")


asyncio.run(main())
