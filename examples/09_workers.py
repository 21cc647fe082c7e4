"""Two servers, two workers, one broker: one server stops a turn of the other, and a second worker takes over a turn."""

import asyncio
import os

from safepoint import Agent, Completed, ToolContext, tool
from safepoint.events import Event, ProgressMade, TurnEnded
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.worker import Broker, MemoryBroker, NatsBroker, RemoteHost, Worker


@tool
async def count_ships(ctx: ToolContext) -> str:
    """Count ships, which takes a while."""
    for number in range(1, 20):
        ctx.progress(f"ship {number}", number / 20)
        await asyncio.sleep(0.05)  # a stop interrupts this await
    return "19 ships"


def keeper() -> Agent:
    return Agent(ScriptedModel([Call("count_ships")], "There are 19 ships."), tools=[count_ships], name="keeper")


async def first(host: RemoteHost, session: str, kind: type[Event]) -> Event:
    """The first event of this kind."""
    async for recorded in host.events(session):
        if isinstance(recorded.event, kind):
            return recorded.event
    raise RuntimeError("the host was closed")


async def main() -> None:
    url = os.environ.get("NATS_URL")
    broker: Broker = NatsBroker(url, "example") if url else MemoryBroker()  # the same program over the network
    here, there = RemoteHost(broker), RemoteHost(broker)

    async with Worker(keeper(), broker, name="east"):
        session = (await here.create()).id
        turn = await here.send(session, "How many?")
        await first(here, session, ProgressMade)
        ack = await there.stop(session, turn.id, reason="that is enough")
        print(f"Sent on one server, stopped on the other: {ack.status}, {ack.level}")
        print(await ack.settled())

    west = Worker(keeper(), broker, name="west")
    async with Worker(keeper(), broker, name="north") as north:
        session = (await here.create()).id
        await here.send(session, "How many?")
        await first(here, session, ProgressMade)
        await west.start()
        print("\nThe worker is shut down in the middle of a turn …")
        await north.close()
    ended = await first(here, session, TurnEnded)
    assert isinstance(ended, TurnEnded)
    print(f"… which ends as {ended.outcome.status}, and another worker continues it:")
    async for recorded in here.events(session):
        if isinstance(recorded.event, TurnEnded) and isinstance(recorded.event.outcome, Completed):
            print(recorded.event.outcome.value.text)
            break
    await west.close()
    await here.close()
    await there.close()


asyncio.run(main())
