"""The work of one turn: its messages, its record, then the agent."""

import asyncio
from collections.abc import Sequence

import pytest

from safepoint import AbortController, Aborted, Failed
from safepoint.agent import ToolContext, tool
from safepoint.errors import UsageError
from safepoint.events import TurnStarted
from safepoint.messages import AssistantMessage, Message, SystemMessage, UserMessage
from safepoint.models.scripted import Call, Stall
from safepoint.session import MemoryStore, Session, SessionTurn
from safepoint.testing import drain_ready_tasks
from tests.kit.agents import asked, talker
from tests.kit.sessions import first_text, is_valid, said, stored
from tests.kit.stores import GatedStore
from tests.kit.waiting import loop_until


async def test_the_beginning_is_in_the_store_before_the_model_is_asked() -> None:
    store, agent = GatedStore(), talker("hello")
    async with Session.open("s", agent=agent, store=store) as session:
        store.shut()
        turn = session.send("hi")
        await store.writing.wait()
        await loop_until(lambda: turn.status == "running")
        await drain_ready_tasks()
        assert asked(agent) == 0
        store.gate.set()
        assert (await turn).status == "completed"
        assert any(isinstance(event, TurnStarted) for event in await stored(store))


async def test_a_stop_while_the_beginning_is_stored_asks_nobody_and_keeps_the_message() -> None:
    store, agent = GatedStore(), talker("never")
    async with Session.open("s", agent=agent, store=store) as session:
        store.shut()
        turn = session.send("hi")
        await store.writing.wait()
        await loop_until(lambda: turn.status == "running")
        turn.stop()
        store.gate.set()
        assert (await turn).status == "aborted"
        assert asked(agent) == 0
        assert said(session.messages) == ["hi"], "as it is a moment later, before the first token"


async def test_a_continuation_that_is_stopped_while_its_beginning_is_stored_loses_nothing() -> None:
    store, agent = GatedStore(), talker(["half", Stall()], "never")
    async with Session.open("s", agent=agent, store=store) as session:
        turn = session.send("hi")
        await first_text(session)
        turn.stop()
        await turn
        store.shut()
        again = session.continue_turn()
        await store.writing.wait()
        await loop_until(lambda: again.status == "running")
        again.stop()
        store.gate.set()
        assert (await again).status == "aborted"
        assert said(session.messages)[0] == "hi"
        assert is_valid(session)


async def test_a_function_of_the_messages_that_raises_fails_the_turn_and_adds_nothing() -> None:
    agent = talker("fine")

    def broken(messages: Sequence[Message]) -> list[str]:
        raise KeyError("mine")

    async with Session.open("s", agent=agent) as session:
        result = await session.save_messages(broken)
        assert isinstance(result.outcome, Failed)
        assert isinstance(result.outcome.error, KeyError)
        assert session.messages == ()
        assert (await session.save_messages("hi")).status == "completed"


@pytest.mark.parametrize("made", [[], [""], lambda messages: []], ids=["nothing", "empty", "a function"])
async def test_a_function_that_makes_no_messages_fails_the_turn(made) -> None:
    async with Session.open("s", agent=talker()) as session:
        result = await session.save_messages(lambda messages: made)
        assert isinstance(result.outcome, Failed)
        assert isinstance(result.outcome.error, UsageError)
        assert session.messages == ()


async def test_a_function_that_is_stopped_on_its_way_is_interrupted() -> None:
    entered, agent, controller = asyncio.Event(), talker("never"), AbortController()

    async def slow(messages: Sequence[Message]) -> list[str]:
        entered.set()
        await asyncio.get_running_loop().create_future()
        return ["never"]

    store = MemoryStore()
    async with Session.open("s", agent=agent, store=store) as session, asyncio.TaskGroup() as group:
        saving = group.create_task(session.save_messages(slow, signal=controller.signal))
        await entered.wait()
        controller.abort("enough")
        result = await saving
        assert isinstance(result.outcome, Aborted)
        assert result.outcome.receipt.entries[0].name.endswith("messages")
        assert asked(agent) == 0
        assert session.messages == ()
        assert not any(isinstance(event, TurnStarted) for event in await stored(store))


async def test_a_function_sees_the_conversation_as_it_is_when_its_turn_comes() -> None:
    seen: list[list[str]] = []

    def look(messages: Sequence[Message]) -> str:
        seen.append(said(messages))
        return "looked"

    async with Session.open("s", agent=talker("one", "two")) as session:
        session.send("hi")
        await session.save_messages(look)
        assert seen == [["hi", "one"]]


async def test_instructions_and_answers_from_elsewhere_can_be_added() -> None:
    agent = talker("one", "two")
    async with Session.open("s", agent=agent) as session:
        await session.save_messages([SystemMessage(text="be kind"), UserMessage(text="hi")])
        given: list[str | Message] = ["what did you say?", AssistantMessage(text="one, I think"), "really?"]
        assert (await session.save_messages(given)).status == "completed"
        assert said(session.messages) == [
            "be kind",
            "hi",
            "one",
            "what did you say?",
            "one, I think",
            "really?",
            "two",
        ]
        assert is_valid(session)


async def test_an_answer_right_after_an_answer_is_refused_and_nothing_is_lost() -> None:
    async with Session.open("s", agent=talker("one", "two")) as session:
        await session.save_messages("hi")
        given: list[Message] = [SystemMessage(text="note"), AssistantMessage(text="another"), UserMessage(text="and?")]
        result = await session.save_messages(given)
        assert isinstance(result.outcome, Failed)
        assert "a user message must come before" in str(result.outcome.error)
        assert said(session.messages) == ["hi", "one"]
        assert (await session.save_messages("go on")).status == "completed"


async def test_a_turn_that_would_wait_for_itself_is_refused() -> None:
    refused: list[str] = []

    @tool
    async def recurse(ctx: ToolContext) -> str:
        with pytest.raises(UsageError, match="would wait for itself"):
            await session.save_messages("again")
        for call in (session.continue_turn, lambda: session.stream("again")):
            with pytest.raises(UsageError, match="would wait for itself"):
                call()
            refused.append("yes")
        later.append(session.send("that is possible"))
        return "ok"

    later: list[SessionTurn] = []
    agent = talker([Call("recurse")], "done", "later", tools=[recurse])
    async with Session.open("s", agent=agent) as session:
        assert (await session.save_messages("hi")).status == "completed"
        assert refused == ["yes", "yes"]
        assert (await later[0]).status == "completed"
        assert (await session.save_messages("outside", signal=None, timeout=None)).status == "failed", "no more answers"


async def test_a_turn_may_close_its_own_session() -> None:
    @tool
    async def leave(ctx: ToolContext) -> str:
        await session.close(reason="from inside")
        await ctx.signal.wait_async()
        ctx.signal.raise_if_aborted()
        return "never"

    session = await Session.open("s", agent=talker([Call("leave")], tools=[leave]))
    outcome = (await session.send("hi")).outcome
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "shutdown"
    await session.close()
