"""Sessions, aborted at every point: zero violations of the laws, and what the store says is one of them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from safepoint.abort import current_clock
from safepoint.agent import Agent, HistoryError, ToolContext, tool, validate
from safepoint.events import (
    LeafEnded,
    LeafStarted,
    QuestionAnswered,
    QuestionAsked,
    QuestionWithdrawn,
    SessionClosed,
    TurnEnded,
    TurnQueued,
)
from safepoint.messages import Message
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.session import MemoryStore, Session, TurnResult
from safepoint.session.log import decode_record
from safepoint.session.session_state import SessionState
from safepoint.testing import DEFAULT_LAWS, FakeClock, Law, Probe, RecordedRun, abort_everywhere

MINE = "the turn under the probe's signal"
Scenario = Callable[[Probe, MemoryStore], Coroutine[Any, Any, TurnResult]]


def talker(*answers: Any, name: str = "talker", **options: Any) -> Agent:
    return Agent(ScriptedModel(*answers), name=name, **options)


async def send(probe: Probe, store: MemoryStore) -> TurnResult:
    @tool
    async def work(ctx: ToolContext) -> str:
        await current_clock().sleep(1)
        ctx.signal.raise_if_aborted()
        probe.record("worked")
        return "worked"

    async with Session.open("s", agent=talker([Call("work")], "done", tools=[work]), store=store) as session:
        return await session.send("hi", turn_id=MINE, signal=probe.signal)


async def queue(probe: Probe, store: MemoryStore) -> TurnResult:
    async with Session.open("s", agent=talker("one", "two"), store=store) as session:
        ahead = session.send("first")
        result = await session.send("second", turn_id=MINE, signal=probe.signal)
        assert (await ahead).status == "completed", "another turn was touched"
        return result


async def steer(probe: Probe, store: MemoryStore) -> TurnResult:
    @tool
    async def work() -> str:
        await asyncio.sleep(0)
        return "worked"

    async with Session.open("s", agent=talker([Call("work")], "steered", tools=[work]), store=store) as session:
        ahead = session.send("first")
        while ahead.status == "queued":
            await asyncio.sleep(0)
        result = await session.send("that way", when_busy="steer", turn_id=MINE, signal=probe.signal)
        made_way = (await ahead).status == "aborted"
        assert made_way or result.status != "completed"
        return result


async def child(probe: Probe, store: MemoryStore) -> TurnResult:
    async with Session.open("helper", agent=talker("helping", name="helper"), store=store) as helper:

        @tool
        async def ask(ctx: ToolContext) -> str:
            async with helper.stream(["help"], signal=ctx.signal) as events:
                async for event in events:
                    ctx.emit(event)
            return "helped"

        agent = talker([Call("ask")], "done", name="parent", tools=[ask])
        async with Session.open("s", agent=agent, store=store) as session:
            result = await session.send("go", turn_id=MINE, signal=probe.signal)
        assert helper.turns == {}, "the helper's turn outlives the parent's"
        return result


async def save(probe: Probe, store: MemoryStore) -> TurnResult:
    async def later(messages: Sequence[Message]) -> list[str]:
        await asyncio.sleep(0)
        return [f"after {len(messages)}"]

    async with Session.open("s", agent=talker("one", "two"), store=store) as session:
        await session.save_messages(["hi"])
        return await session.save_messages(later, turn_id=MINE, signal=probe.signal)


async def go_on(probe: Probe, store: MemoryStore) -> TurnResult:
    async with Session.open("s", agent=talker("one two three", "whole"), store=store) as session:
        turn = session.send("hi")
        while turn.status == "queued":
            await asyncio.sleep(0)
        turn.stop()
        await turn
        return await session.continue_turn(signal=probe.signal)


async def question(probe: Probe, store: MemoryStore) -> TurnResult:
    agent = talker([Call("ask_user", question="Well?")], "thanks", ask_user=True)
    async with asyncio.TaskGroup() as group, Session.open("s", agent=agent, store=store) as session:
        group.create_task(answer(session))
        return await session.send("go", turn_id=MINE, signal=probe.signal)


async def answer(session: Session) -> None:
    events = session.events()
    try:
        async for recorded in events:
            if isinstance(recorded.event, QuestionAsked):
                session.answer(recorded.event.question_id, "well")
    finally:
        await events.aclose()


def store_agrees(stores: list[MemoryStore]) -> Law:
    def the_store_agrees(run: RecordedRun) -> Iterator[str]:
        """All that was accepted or begun has its end, the conversation is valid, and the caller was told the same."""
        for session, records in stores[-1]._logs.items():
            events = [decode_record(record).event for record in records]
            yield from (f"{session}: {breach}" for breach in breaches(events))
            ends = [event for event in events if isinstance(event, TurnEnded) and event.turn_id == MINE]
            for end in ends:
                if run.ending.status not in (end.outcome.status, "cancelled"):
                    yield f"the caller was told {run.ending.status}, the store says {end.outcome.status}"
        if stores[-1]._live:
            yield f"still live: {stores[-1]._live}"

    return the_store_agrees


def breaches(events: list[Any]) -> Iterator[str]:
    past = SessionState()
    for event in events:
        past.apply(event)
    try:
        validate(past.messages)
    except HistoryError as error:
        yield str(error)
    queued = [event.turn_id for event in events if isinstance(event, TurnQueued)]
    ended = [event.turn_id for event in events if isinstance(event, TurnEnded)]
    if sorted(queued) != sorted(ended):
        yield f"accepted {queued}, ended {ended}"
    if not isinstance(events[-1], SessionClosed):
        yield f"the last event is {events[-1].kind}"
    events = [event for event in events if event.run_id in queued]  # not what was passed on from elsewhere
    if count(events, LeafStarted) != count(events, LeafEnded):
        yield "a leaf has no end"
    if count(events, QuestionAsked) != count(events, QuestionAnswered) + count(events, QuestionWithdrawn):
        yield "a question has no end"


def count(events: list[Any], kind: type) -> int:
    return sum(isinstance(event, kind) for event in events)


@pytest.mark.parametrize("scenario", [send, queue, steer, child, save, go_on, question], ids=lambda one: one.__name__)
def test_a_session_can_be_stopped_at_every_point(scenario: Scenario) -> None:
    stores: list[MemoryStore] = []

    async def play(probe: Probe) -> TurnResult:
        stores.append(MemoryStore())
        return await scenario(probe, stores[-1])

    play.__name__ = scenario.__name__
    report = abort_everywhere(play, laws=[*DEFAULT_LAWS, store_agrees(stores)], clock=FakeClock)
    assert len(report.points) >= 8
    assert not report.not_reached
