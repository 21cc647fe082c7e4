"""The second press in a session: by `stop(abandon=…)`, and by a second message that interrupts."""

import asyncio
from typing import Any

import pytest

from safepoint import Aborted, StopAt
from safepoint.agent import tool
from safepoint.events import LeafAbandoned, StopRequested, event_from_json, event_to_json
from safepoint.models.scripted import Call
from safepoint.session import LocalHost, MemoryStore, Session
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.agents import talker
from tests.kit.sessions import stored

SECONDS = 10.0


class Deaf:
    """A tool that goes on after a stop until it is let go."""

    def __init__(self) -> None:
        self.inside, self.let_go = asyncio.Event(), asyncio.Event()

        @tool(warn_after=1000)
        async def deaf() -> str:
            self.inside.set()
            while not self.let_go.is_set():
                try:
                    await self.let_go.wait()
                except asyncio.CancelledError:
                    pass
            return "too late"

        self.tool = deaf

    async def end(self) -> None:
        self.let_go.set()
        await drain_ready_tasks()


async def over(turn: Any) -> Any:
    async with asyncio.timeout(SECONDS):
        return await turn


async def test_a_turn_is_left_by_the_second_press_and_the_conversation_goes_on(clock: FakeClock) -> None:
    deaf, store = Deaf(), MemoryStore()
    agent = talker([Call("deaf")], "fine", tools=[deaf.tool])
    async with Session.open("s", agent=agent, store=store) as session:
        turn = session.send("go", turn_id="t")
        await deaf.inside.wait()
        assert session.stop("t", reason="enough").message == "stops at NOW"
        await clock.elapse(2)
        assert turn.status == "stopping"
        ack = session.stop("t", abandon=0)
        assert ack.status == "already_stopping"
        assert ack.message == "stops at NOW; what has not ended by then is left behind"
        outcome = (await over(turn)).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.message == "enough"
        (entry,) = outcome.receipt.still_running
        assert entry.where is not None
        assert "test_press.py" in entry.where
        assert (await ack.settled(1)).still_running == (entry,)
        assert (await over(session.send("next"))).status == "completed"
        await deaf.end()
        await session.saved()
        events = await stored(store)
    assert sum(isinstance(event, LeafAbandoned) for event in events) == 1
    asked = [event for event in events if isinstance(event, StopRequested)]
    assert [(event.at_point, event.abandon, event.reason) for event in asked] == [
        ("NOW", None, "enough"),
        ("NOW", 0.0, "enough"),
    ]


async def test_the_same_press_again_is_not_recorded_again(clock: FakeClock) -> None:
    deaf, store = Deaf(), MemoryStore()
    async with Session.open("s", agent=talker([Call("deaf")], tools=[deaf.tool]), store=store) as session:
        turn = session.send("go", turn_id="t")
        await deaf.inside.wait()
        for _ in range(3):
            turn.stop(abandon=5)
        turn.stop(abandon=9)
        await drain_ready_tasks()
        await session.saved()
        assert sum(isinstance(event, StopRequested) for event in await stored(store)) == 1
        await clock.elapse(5)
        await over(turn)
        await deaf.end()


def test_a_record_of_a_stop_from_before_there_was_such_a_press_can_be_read():
    about: Any = {"run_id": "t", "path": ("a",), "at": 1.0, "turn_id": "t"}
    event = StopRequested(**about, at_point="NOW", reason="enough", reason_kind="user")
    old = event_to_json(event).replace('"abandon": null, ', "")
    assert "abandon" not in old
    assert event_from_json(old) == event


async def test_a_second_message_that_interrupts_does_not_wait_but_a_double_one_is_one(clock: FakeClock) -> None:
    deaf = Deaf()
    agent = talker([Call("deaf")], "third is answered", "so is the second", "and the fourth", tools=[deaf.tool])
    async with Session.open("s", agent=agent) as session:
        first = session.send("one")
        await deaf.inside.wait()
        session.send("two", when_busy="interrupt")
        await clock.elapse(0.9)
        session.send("three", when_busy="interrupt")
        await clock.elapse(5)
        assert first.result is None, "within a second it is the same press"
        session.send("waits", when_busy="queue")
        session.send("steers", when_busy="steer")
        await clock.elapse(1)
        assert first.result is None, "only one that interrupts is a press"
        await deaf.end()
        outcome = (await over(first)).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.receipt.still_running == ()
        await session.close()


async def test_a_second_message_that_interrupts_after_a_second_leaves_what_does_not_end(clock: FakeClock) -> None:
    deaf = Deaf()
    agent = talker([Call("deaf")], "a", "b", tools=[deaf.tool])
    async with Session.open("s", agent=agent) as session:
        first = session.send("one")
        await deaf.inside.wait()
        second = session.send("two", when_busy="interrupt")
        await clock.elapse(1)
        assert first.result is None
        third = session.send("three", when_busy="interrupt")
        outcome = (await over(first)).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.kind == "preempted"
        assert len(outcome.receipt.still_running) == 1
        assert (await over(third)).status == "completed"
        assert (await over(second)).status == "completed"
        await deaf.end()


async def test_a_message_that_interrupts_a_second_after_a_stop_is_the_second_press(clock: FakeClock) -> None:
    deaf = Deaf()
    agent = talker([Call("deaf")], "a", "b", tools=[deaf.tool])
    async with Session.open("s", agent=agent) as session:
        first = session.send("one")
        await deaf.inside.wait()
        session.stop(first.id)
        await clock.elapse(0.5)
        early = session.send("two", when_busy="interrupt")
        await clock.elapse(0.6)
        assert first.result is None, "the first message came within a second of the stop"
        session.send("three", when_busy="interrupt")
        outcome = (await over(first)).outcome
        assert isinstance(outcome, Aborted)
        assert len(outcome.receipt.still_running) == 1
        assert (await over(early)).status == "completed"
        await deaf.end()


async def test_a_turn_that_waits_is_stopped_as_before(clock: FakeClock) -> None:
    deaf = Deaf()
    async with Session.open("s", agent=talker([Call("deaf")], tools=[deaf.tool])) as session:
        first = session.send("one")
        await deaf.inside.wait()
        waits = session.send("two")
        waits.stop(abandon=0)
        assert (await over(waits)).status == "aborted"
        assert first.status == "running"
        first.stop(StopAt.NOW, abandon=0)
        await over(first)
        await deaf.end()


async def test_a_host_passes_it_on_and_refuses_what_is_no_time(clock: FakeClock) -> None:
    deaf = Deaf()
    host = LocalHost(talker([Call("deaf")], tools=[deaf.tool]))
    await host.create("s")
    await host.send("s", "go", turn_id="t")
    await deaf.inside.wait()
    with pytest.raises(ValueError, match="abandon"):
        await host.stop("s", "t", abandon=-1)
    assert (await host.turn("s", "t")).status == "running"
    ack = await host.stop("s", "t", abandon=2)
    await clock.elapse(2)
    assert len((await ack.settled(SECONDS)).still_running) == 1
    await deaf.end()
    await host.close()
