"""The turns of one session: accepted, ended once, taken up after a crash, and never left hanging."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from safepoint import AbortController, Aborted, AbortSignal, Failed
from safepoint.agent import Agent, Chunk, ModelRequest, ToolContext, UsageReported, tool
from safepoint.errors import RemoteError, UsageError
from safepoint.events import (
    Event,
    StopRequested,
    TextStreamed,
)
from safepoint.models.scripted import Call, ScriptedModel, Stall
from safepoint.run import Context, Usage
from safepoint.session import MemoryStore, Session, SessionBusy, SessionEnded, StoreError
from safepoint.testing import drain_ready_tasks
from tests.kit.agents import asked, talker
from tests.kit.sessions import ends, first_text, is_valid, read_all, said, stored, until
from tests.kit.stores import FailingStore, GatedStore


def of(turn: str, /, kind: type[Event], **about: Any) -> Event:
    return kind(run_id=turn, path=("talker",), at=0.0, **about)


def stop(turn_id: str) -> Event:
    return of(turn_id, StopRequested, turn_id=turn_id, at_point="NOW", reason="enough", reason_kind="user")


async def test_events_of_another_session_that_a_tool_passed_on_do_not_become_turns_of_this_one() -> None:
    helper_agent = talker("helping", name="helper")
    async with Session.open("helper", agent=helper_agent) as helper:

        @tool
        async def ask(ctx: ToolContext) -> str:
            async with helper.stream(["x"], signal=ctx.signal) as events:
                async for event in events:
                    ctx.emit(event)
            return "helped"

        store = MemoryStore()
        async with Session.open("s", agent=talker([Call("ask")], "done", tools=[ask]), store=store) as session:
            assert (await session.send("go", turn_id="t")).status == "completed"
        heard = await stored(store)
        assert any(isinstance(event, TextStreamed) and event.path == ("helper",) for event in heard), "live, and kept"
        again = talker()
        async with Session.open("s", agent=again, store=store) as session:
            assert session.turns == {}
            await drain_ready_tasks()
        assert asked(again) == 0


async def test_the_caller_is_told_of_the_end_when_the_readers_are_and_not_later() -> None:
    async with Session.open("s", agent=talker(*["ok"] * 50)) as session:
        for number in range(50):
            turn = session.send("hi", turn_id=str(number))
            async with aclosing(session.events(session.last_seq - 1)) as events:
                async for recorded in events:
                    if recorded.kind == "turn_ended":
                        break
            assert turn.status == "completed"
            assert session.outcome_of(turn.id) is not None
            assert session.turns == {}


@pytest.mark.parametrize("keeps", [False, True], ids=["not written", "written, but nobody knows"])
@pytest.mark.parametrize(
    ("breaks", "started"),
    [("turn_queued", False), ("turn_started", False), ("text_streamed", True), ("turn_ended", True)],
)
async def test_a_store_that_fails_ends_every_turn_as_failed(breaks: str, started: bool, keeps: bool) -> None:
    store = FailingStore(breaks, keeps=keeps)
    agent = talker("hello", "never")
    session = await Session.open("s", agent=agent, store=store)
    first, second = session.send("one"), session.send("two")
    for turn in (first, second):
        outcome = (await turn).outcome
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StoreError)
    assert asked(agent) <= started
    with pytest.raises(SessionEnded, match="broke down"):
        session.send("three")
    with pytest.raises(StoreError):
        await session.saved()
    with pytest.raises(StoreError):
        await read_all(session.events())
    with pytest.raises(StoreError):
        await session.close()
    store.breaks = "\0"
    async with Session.open("s", agent=talker("again", "and again"), store=store) as session:
        for turn in session.turns.values():
            await turn
        assert is_valid(session), "what there is can be opened again"
    assert not any(isinstance(one.outcome, Failed) for one in (await ends(store)).values())


async def test_a_turn_in_a_tool_is_stopped_when_the_store_fails() -> None:
    ended = asyncio.Event()

    @tool
    async def work(ctx: ToolContext) -> str:
        try:
            ctx.progress("break it")
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        return "never"

    session = await Session.open("s", agent=talker([Call("work")], tools=[work]), store=FailingStore("break it"))
    turn = session.send("go")
    await ended.wait()
    assert isinstance((await turn).outcome, Failed)
    with pytest.raises(StoreError):
        await session.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_tool_that_ends_the_program_leaves_a_session_that_can_be_opened_again(error: type[BaseException]) -> None:
    class Leave:
        """Work runs in the task of the turn: what it raises ends the program, as in any function."""

        async def __call__(self, ctx: Context, value: str) -> str:
            raise error("bye")

    leave = tool(Leave(), name="leave")
    store = MemoryStore()

    async def program() -> None:
        async with Session.open("s", agent=talker([Call("leave", input="go")], tools=[leave]), store=store) as session:
            session.send("one", turn_id="1")
            await session.send("two", turn_id="2")

    async def again() -> None:
        async with Session.open("s", agent=talker("two it is", "fine"), store=store) as session:
            assert session.outcome_of("1") is not None
            assert (await session.send("four")).status == "completed"
            assert [text for text in said(session.messages) if text.startswith(("t", "f"))] == [
                "two",
                "two it is",
                "four",
                "fine",
            ]

    with pytest.raises(error, match="bye"):
        asyncio.run(program())
    gc.collect()
    asyncio.run(again())


async def test_a_loop_that_was_told_to_go_ends_its_turns_and_the_session_says_so() -> None:
    store = MemoryStore()
    session = await Session.open("s", agent=talker(["half", Stall()]), store=store)
    first, second = session.send("one", turn_id="1"), session.send("two", turn_id="2")
    await first_text(session)
    task = session._engine._runner
    assert task is not None
    task.cancel()
    assert isinstance((await first).outcome, Failed)
    assert isinstance((await second).outcome, Failed)
    with pytest.raises(SessionEnded, match="broke down"):
        session.send("three")
    await session.close()
    assert len(await ends(store)) == 2


async def test_an_agent_that_raises_an_exception_of_its_own_fails_the_turn_only() -> None:
    class Strange(BaseException):
        pass

    class Odd(Agent):
        async def __call__(self, ctx: Any, value: Any, /) -> Any:
            raise Strange("odd")

    async with Session.open("s", agent=Odd(talker().model, name="odd")) as session:
        for _ in range(2):
            outcome = (await session.send("hi")).outcome
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, Strange)


async def test_an_event_that_a_tool_made_up_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def odd(ctx: ToolContext) -> str:
        ctx.emit("not an event")  # type: ignore[arg-type]
        return "ok"

    async with Session.open("s", agent=talker([Call("odd")], "done", tools=[odd])) as session:
        assert (await session.send("hi")).status == "completed"
        assert (await session.send("again", turn_id="x")).status == "failed", "no more answers; but the session lives"
    assert "cannot be written as JSON: 'not an event'" in caplog.text


async def test_an_id_is_for_life() -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker("ok"), store=store) as session:
        await session.send("hi", turn_id="t")
        with pytest.raises(UsageError, match="had a turn"):
            session.send("again", turn_id="t")
    async with Session.open("s", agent=talker(), store=store) as session:
        with pytest.raises(UsageError, match="had a turn"):
            session.send("again", turn_id="t")


async def test_a_stopped_turn_goes_on_only_if_nothing_has_come_after_it() -> None:
    agent = talker(["half", Stall()], "in between", "after")
    async with Session.open("s", agent=agent) as session:
        with pytest.raises(UsageError, match="no stopped turn"):
            session.continue_turn()
        turn = session.send("one", turn_id="1")
        await first_text(session)
        session.pause()
        turn.stop()
        await turn
        waiting = session.send("two", turn_id="2")
        with pytest.raises(SessionBusy, match="'2' has come after it"):
            session.continue_turn()
        session.remove("2")
        await waiting
        again = session.continue_turn()
        urgent = session.send("three", when_busy="interrupt")
        session.resume()
        assert (await urgent).status == "completed"
        outcome = (await again).outcome
        assert isinstance(outcome, Failed)
        assert "the conversation has moved on" in str(outcome.error)
        assert said(session.messages) == ["one", "half", "three", "in between"]
        assert is_valid(session)


async def test_a_session_whose_opening_fails_or_is_interrupted_is_free_again() -> None:
    store = FailingStore("session_opened")
    for _ in range(2):
        with pytest.raises(StoreError, match="full"):
            await Session.open("s", agent=talker(), store=store)
    gated = GatedStore()
    gated.shut()

    async def opens() -> Session:
        return await Session.open("s", agent=talker(), store=gated)

    opening = asyncio.create_task(opens())
    await gated.writing.wait()
    opening.cancel()
    await drain_ready_tasks()
    gated.gate.set()
    await asyncio.wait([opening])
    assert opening.cancelled()
    async with Session.open("s", agent=talker("ok"), store=gated) as session:
        assert (await session.send("hi")).status == "completed"


async def test_until_the_question_is_answered_a_new_prompt_takes_its_place() -> None:
    agent = talker([Call("ask_user", question="Which?")], "as you wish", ask_user=True)
    async with Session.open("s", agent=agent) as session:
        first = session.send("hi")
        asked_id = (await until(session, lambda event: event.kind == "question_asked")).event.question_id  # type: ignore[union-attr]
        second = session.send("never mind, do this")
        outcome = (await first).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.kind == "preempted"
        assert (await second).status == "completed"
        assert not session.answer(asked_id, "too late")
        assert is_valid(session)


class Unlike(Exception):
    """Cannot be copied: it takes a keyword, and holds a lock."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.lock = threading.Lock()


class Wordless(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


@pytest.mark.parametrize("way", ["the caller's signal", "session.stop"])
@pytest.mark.parametrize(
    "error",
    [Unlike(code=7), Wordless(), ValueError("x" * 20_000_000), ValueError("\ud83d")],
    ids=lambda e: repr(e)[:20],
)
async def test_any_exception_may_be_the_reason_of_a_stop(error: Exception, way: str) -> None:
    store, controller = MemoryStore(), AbortController()
    async with Session.open("s", agent=talker(["Once", Stall()], "second"), store=store) as session:
        turn = session.send("hi", signal=controller.signal)
        await first_text(session)
        if way == "session.stop":
            session.stop(turn.id, reason=error)
        else:
            controller.abort(error)
        async with asyncio.timeout(10):
            result = await turn
            again = await session.send("and now?")
        assert isinstance(result.outcome, Aborted)
        assert (result.status, result.outcome.reason.kind) == ("aborted", "error")
        assert result.outcome.reason.cause is error
        assert again.status == "completed"
    ended = (await ends(store))[turn.id].outcome
    assert isinstance(ended, Aborted)
    assert isinstance(ended.reason.cause, RemoteError)
    assert ended.reason.cause.type_name == type(error).__name__


class Plenty:
    """More than any number."""

    def __add__(self, other: object) -> "Plenty":
        return self

    __radd__ = __add__


class Boasting(ScriptedModel):
    """Counts its tokens in something that is no number, which no store can keep."""

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().stream(request, signal=signal)) as chunks:
            async for chunk in chunks:
                wrong = isinstance(chunk, UsageReported) and len(self.requests) == 1
                yield UsageReported(Usage(1, Plenty(), 1)) if wrong else chunk  # type: ignore[arg-type]  # the mistake


async def test_a_turn_whose_end_cannot_be_written_ends_all_the_same_and_the_next_one_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    async with Session.open("s", agent=Agent(Boasting("first", "second"), name="talker"), store=store) as session:
        turn = session.send("hi")
        async with asyncio.timeout(10):
            result = await turn
            assert (await session.send("and now?")).status == "completed"
        assert isinstance(result.outcome, Failed)
        assert result.status == "failed"
    assert f"the end of turn {turn.id} cannot be written as JSON" in caplog.text
    recorded = (await ends(store))[turn.id].outcome
    assert isinstance(recorded, Failed), "the record has an end of this turn, too"
    async with Session.open("s", agent=talker("third"), store=store) as session:
        assert (await session.send("still there?")).status == "completed"
