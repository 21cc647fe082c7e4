"""The local host: every phase of a turn by every source of a stop, and how sessions are kept by name."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from safepoint import Aborted, StopAt
from safepoint.agent import tool
from safepoint.errors import UsageError
from safepoint.events import TurnEnded
from safepoint.messages import ToolResult
from safepoint.models.scripted import Call, Stall
from safepoint.session import LocalHost, MemoryStore, NotFound, SessionEnded, StoreError
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.testing.conformance import CASES, Case
from tests.kit.agents import talker
from tests.kit.hosts import local
from tests.kit.sessions import ends, first_text, said, stored, until
from tests.kit.stores import FailingStore, GatedStore


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_turn_is_stopped_in_every_phase_by_every_source(case: Case) -> None:
    assert await case.check(local)


async def test_sessions_are_made_found_and_listed_by_name() -> None:
    host = LocalHost({"a": talker("hello", name="first"), "b": talker("ho", name="second")})
    assert await host.agents() == ["a", "b"]
    made = await host.create()
    assert (made.agent, made.live, made.turns) == ("a", True, ())
    named = await host.create("mine", "b")
    assert named == await host.create("mine", "b") == await host.create("mine"), "it is there already"
    view = await host.send("mine", "hi", turn_id="t")
    assert (view.id, view.outcome) == ("t", None)
    await ended(host, "mine", "t")
    assert (await host.turn("mine", "t")).status == "completed"
    assert [(one.id, one.agent, one.live) for one in await host.sessions()] == [
        (made.id, "a", True),
        ("mine", "b", True),
    ]
    await host.close()


async def ended(host: LocalHost, session_id: str, turn_id: str) -> None:
    async with aclosing(host.events(session_id)) as events:
        async for recorded in events:
            if isinstance(recorded.event, TurnEnded) and recorded.event.turn_id == turn_id:
                return


async def test_what_is_not_there_is_said_by_name() -> None:
    host = LocalHost(talker())
    await host.create("s")
    for use, told in [
        (host.send("x", "hi"), "no session 'x'"),
        (host.stop("x", "t"), "no session 'x'"),
        (host.session("x"), "no session 'x'"),
        (host.turn("s", "t"), "no turn 't' in session 's'"),
        (host.create("y", "nobody"), "no agent 'nobody': the agents are talker"),
        (host.close_session("x"), "'x' is not live"),
    ]:
        with pytest.raises(NotFound, match=told):
            await use
    with pytest.raises(NotFound, match="no session 'x'"):
        await anext(host.events("x"))
    assert len(await host.sessions()) == 1, "and nothing was made"
    await host.close()


async def test_when_send_returns_the_message_is_in_the_store() -> None:
    store = GatedStore()
    host = LocalHost(talker("hello"), store)
    await host.create("s")
    store.shut()
    sending = asyncio.create_task(host.send("s", "hi", turn_id="t"))
    await store.writing.wait()
    await drain_ready_tasks()
    assert not sending.done()
    store.gate.set()
    assert (await sending).id == "t"
    assert any(event.kind == "turn_queued" for event in await stored(store))
    await host.close()


async def test_everything_a_session_can_do_can_be_done_by_its_name() -> None:
    agent = talker([Call("ask_user", question="Which?")], ["half", Stall()], "whole", ask_user=True)
    host = LocalHost(agent)
    await host.create("s")
    await host.send("s", "go", turn_id="1")
    session = await host.live("s")
    question = (await until(session, lambda event: event.kind == "question_asked")).event
    assert not await host.answer("s", "another", "this")
    session.pause()
    assert await host.answer("s", question.question_id, "this")  # type: ignore[union-attr]
    await first_text(session)
    await host.send("s", "two", turn_id="2")
    await host.send("s", "three", turn_id="3")
    assert [turn.id for turn in (await host.session("s")).turns] == ["1", "2", "3"]
    assert await host.edit("s", "2", "zwei")
    assert await host.remove("s", "3")
    assert await host.remove("s", "2")
    await host.stop("s", "1", at=StopAt.NOW)
    await ended(host, "s", "1")
    again = await host.continue_turn("s")
    session.resume()
    await ended(host, "s", again.id)
    assert said(session.messages)[-1] == "whole"
    await host.forget("s", again.id)
    assert said(session.messages)[-1] == "half"
    await host.close()


async def test_two_who_ask_at_once_get_one_session() -> None:
    host = LocalHost(talker())
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(host.create("s"))
    assert await host.live("s") is await host.live("s")
    await host.close()


async def test_a_closed_session_is_opened_again_when_somebody_asks_for_it() -> None:
    host = LocalHost(talker("one", "two"))
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await ended(host, "s", "t")
    await host.close_session("s")
    assert [one.live for one in await host.sessions()] == [False]
    assert (await host.turn("s", "t")).status == "completed"
    view = await host.send("s", "again")
    await ended(host, "s", view.id)
    await host.close()


async def test_a_session_keeps_its_agent_under_another_name_or_says_that_it_is_gone() -> None:
    store = MemoryStore()
    host = LocalHost({"old": talker("hello", name="her")}, store)
    await host.create("s")
    await host.close()
    host = LocalHost({"other": talker(name="him"), "new": talker("ho", name="her")}, store)
    assert (await host.session("s")).agent == "new"
    await host.close()
    host = LocalHost({"other": talker(name="him")}, store)
    assert (await host.session("s")).agent == "her"
    with pytest.raises(NotFound, match="no agent 'her'"):
        await host.send("s", "hi")
    await host.close()


async def test_closing_a_reader_of_the_host_is_felt_at_once(clock: FakeClock) -> None:
    host = LocalHost(talker(["half", Stall()]), on_disconnect=5.0)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    events = host.events("s")
    await anext(events)
    await events.aclose()
    assert clock.pending == 1
    await clock.elapse(5)
    await ended(host, "s", "t")
    outcome = (await host.turn("s", "t")).outcome
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "disconnected"
    await host.close()
    assert clock.pending == 0


async def test_a_host_that_is_closed_lets_turns_reach_a_safe_point_first(clock: FakeClock) -> None:
    released = asyncio.Event()

    @tool
    async def work() -> str:
        await released.wait()
        return "worked"

    store = MemoryStore()
    agents = {"deaf": talker(["half", Stall()], name="deaf"), "good": talker([Call("work")], name="good", tools=[work])}
    host = LocalHost(agents, store)
    for name in agents:
        await host.create(name, name)
        await host.send(name, "hi", turn_id="t")
    await until(await host.live("good"), lambda event: event.kind == "tool_called")
    await first_text(await host.live("deaf"))
    closing = asyncio.create_task(host.close(within=5.0, reason="deploy"))
    await drain_ready_tasks()
    with pytest.raises(SessionEnded, match="the host is closed"):
        await host.send("good", "more")
    released.set()
    await drain_ready_tasks()
    assert not closing.done()
    await clock.elapse(5)
    await closing
    outcomes: dict[str, Any] = {name: (await ends(store, name))["t"].outcome for name in agents}
    assert {name: outcome.reason.message for name, outcome in outcomes.items()} == {"deaf": "deploy", "good": "deploy"}
    assert [outcomes["good"].receipt.escalated, outcomes["deaf"].receipt.escalated] == [False, True]
    results = [one for one in outcomes["good"].partial.messages if isinstance(one, ToolResult)]
    assert results[0].status == "completed", "what was under way was finished"
    with pytest.raises(SessionEnded, match="the host is closed"):
        await host.create("new")
    await host.close()


@pytest.mark.parametrize("within", [-1, float("nan")])
async def test_a_grace_that_is_no_time_is_refused(within: float) -> None:
    host = LocalHost(talker())
    with pytest.raises((UsageError, ValueError), match="within"):
        await host.close(within=within)
    await host.create("s")
    await host.close()


async def test_a_session_that_cannot_be_written_does_not_keep_the_others_from_closing() -> None:
    store = FailingStore("break me")
    host = LocalHost({"a": talker("break me", name="a"), "b": talker(["half", Stall()], name="b")}, store)
    await host.create("a", "a")
    await host.create("b", "b")
    await host.send("b", "hi", turn_id="t")
    session = await host.live("a")
    assert (await session.send("go")).status == "failed"
    with pytest.raises(StoreError, match="full"):
        await host.close()
    assert (await ends(store, "b"))["t"].outcome.status == "aborted"
    assert store._live == set()


async def test_after_a_crash_the_host_goes_on_where_it_was() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await first_text(await host.live("s"))
    await (await host.live("s")).saved()
    left = MemoryStore()
    left._logs = {"s": list(store._logs["s"])}
    await host.close()
    host = LocalHost(talker("whole"), left, resume=True)
    await host.recover()
    view = await host.session("s")
    assert len(view.turns) == 1
    await ended(host, "s", view.turns[0].id)
    assert said((await host.live("s")).messages) == ["hi", "whole"]
    await host.close()
