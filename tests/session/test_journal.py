"""Calls on record before their bodies begin: the wait, its end at a stop, one write for an answer, failing stores."""

import asyncio
from typing import Any

import pytest

from safepoint.agent import Agent, ToolContext, tool
from safepoint.events import CallRecorded, ToolCalled
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.run import Aborted, Completed
from safepoint.session import MemoryStore, Session, StoreError
from tests.kit.agents import talker
from tests.kit.sessions import ends, stored, until
from tests.kit.stores import FailingStore
from tests.kit.waiting import loop_until


def payer(ran: list[str], *answers: Any, **options: Any) -> Agent:
    @tool(**options)
    async def pay(ctx: ToolContext) -> str:
        ran.append(ctx.idempotency_key)
        return "paid"

    return talker(*(answers or ([Call("pay")], "done")), tools=[pay])


async def test_where_the_store_fails_the_body_does_not_begin() -> None:
    store, ran = FailingStore("call_recorded"), list[str]()
    session = await Session.open("s", agent=payer(ran), store=store)
    result = await session.send("go")
    assert result.status == "failed"
    assert ran == []
    with pytest.raises(StoreError, match="the disk is full"):
        await session.close()


async def test_a_call_of_a_sub_agent_is_on_record_with_the_calls_around_it() -> None:
    store, ran = MemoryStore(), list[str]()
    clerk = payer(ran)
    clerk.name = "clerk"
    agent = Agent(ScriptedModel([Call("clerk", prompt="pay")], "done"), name="chief", tools=[clerk])
    async with Session.open("s", agent=agent, store=store) as session:
        assert isinstance((await session.send("go", turn_id="1")).outcome, Completed)
    events = await stored(store)
    recorded = [event for event in events if isinstance(event, CallRecorded)]
    assert [(event.name, event.effects, event.calls) for event in recorded] == [
        ("clerk", "child", ()),
        ("pay", "irreversible", ("call-1",)),
    ]
    assert [event.calls for event in events if isinstance(event, ToolCalled)] == [(), ("call-1",)]
    assert ran == ["s:1:chief:call-1:call-1"]


async def test_calls_of_two_sessions_have_two_keys_also_if_their_turns_have_one_id() -> None:
    ran: list[str] = []
    names = [("ann", "1"), ("bob", "1"), ("a", "b:1"), ("a:b", "1"), ("Zoë", "1\n")]
    for session_id, turn_id in names:
        # Each has a model of its own, and each model gives its first call the same id.
        async with Session.open(session_id, agent=payer(ran, effects="idempotent"), store=MemoryStore()) as session:
            await session.send("go", turn_id=turn_id)
    assert len(set(ran)) == len(names), ran
    assert all(key.isascii() and key.isprintable() for key in ran), "a provider takes it in a header"


async def test_what_is_looked_at_before_an_effect_can_still_stop_it() -> None:
    ran: list[str] = []
    async with Session.open("s", agent=payer(ran), store=(store := MemoryStore())) as session:
        looked: list[str] = []

        async def look() -> None:
            looked.append("before")
            session.stop("1", reason="it was recorded elsewhere")

        session.check_before_effects(look)
        result = await session.send("go", turn_id="1")
    assert result.status == "aborted"
    assert (ran, looked) == ([], ["before"])
    assert set(await ends(store)) == {"1"}


async def test_a_stop_that_is_found_before_a_completed_end_makes_it_aborted_with_all_it_had() -> None:
    async with Session.open("s", agent=talker("the answer"), store=MemoryStore()) as session:

        async def look() -> None:
            session.stop("1", reason="it was recorded elsewhere")

        session.check_before_effects(look)
        outcome = (await session.send("go", turn_id="1")).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.message == "it was recorded elsewhere"
        assert outcome.partial is not None
        assert outcome.partial.text == "the answer"
        assert [entry.fate for entry in outcome.receipt.entries] == ["finished"]


@pytest.mark.parametrize("key", ["s:1:talker:call-1", "1:talker:call-1"], ids=["now", "of an earlier version"])
async def test_an_approval_that_a_crash_cut_off_leaves_a_call_that_has_not_begun(key: str) -> None:
    store, ran = MemoryStore(), list[str]()
    session = await Session.open("s", agent=payer(ran, requires_approval=True), store=store)
    session.send("go", turn_id="1")
    await until(session, lambda event: event.kind == "question_asked")
    await session.saved()
    copy = MemoryStore()
    records = [
        record._replace(text=record.text.replace("s:1:talker:call-1", key)) for record in await store.read("s", 0, 1000)
    ]
    await copy.append("s", records, durable=True)
    await session.close()
    async with Session.open("s", agent=payer(ran, "done"), store=copy) as session:
        outcome = session.outcome_of("1")
        assert isinstance(outcome, Aborted)
        assert outcome.partial is not None
        assert [getattr(message, "status", "") for message in outcome.partial.messages][-1] == "not_started"
        assert (await session.continue_turn("1")).status == "completed"
    assert ran == [key], "it had not begun, so that it runs, under the key it had"


async def test_a_part_that_is_on_record_does_not_run_again_in_the_next_process() -> None:
    store, ran = MemoryStore(), list[str]()
    crashed = asyncio.Event()

    def agent() -> Agent:
        @tool(effects="idempotent")
        async def book(ctx: ToolContext) -> str:
            async def reserve() -> list[str]:
                ran.append("reserve")
                return ["seat 4"]

            seats = await ctx.once("reserve", reserve)
            ran.append("charge")
            if not crashed.is_set():
                await asyncio.Event().wait()
            return f"booked {seats[0]}"

        return talker([Call("book")], tools=[book]) if not crashed.is_set() else talker("done", tools=[book])

    session = await Session.open("s", agent=agent(), store=store)
    session.send("go", turn_id="1")
    await loop_until(lambda: "charge" in ran)
    copy = MemoryStore()
    await copy.append("s", await store.read("s", 0, 1000), durable=True)
    await session.close()
    crashed.set()
    async with Session.open("s", agent=agent(), store=copy, resume=True) as session:
        (turn,) = session.turns.values()
        outcome = (await turn).outcome
    assert isinstance(outcome, Completed)
    assert ran == ["reserve", "charge", "charge"]
