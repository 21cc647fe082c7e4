"""The events of one turn as a stream that its reader holds."""

import asyncio
from contextlib import aclosing

import pytest

from safepoint import Aborted, AbortSignal
from safepoint.agent import ToolContext, tool
from safepoint.events import Event, TextStreamed, ToolCalled, TurnEnded, TurnQueued
from safepoint.models.scripted import Call, Stall
from safepoint.session import Session
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.agents import talker
from tests.kit.sessions import first_text, read_all


async def test_it_has_the_events_of_that_turn_from_its_acceptance_to_its_end() -> None:
    async with Session.open("s", agent=talker("one", "two")) as session:
        await session.send("before")
        async with session.stream(["hi"]) as events:
            session.send("after")
            seen = [event async for event in events]
        assert isinstance(seen[0], TurnQueued)
        assert isinstance(seen[-1], TurnEnded)
        assert {event.run_id for event in seen} == {events.turn.id}
        assert "".join(event.text for event in seen if isinstance(event, TextStreamed)) == "two"
        await drain_ready_tasks()


async def test_closing_it_aborts_exactly_that_turn_and_waits_for_its_end() -> None:
    async with Session.open("s", agent=talker(["half", Stall()], "next")) as session:
        async with session.stream(["hi"]) as events:
            other = session.send("wait for me")
            async for event in events:
                if isinstance(event, TextStreamed):
                    break
        assert events.turn.result is not None
        assert isinstance(events.turn.result.outcome, Aborted)
        assert events.turn.result.outcome.reason.kind == "disconnected"
        assert (await other).status == "completed"


async def test_one_that_nobody_iterates_is_closed_as_well() -> None:
    async with Session.open("s", agent=talker(["half", Stall()])) as session:
        async with session.stream(["hi"]) as events:
            await first_text(session)
        assert events.turn.result is not None
        assert events.turn.result.status == "aborted"


async def test_an_error_in_its_body_stops_the_turn_and_comes_out() -> None:
    async with Session.open("s", agent=talker(["half", Stall()])) as session:
        with pytest.raises(ValueError, match="mine"):
            async with session.stream(["hi"]) as events:
                async for event in events:
                    if isinstance(event, TextStreamed):
                        raise ValueError("mine")
        assert events.turn.result is not None
        assert events.turn.result.status == "aborted"


async def test_a_turn_that_was_removed_from_the_queue_has_its_end_also_for_a_late_reader() -> None:
    async with Session.open("s", agent=talker(["half", Stall()])) as session:
        session.send("ahead")
        async with session.stream(["hi"]) as events:
            session.remove(events.turn.id)
            await events.turn
            kinds = [event.kind async for event in events]
        assert kinds == ["turn_queued", "turn_ended"]


async def test_one_that_never_began_has_nothing_to_show() -> None:
    async with Session.open("s", agent=talker()) as session:
        async with session.stream(["hi"], signal=AbortSignal.already("no")) as events:
            assert [event async for event in events] == []


async def test_what_its_tools_pass_on_from_other_sessions_comes_along_through_every_level() -> None:
    def passing(name: str, below: Session) -> object:
        @tool(name=name)
        async def ask(ctx: ToolContext) -> str:
            async with below.stream(["help"], signal=ctx.signal) as events:
                async for event in events:
                    ctx.emit(event)
            return "helped"

        return ask

    async with Session.open("c", agent=talker("deep", name="c")) as lowest:
        agent = talker([Call("ask_c")], "middle", name="b", tools=[passing("ask_c", lowest)])
        async with Session.open("b", agent=agent) as middle:
            agent = talker([Call("ask_b")], "top", name="a", tools=[passing("ask_b", middle)])
            async with Session.open("a", agent=agent) as top:
                async with top.stream(["go"]) as events:
                    seen: list[Event] = [event async for event in events]
    said = [(event.path[0], event.text) for event in seen if isinstance(event, TextStreamed)]
    assert said == [("c", "deep"), ("b", "middle"), ("a", "top")]
    assert [event.turn_id for event in seen if isinstance(event, TurnEnded)] == [events.turn.id], "only its own end"


async def test_a_stream_is_a_reader_for_the_disconnect_policy(clock: FakeClock) -> None:
    async with Session.open("s", agent=talker(["half", Stall()]), on_disconnect=5.0) as session:
        async with session.stream(["hi"]) as events:
            await first_text(session)  # another reader comes and goes
            async for event in events:
                if isinstance(event, TextStreamed):
                    await clock.elapse(60)
                    assert events.turn.status == "running", "somebody is there"
                    break
        assert events.turn.result is not None
    assert clock.pending == 0


async def test_the_session_that_is_closed_ends_it() -> None:
    session = await Session.open("s", agent=talker(["half", Stall()]))
    async with session.stream(["hi"]) as events, asyncio.TaskGroup() as group:
        await first_text(session)
        group.create_task(session.close())
        kinds = [event.kind async for event in events]
    assert kinds[-1] == "turn_ended"


async def test_a_turn_and_its_tools_are_told_in_order() -> None:
    @tool
    async def look() -> str:
        return "seen"

    async with Session.open("s", agent=talker([Call("look")], "done", tools=[look])) as session:
        async with session.stream(["hi"]) as events:
            seen = [event async for event in events]
        assert sum(isinstance(event, ToolCalled) for event in seen) == 1
    async with aclosing(session.events()) as recorded:
        everything = [one.event for one in await read_all(recorded)]
    assert [event for event in everything if event in seen] == seen
