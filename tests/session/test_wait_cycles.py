"""Turns that would wait for themselves, alone or along other sessions: refused at once, with the chain."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from safepoint.agent import Agent, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call
from safepoint.session import MemoryStore, Session
from tests.kit.agents import talker

Do = Callable[[ToolContext], Awaitable[Any]]


def acting(do: Do, name: str) -> Agent:
    """An agent whose tool does this, and tells what it was refused."""

    @tool
    async def act(ctx: ToolContext) -> str:
        try:
            await do(ctx)
        except UsageError as error:
            return str(error)
        return "done"

    return talker([Call("act")], "answered", [Call("act")], "answered", name=name, tools=[act])


async def told(session: Session) -> str:
    """What the tool of the one turn has returned."""
    async with asyncio.timeout(5):
        result = await session.save_messages("go")
    assert result.status == "completed"
    return results(session)[0]


def results(session: Session) -> list[str]:
    """What its tool has returned, each time."""
    return [one.content for one in session.messages if isinstance(one, ToolResult)]


async def awaits_send(session: Session, ctx: ToolContext) -> None:
    await session.send("more")


async def awaits_save(session: Session, ctx: ToolContext) -> None:
    await session.save_messages("more")


async def awaits_continue(session: Session, ctx: ToolContext) -> None:
    await session.continue_turn()


async def awaits_under_its_signal(session: Session, ctx: ToolContext) -> None:
    await ctx.signal.run(session.send("more").wait())


async def reads_a_stream(session: Session, ctx: ToolContext) -> None:
    async with session.stream("more", signal=ctx.signal) as events:
        async for _ in events:
            pass


WAYS = [awaits_send, awaits_save, awaits_continue, awaits_under_its_signal, reads_a_stream]
NAMES = [way.__name__ for way in WAYS]


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
async def test_a_turn_that_awaits_its_own_session_is_told_so(way: Any) -> None:
    async with Session.open("a", agent=acting(lambda ctx: way(session, ctx), "a")) as session:
        assert "would wait for itself" in (refusal := await told(session))
        assert "'a' → 'a'" in refusal


@pytest.mark.parametrize("there", [awaits_send, awaits_save, awaits_under_its_signal, reads_a_stream])
@pytest.mark.parametrize("back", WAYS, ids=NAMES)
async def test_a_cycle_of_sessions_names_the_chain(there: Any, back: Any) -> None:
    store = MemoryStore()
    sessions: dict[str, Session] = {}
    async with (
        Session.open("a", agent=acting(lambda ctx: there(sessions["b"], ctx), "a"), store=store) as a,
        Session.open("b", agent=acting(lambda ctx: there(sessions["c"], ctx), "b"), store=store) as b,
        Session.open("c", agent=acting(lambda ctx: back(sessions["a"], ctx), "c"), store=store) as c,
    ):
        sessions.update(a=a, b=b, c=c)
        assert await told(a) == "done", "only the last one is refused"
        assert "'c' → 'a' → 'b' → 'c'" in results(c)[0]


async def test_a_turn_behind_one_that_waits_is_part_of_the_chain() -> None:
    """B is asked while it works on something else, which waits for A: the new turn of B cannot begin before."""
    store = MemoryStore()
    sessions: dict[str, Session] = {}
    waits, asks = asyncio.Event(), asyncio.Event()

    async def ask_b(ctx: ToolContext) -> None:
        await waits.wait()
        await sessions["b"].send("more")

    async def ask_a(ctx: ToolContext) -> None:
        await asks.wait()
        turn = sessions["a"].send("more")
        waits.set()
        await turn

    async with (
        Session.open("a", agent=acting(ask_b, "a"), store=store) as a,
        Session.open("b", agent=acting(ask_a, "b"), store=store) as b,
    ):
        sessions.update(a=a, b=b)
        of_b = b.send("go")
        of_a = a.send("go")
        asks.set()
        async with asyncio.timeout(5):
            for turn in (of_a, of_b):
                assert (await turn).status == "completed"
        first = [results(a)[0], results(b)[0]]
        assert sum("would wait for itself" in one for one in first) == 1


async def test_what_is_not_waited_for_is_no_cycle() -> None:
    store = MemoryStore()
    sessions: dict[str, Session] = {}

    async def leave_word(ctx: ToolContext) -> None:
        sessions["b"].send("when you have time")

    async def ask_back(ctx: ToolContext) -> None:
        await sessions["a"].send("and you?")

    async with (
        Session.open("a", agent=acting(leave_word, "a"), store=store) as a,
        Session.open("b", agent=acting(ask_back, "b"), store=store) as b,
    ):
        sessions.update(a=a, b=b)
        assert await told(a) == "done"
        async with asyncio.timeout(5):
            for turn in list(b.turns.values()):
                assert (await turn).status == "completed"
        assert results(b)[0] == "done"


async def test_two_sessions_may_ask_the_same_helper() -> None:
    store = MemoryStore()
    async with Session.open("helper", agent=talker("one", "two", name="helper"), store=store) as helper:

        async def ask(ctx: ToolContext) -> None:
            await helper.save_messages("help")

        async with (
            Session.open("a", agent=acting(ask, "a"), store=store) as a,
            Session.open("b", agent=acting(ask, "b"), store=store) as b,
        ):
            assert set(await asyncio.gather(told(a), told(b))) == {"done"}


async def test_a_task_that_outlives_its_turn_may_wait_for_the_next_one() -> None:
    results: list[asyncio.Task[Any]] = []
    ended = asyncio.Event()

    async def later() -> str:
        await ended.wait()
        return (await session.send("more")).status

    async def begin(ctx: ToolContext) -> None:
        results.append(asyncio.create_task(later()))

    async with Session.open("a", agent=acting(begin, "a")) as session:
        assert await told(session) == "done"
        ended.set()
        async with asyncio.timeout(5):
            assert await results[0] == "completed"
