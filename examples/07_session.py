"""A session: its turns can be stopped at any moment and are never lost.

    python examples/07_session.py

It needs no key and no server: the model is scripted. The sessions are in a temporary file.
"""

import asyncio
import tempfile
from contextlib import aclosing
from pathlib import Path

from safepoint import Agent, tool
from safepoint.agent import ToolContext
from safepoint.events import TextStreamed, TurnEnded
from safepoint.models.scripted import Call, Delay, ScriptedModel
from safepoint.session import Session, SqliteStore


def show(session: Session) -> None:
    for message in session.messages:
        text = getattr(message, "text", "") or getattr(message, "content", "")
        cut = " …" if getattr(message, "interrupted", False) else ""
        print(f"    {message.kind:<9} {text}{cut}")


async def pressing_stop(store: SqliteStore) -> None:
    model = ScriptedModel(["Once upon a time", Delay(60), "the end"], "Hello again.")
    async with Session.open("story", agent=Agent(model, name="teller"), store=store) as session:
        turn = session.send("Tell me a long story.")
        waiting = session.send("Are you there?")
        async with aclosing(session.events()) as events:
            async for recorded in events:
                if isinstance(recorded.event, TextStreamed) and "time" in recorded.event.text:
                    break
        print(f"{turn.status} and {waiting.status}. Stop!")
        ack = session.stop(turn.id, reason="the reader fell asleep")
        receipt = await ack.settled()
        print(f"{ack.status}, then {(await turn).status}: {receipt.reason}")
        print(f"the queued turn is not affected: {(await waiting).status}")
        show(session)


async def a_helper(store: SqliteStore) -> None:
    answers = ScriptedModel(["Looking into it", Delay(60)])
    async with Session.open("helper", agent=Agent(answers, name="helper"), store=store) as helper:

        @tool
        async def ask_helper(question: str, ctx: ToolContext) -> str:
            """Ask the helper, and pass on its events as they come."""
            async with helper.stream([question], signal=ctx.signal) as events:
                async for event in events:
                    ctx.emit(event)
            return "it has answered"

        model = ScriptedModel([Call("ask_helper", question="Which way?")])
        agent = Agent(model, name="parent", tools=[ask_helper])
        async with Session.open("parent", agent=agent, store=store) as parent:
            async with parent.stream(["Find the way."]) as events:
                async for event in events:
                    if isinstance(event, TextStreamed):
                        print(f"{event.path[0]} says: {event.text.strip()}")
                        if "it" in event.text:
                            break  # leaving the stream stops the turn, and the helper's turn inside it
            print(f"parent: {events.turn.status}; turns left at the helper: {len(helper.turns)}")


async def in_another_process(store: SqliteStore) -> None:
    agent = Agent(ScriptedModel("The end."), name="teller")
    async with Session.open("story", agent=agent, store=store) as session:
        turn = await session.send("How does it end?")
        print(f"{len(session.messages)} messages were kept; the next turn: {turn.status}")
        ends = 0
        async with aclosing(session.events()) as events:
            async for recorded in events:
                ends += isinstance(recorded.event, TurnEnded)
                if recorded.seq >= session.last_seq:
                    break
        print(f"{session.last_seq} events, {ends} ends: one for each turn")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for part in (pressing_stop, a_helper, in_another_process):
            print(f"\n{part.__name__.replace('_', ' ').capitalize()}:")
            store = SqliteStore(Path(folder) / "chat.db")
            await part(store)
            await store.close()


if __name__ == "__main__":
    asyncio.run(main())
