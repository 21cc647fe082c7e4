"""One conditional end per turn: whatever races, the caller, the events and the store say the same."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Completed, StopAt
from safepoint.agent import Agent, AgentResult, ToolContext, tool, validate
from safepoint.errors import UsageError
from safepoint.events import SessionClosed, StopRequested, TextStreamed, ToolCalled, TurnEnded, TurnStarted
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.session import MemoryStore, Session, SessionBusy, SessionEnded, SessionTurn
from safepoint.testing import drain_ready_tasks
from safepoint.wire import outcome_to_json
from tests.conftest import counts
from tests.kit.agents import gated_agent, talker
from tests.kit.sessions import read_all, stored, until
from tests.kit.stores import GatedStore
from tests.kit.waiting import loop_until

PARTS = 8
STATUSES = {"completed", "aborted", "timed_out", "failed"}


class Hesitant(MemoryStore):
    """Takes a few turns of the loop for everything, as chance has it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    async def append(self, session: str, records: Any, *, durable: bool) -> frozenset[str]:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        refused = await super().append(session, records, durable=durable)
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        return refused


def wordy(chance: random.Random) -> Agent:
    """An agent that talks, calls tools that take a while, and talks again."""

    @tool
    async def work(turns: int, ctx: ToolContext) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        await ctx.safe_point()
        return "worked"

    def answer(request: Any) -> Any:
        if chance.random() < 0.4:
            return ["let me see", *[Call("work", turns=chance.randrange(6)) for _ in range(chance.randrange(1, 3))]]
        return "word " * chance.randrange(1, 6)

    return Agent(ScriptedModel(*[answer] * 500), name="wordy", tools=[work], max_steps=8)


async def play(chance: random.Random) -> None:
    store, agent = Hesitant(chance), wordy(chance)
    turns: list[SessionTurn] = []
    signals: list[AbortController] = []
    async with asyncio.TaskGroup() as group:
        session = await Session.open("s", agent=agent, store=store)
        reading = group.create_task(read_all(session.events()))
        for _ in range(chance.randrange(3, 12)):
            act(session, chance, turns, signals)
            for _ in range(chance.randrange(25)):
                await asyncio.sleep(0)
        if chance.random() < 0.5:
            session.resume()
            for turn in turns:
                await turn
        await session.close()
        events = await reading
    results = {turn.id: await turn for turn in turns}
    await agree(session, store, results, [recorded.event for recorded in events])
    assert [recorded.seq for recorded in events] == list(range(1, session.last_seq + 1))
    assert all(controller.signal.observers == 0 for controller in signals), "a listener is left"


def act(session: Session, chance: random.Random, turns: list[SessionTurn], signals: list[AbortController]) -> None:
    """Something a user might do now."""
    live = list(session.turns.values())
    match chance.randrange(10):
        case 0 | 1 if live:
            chance.choice(live).stop(chance.choice([None, StopAt.NOW, StopAt.AFTER_TOOLS, StopAt.SAFE_POINT]))
        case 2 if signals:
            chance.choice(signals).abort("left")
        case 3 if live:
            session.remove(chance.choice(live).id)
        case 4 if live:
            session.edit(chance.choice(live).id, "edited")
        case 5 if not live:
            try:
                turns.append(session.continue_turn())
            except UsageError:
                pass  # there is no stopped turn
        case 6:
            (session.pause if chance.random() < 0.5 else session.resume)()
        case _:
            signals.append(AbortController())
            way = chance.choice(["queue", "queue", "steer", "interrupt", "reject"])
            try:
                turns.append(session.send("hi", signal=signals[-1].signal, when_busy=way))  # type: ignore[arg-type]
            except SessionBusy:
                assert way == "reject"


async def agree(session: Session, store: MemoryStore, results: dict[str, Any], events: list[Any]) -> None:
    """The caller, the events and the store, about every turn; and the conversation."""

    def as_text(outcome: Any) -> str:
        return outcome_to_json(outcome, AgentResult)

    told = [event for event in events if isinstance(event, TurnEnded)]
    kept = [event for event in await stored(store) if isinstance(event, TurnEnded)]
    for source in (told, kept):
        ids = [event.turn_id for event in source]
        assert len(ids) == len(set(ids)), "two ends of one turn"
        for event in source:
            assert as_text(event.outcome) == as_text(results[event.turn_id].outcome)
    accepted = {event.turn_id for event in told}
    assert {event.turn_id for event in kept} == accepted
    for turn_id, result in results.items():
        assert result.status in STATUSES
        assert turn_id in accepted or isinstance(result.outcome, Aborted), "not stored: it never began"
    assert isinstance(events[-1], SessionClosed)
    stopped = {event.turn_id for event in events if isinstance(event, StopRequested) and event.at_point == "NOW"}
    for turn_id in stopped:
        assert results[turn_id].status != "failed"
    for turn_id in accepted:
        mine = [event for event in events if getattr(event, "turn_id", None) == turn_id]
        assert isinstance(mine[-1], TurnEnded), "nothing of a turn comes after its end"
        assert sum(isinstance(event, TurnStarted) for event in mine) <= 1
    validate(session.messages)
    async with Session.open("s", agent=talker(), store=store) as again:
        assert again.messages == session.messages, "the store tells the same conversation"
        assert again.turns == {}


@pytest.mark.parametrize("part", range(PARTS))
async def test_in_any_interleaving_the_caller_the_events_and_the_store_agree(part: int) -> None:
    for seed in range(part, counts(64, 800), PARTS):
        try:
            await play(random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def test_a_stop_in_each_moment_around_the_end_gives_one_truth_to_everybody() -> None:
    seen = set()
    for moment in range(counts(60, 120)):
        store = MemoryStore()
        async with asyncio.TaskGroup() as group:
            session = await Session.open("s", agent=talker("one two three"), store=store)
            reading = group.create_task(read_all(session.events()))
            turn = session.send("hi", turn_id="t")
            for _ in range(moment):
                await asyncio.sleep(0)
            ack = session.stop("t", reason="now")
            result = await turn
            receipt = await ack.settled()
            await session.close()
            events = [recorded.event for recorded in await reading]
        seen.add((ack.status, result.status))
        assert (receipt.reason is None) == (result.status == "completed")
        if ack.status == "already_finished":
            assert result.status == "completed"
        await agree(session, store, {"t": result}, events)
    assert {("accepted", "aborted"), ("already_finished", "completed")} <= seen


async def test_a_completion_that_comes_after_the_abort_does_not_overwrite_it() -> None:
    released = asyncio.Event()

    @tool(on_abort="cooperate")
    async def deaf() -> str:
        await released.wait()
        return "I finished anyway"

    store = MemoryStore()
    async with Session.open("s", agent=talker([Call("deaf")], "all done", tools=[deaf]), store=store) as session:
        turn = session.send("hi", turn_id="t")
        await loop_until(lambda: turn.status == "running")
        await drain_ready_tasks()
        turn.stop(reason="enough")
        released.set()
        result = await turn
        assert isinstance(result.outcome, Aborted)
        assert session.outcome_of("t") == result.outcome


async def test_a_stop_that_comes_after_the_last_chunk_and_before_the_end_is_one_or_the_other_for_everybody() -> None:
    store = GatedStore()
    agent, released = gated_agent("whole")
    async with Session.open("s", agent=agent, store=store) as session:
        turn = session.send("hi", turn_id="t")
        await until(session, lambda event: isinstance(event, ToolCalled))
        await session.saved()
        store.shut()
        released.set()
        await loop_until(lambda: turn.outcome is not None)
        assert session.stop("t").status == "already_finished"
        closing = asyncio.create_task(session.close())
        await drain_ready_tasks()
        with pytest.raises(SessionEnded):
            session.send("more")
        store.gate.set()
        await closing
        assert isinstance((await turn).outcome, Completed)
        async with aclosing(session.events()) as events:
            told = [one.event for one in await read_all(events)]
        await agree(session, store, {"t": await turn}, told)
        assert any(isinstance(event, TextStreamed) for event in told)
