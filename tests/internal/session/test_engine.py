"""Owns the tests that look inside, beside those of `tests/session/test_engine.py`.

The turns of one session: accepted, ended once, taken up after a crash, and never left hanging.
"""

import pytest

from safepoint import Aborted, AbortReason, Completed, Failed
from safepoint.agent import ToolContext, tool
from safepoint.events import (
    AnswerStarted,
    Event,
    SessionOpened,
    TextStreamed,
    ToolCalled,
    ToolEnded,
    TurnQueued,
    TurnStarted,
    event_to_json,
)
from safepoint.messages import ToolResult, UserMessage
from safepoint.models.scripted import Stall
from safepoint.session import MemoryStore, Session, SessionInUse
from safepoint.session.store import LogRecord
from safepoint.testing import drain_ready_tasks
from safepoint.wire import WireError
from tests.kit.agents import asked, gated_agent, talker
from tests.kit.sessions import ends, first_text, is_valid, said, until
from tests.kit.stores import GatedStore
from tests.kit.waiting import loop_until
from tests.session.test_engine import of, stop


def queued(turn_id: str, text: str | None = "hi", continues: str | None = None) -> Event:
    messages = None if text is None else (UserMessage(text=text),) if text else ()
    return of(turn_id, TurnQueued, turn_id=turn_id, messages=messages, continues=continues)


def begun(turn_id: str) -> Event:
    return of(turn_id, TurnStarted, turn_id=turn_id, items=1)


async def crashed(*events: Event) -> MemoryStore:
    """A store as a crash left it."""
    store = MemoryStore()
    everything = [of("s", SessionOpened, agent="talker"), *events]
    await store.append("s", [LogRecord(seq, event_to_json(one)) for seq, one in enumerate(everything, 1)], durable=True)
    return store


async def test_after_a_crash_what_had_not_begun_waits_again() -> None:
    store = await crashed(queued("1", "one"), queued("2", "two"))
    agent = talker("first", "second")
    async with Session.open("s", agent=agent, store=store) as session:
        turns = session.turns
        assert list(turns) == ["1", "2"]
        assert [(await turn).status for turn in turns.values()] == ["completed", "completed"]
        assert said(session.messages) == ["one", "first", "two", "second"]


async def test_after_a_crash_what_had_begun_is_sealed_and_not_run_again() -> None:
    store = await crashed(queued("1"), begun("1"), of("1", AnswerStarted, model="m", step=1))
    agent = talker("next")
    async with Session.open("s", agent=agent, store=store) as session:
        outcome = session.outcome_of("1")
        assert isinstance(outcome, Aborted)
        assert outcome.reason.kind == "lease_lost"
        assert (session.turns, asked(agent)) == ({}, 0)
        assert said(session.messages) == ["hi"]
        assert (await session.send("more")).status == "completed"
    assert len(await ends(store)) == 2


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("events", [[queued("1"), stop("1")], [queued("1"), begun("1"), stop("1")]])
async def test_after_a_crash_a_turn_with_a_recorded_stop_is_never_run_again(resume: bool, events: list[Event]) -> None:
    store, agent = await crashed(*events), talker()
    async with Session.open("s", agent=agent, store=store, resume=resume) as session:
        outcome = session.outcome_of("1")
        assert isinstance(outcome, Aborted)
        assert outcome.reason == AbortReason("user", "enough")
        assert session.turns == {}
        await drain_ready_tasks()
    assert asked(agent) == 0


async def test_a_function_of_messages_does_not_survive_a_crash_and_its_turn_says_so() -> None:
    store = await crashed(queued("1", None), queued("2", "two"))
    async with Session.open("s", agent=talker("second"), store=store) as session:
        assert isinstance(session.outcome_of("1"), Aborted)
        assert (await session.turns["2"]).status == "completed"


async def test_resume_goes_on_with_what_a_crash_has_interrupted_before_what_waits() -> None:
    store = await crashed(
        queued("1", "one"),
        begun("1"),
        queued("2", "two"),
        of("1", AnswerStarted, model="m", step=1),
        of("1", ToolCalled, call_id="c1", name="look", arguments="{}"),
        of("1", ToolCalled, call_id="c2", name="look", arguments="{}"),
        of("1", ToolEnded, call_id="c1", name="look", status="completed", content="seen"),
    )
    calls: list[str] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        calls.append(ctx.call_id)
        return "seen again"

    agent = talker("so", "second", tools=[look])
    async with Session.open("s", agent=agent, store=store, resume=True) as session:
        turns = list(session.turns.values())
        assert [turn.continues for turn in turns] == ["1", None]
        assert [(await turn).status for turn in turns] == ["completed", "completed"]
        assert calls == [], "what has run is not repeated, and what may have run is not either"
        results = [message for message in session.messages if isinstance(message, ToolResult)]
        assert [(result.call_id, result.status) for result in results] == [("c1", "completed"), ("c2", "unknown")]
        assert [text for text in said(session.messages) if text in ("one", "so", "two", "second")] == [
            "one",
            "so",
            "two",
            "second",
        ]
        assert is_valid(session)


async def test_a_continuation_that_had_not_begun_when_the_crash_came_goes_first() -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker(["half", Stall()]), store=store) as session:
        turn = session.send("one", turn_id="1")
        await first_text(session)
        turn.stop()
        await turn
        last = session.last_seq
    waiting = [queued("2", "two"), queued("3", "", continues="1")]
    records = [LogRecord(last + 10 + place, event_to_json(event)) for place, event in enumerate(waiting)]
    await store.append("s", records, durable=True)
    async with Session.open("s", agent=talker("whole", "second"), store=store) as session:
        for turn in session.turns.values():
            assert (await turn).status == "completed"
        assert said(session.messages) == ["one", "whole", "two", "second"]


async def test_a_crash_while_a_turn_went_on_loses_nothing_of_it() -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker(["half", Stall()]), store=store) as session:
        turn = session.send("one", turn_id="1")
        await first_text(session)
        turn.stop()
        await turn
        last = session.last_seq
    more = [queued("2", "", continues="1"), begun("2"), of("2", AnswerStarted, model="m", step=2)]
    more += [of("2", TextStreamed, text="almost")]
    records = [LogRecord(last + 10 + place, event_to_json(event)) for place, event in enumerate(more)]
    await store.append("s", records, durable=True)
    agent = talker("whole")
    async with Session.open("s", agent=agent, store=store, resume=True) as session:
        (again,) = session.turns.values()
        assert said(session.messages) == ["one", "almost"]
        assert (await again).status == "completed"
        assert said(session.messages) == ["one", "whole"]
        assert is_valid(session)


async def test_a_turn_that_was_taken_up_after_a_crash_can_be_stopped_in_the_queue() -> None:
    store = await crashed(queued("1", "one"), queued("2", "two"))
    async with Session.open("s", agent=talker(["half", Stall()]), store=store) as session:
        first, second = session.turns.values()
        await first_text(session)
        session.stop("2")
        assert (await second).status == "aborted", "at once, not when its slot comes"
        assert first.status == "running"


async def test_a_second_writer_is_noticed_and_nothing_is_told_as_done() -> None:
    store = GatedStore()
    agent, released = gated_agent("hello")
    session = await Session.open("s", agent=agent, store=store)
    turn = session.send("hi", turn_id="t")
    await until(session, lambda event: isinstance(event, ToolCalled))
    await session.saved()
    store.shut()
    released.set()
    await loop_until(lambda: turn.outcome is not None)
    stranger = LogRecord(10_000, event_to_json(await an_end("t")), "t")
    await MemoryStore.append(store, "s", [stranger], durable=True)
    store.gate.set()
    outcome = (await turn).outcome
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, SessionInUse)
    with pytest.raises(SessionInUse):
        await session.close()
    assert isinstance((await ends(store))["t"].outcome, Completed), "the end that was first stands"


async def an_end(turn_id: str) -> Event:
    store = MemoryStore()
    async with Session.open("s", agent=talker("the other's answer"), store=store) as session:
        await session.send("hi", turn_id=turn_id)
    return (await ends(store))[turn_id]


async def test_a_log_that_cannot_be_read_is_refused_and_the_session_is_free_again() -> None:
    store = MemoryStore()
    await store.append("s", [LogRecord(1, "{}")], durable=True)
    for _ in range(2):
        with pytest.raises(WireError):
            await Session.open("s", agent=talker(), store=store)
