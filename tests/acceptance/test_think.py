"""Owns the acceptance lines of Think: a session's turn under a signal from outside."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from safepoint import AbortController, Aborted, AbortSignal
from safepoint.agent import Agent, ToolContext, tool
from safepoint.events import Event, TextStreamed, TurnEnded
from safepoint.messages import AssistantMessage, Message, UserMessage
from safepoint.models.scripted import Call, ScriptedModel, Stall
from safepoint.session import MemoryStore, Session, TurnResult
from safepoint.testing import FakeClock, drain_ready_tasks


def talker(*answers: Any, name: str = "talker", **options: Any) -> tuple[ScriptedModel, Agent]:
    model = ScriptedModel(*answers)
    return model, Agent(model, name=name, **options)


async def first_text(session: Session, after: int = 0) -> None:
    """Wait until the model has said something."""
    async for recorded in session.events(after):
        if isinstance(recorded.event, TextStreamed):
            return


def said(session: Session) -> list[str]:
    """The conversation, in short."""
    return [getattr(message, "text", "") or getattr(message, "content", "") for message in session.messages]


async def test_01_an_abort_in_mid_stream_stops_the_model_request_and_gives_aborted_with_the_reason() -> None:
    """`save_messages(messages, signal=s)`: abort `s` mid-stream → the model request stops, the result is `aborted`
    with the reason. (They planned `error`; ours is `aborted`.)
    """
    _, agent = talker(["half an answer", Stall()])
    controller = AbortController()
    async with Session.open("s", agent=agent) as session, asyncio.TaskGroup() as group:
        turn = group.create_task(session.save_messages(["hi"], signal=controller.signal))
        await first_text(session)
        controller.abort("the visitor left")
        result = await turn
        assert isinstance(result, TurnResult)
        assert result.status == "aborted"
        assert isinstance(result.outcome, Aborted)
        assert result.outcome.reason.message == "the visitor left"
        assert result.outcome.receipt.entries[-1].fate == "stopped", "the model request has ended"
        assert said(session)[0] == "hi"
        assert isinstance(session.messages[-1], AssistantMessage)
        assert session.messages[-1].interrupted


async def test_02_a_signal_aborted_before_the_call_makes_no_model_request() -> None:
    """`s` aborted before the call → no model request at all, no wasted inference."""
    model, agent = talker("never")
    async with Session.open("s", agent=agent) as session:
        result = await session.save_messages(["hi"], signal=AbortSignal.already("no"))
        assert result.status == "aborted"
        assert model.requests == []
        assert session.messages == ()


async def test_03_a_signal_aborted_between_admission_and_first_token_leaves_no_window() -> None:
    """`s` aborted between admission and the first token (while queued, while storing, while broadcasting) → the
    same: no model request; there is no window.
    """
    model, agent = talker(["first", Stall()], "second")
    controller = AbortController()
    async with Session.open("s", agent=agent) as session:
        running = session.send("one")
        await first_text(session)
        queued = session.send("two", signal=controller.signal)
        assert queued.status == "queued"
        controller.abort("while it waits")
        assert (await queued).status == "aborted", "at once, not when its slot comes"
        assert running.status == "running"
        assert len(model.requests) == 1
        running.stop()
        await running

    class SlowStore(MemoryStore):
        """Writing takes until the gate is opened."""

        def __init__(self) -> None:
            super().__init__()
            self.gate, self.writing = asyncio.Event(), asyncio.Event()
            self.gate.set()

        async def append(self, session: str, records: Any, *, durable: bool) -> frozenset[str]:
            self.writing.set()
            await self.gate.wait()
            return await super().append(session, records, durable=durable)

    model, agent = talker("never")
    store = SlowStore()
    async with Session.open("s", agent=agent, store=store) as session:
        controller = AbortController()
        store.gate.clear()
        store.writing.clear()
        turn = session.send("hi", signal=controller.signal)
        await store.writing.wait()
        await drain_ready_tasks()
        controller.abort("while it is stored")
        store.gate.set()
        assert (await turn).status == "aborted"
        assert model.requests == []


async def test_04_without_a_signal_everything_is_as_before_and_either_source_ends_the_turn() -> None:
    """Without a signal everything is as before; the other ways to stop (by turn id, by closing) still work, and
    either source ends the turn.
    """
    _, agent = talker("as before", ["by id", Stall()], ["by signal", Stall()], ["by closing", Stall()])
    async with Session.open("s", agent=agent) as session:
        assert (await session.save_messages("hi")).status == "completed"
        controller = AbortController()
        turn = session.send("again", signal=controller.signal)
        await first_text(session, session.last_seq)
        session.stop(turn.id, reason="by id")
        assert (await turn).status == "aborted"
        assert not controller.signal.aborted, "a stop by id does not reach the caller's own signal"
        turn = session.send("again", signal=controller.signal)
        await first_text(session, session.last_seq)
        controller.abort("by signal")
        assert (await turn).status == "aborted"
        turn = session.send("again")
        await first_text(session, session.last_seq)
    assert (await turn).status == "aborted"
    assert isinstance((await turn).outcome, Aborted)
    assert (await turn).outcome.reason.kind == "shutdown"  # type: ignore[union-attr]


async def test_05_only_this_turn_is_stopped_and_all_others_go_on() -> None:
    """Only this turn is stopped: other turns, queued or of other sessions, go on."""
    _, agent = talker(["one", Stall()], "two", "three")
    _, other_agent = talker(["elsewhere", Stall()])
    store = MemoryStore()
    async with (
        Session.open("a", agent=agent, store=store) as session,
        Session.open("b", agent=other_agent, store=store) as other,
    ):
        elsewhere = other.send("hi")
        await first_text(other)
        running, queued, last = session.send("1"), session.send("2"), session.send("3")
        await first_text(session)
        session.stop(running.id)
        assert (await running).status == "aborted"
        assert (await queued).status == "completed"
        assert (await last).status == "completed"
        assert elsewhere.status == "running"
        assert other.stop(running.id).status == "unknown", "an id of another session stops nothing here"
        elsewhere.stop()
        assert (await elsewhere).status == "aborted"


async def test_06_the_listener_on_the_outside_signal_is_removed_when_the_turn_ends() -> None:
    """The listener on the outside signal is removed when the turn ends (1,000 turns under one signal: none left)."""
    _, agent = talker(*["ok"] * 1000)
    controller = AbortController()
    async with Session.open("s", agent=agent) as session:
        before = controller.signal.observers
        for number in range(1000):
            assert (await session.save_messages(f"{number}", signal=controller.signal)).status == "completed"
        assert controller.signal.observers == before


async def test_07_messages_may_be_a_function_of_the_current_messages_sync_or_async() -> None:
    """`messages` may be a function of the current messages, sync or async."""
    _, agent = talker("one", "two", "three")

    def again(messages: Sequence[Message]) -> list[str]:
        return [f"you said {len(messages)} things"]

    async def later(messages: Sequence[Message]) -> list[Message]:
        await asyncio.sleep(0)
        return [UserMessage(text=f"and now {len(messages)}")]

    async with Session.open("s", agent=agent) as session:
        await session.save_messages(["hi"])
        await session.save_messages(again)
        await session.save_messages(later)
        assert said(session) == ["hi", "one", "you said 2 things", "two", "and now 4", "three"]


async def test_08_a_helper_turn_driven_by_a_tool_ends_with_the_parent_the_reader_or_the_tab(clock: FakeClock) -> None:
    """Helper as sub-agent: a parent's tool drives a turn of a helper session and forwards its events; the parent's
    abort, the reader's closing of `stream`, a tab closing under the stop policy → exactly that turn ends.
    """
    forwarded: list[Event] = []
    helper_model, helper_agent = talker(*[["helping", Stall()]] * 3, name="helper")
    async with Session.open("helper", agent=helper_agent) as helper:

        @tool
        async def ask_helper(what: str, ctx: ToolContext) -> str:
            async with helper.stream([what], signal=ctx.signal) as events:
                async for event in events:
                    ctx.emit(event)
            return "helped"

        _, parent_agent = talker([Call("ask_helper", what="x")], name="parent", tools=[ask_helper])
        async with Session.open("parent", agent=parent_agent) as parent:
            turn = parent.send("go")
            async for recorded in parent.events():
                forwarded.append(recorded.event)
                if isinstance(recorded.event, TextStreamed) and recorded.event.path == ("helper",):
                    turn.stop(reason="enough")
                if isinstance(recorded.event, TurnEnded) and recorded.event.turn_id == turn.id:
                    break
            assert (await turn).status == "aborted"
        assert helper.turns == {}, "the helper's turn ended with its parent"
        assert not helper_model.requests[1:]

        sibling_turns = []
        async with helper.stream(["a reader that leaves"]) as events:
            sibling_turns.append(helper.send("a sibling that waits"))
            async for event in events:
                if isinstance(event, TextStreamed):
                    break
        assert events.turn.result is not None
        assert events.turn.result.status == "aborted"
        assert sibling_turns[0].result is None, "exactly that turn"

    _, tab_agent = talker(["for a tab", Stall()])
    async with Session.open("tab", agent=tab_agent, on_disconnect=5.0) as session:
        turn = session.send("hi")
        await first_text(session)
        await drain_ready_tasks()  # the last reader has gone
        clock.advance(4.9)
        await drain_ready_tasks()
        assert turn.status == "running"
        clock.advance(0.2)
        result = await turn
        assert isinstance(result.outcome, Aborted)
        assert result.outcome.reason.kind == "disconnected"


async def test_09_a_pre_aborted_parent_keeps_the_turn_of_the_helper_from_beginning() -> None:
    """A pre-aborted parent: the helper's turn does not begin."""
    helper_model, helper_agent = talker("never", name="helper")
    async with Session.open("helper", agent=helper_agent) as helper:

        @tool
        async def ask_helper(what: str, ctx: ToolContext) -> str:
            holder[0].stop(reason="first")
            result = await helper.save_messages([what], signal=ctx.signal)
            return result.status

        _, parent_agent = talker([Call("ask_helper", what="x")], name="parent", tools=[ask_helper])
        async with Session.open("parent", agent=parent_agent) as parent:
            holder = [parent.send("go")]
            assert (await holder[0]).status == "aborted"
        assert helper_model.requests == []
        assert helper.messages == ()


async def test_10_every_method_that_drives_a_turn_takes_the_signal_in_the_same_way() -> None:
    """Every method that drives a turn takes the signal in the same way."""
    model, agent = talker(["stopped", Stall()])
    already = AbortSignal.already("no")
    async with Session.open("s", agent=agent) as session:
        stopped = session.send("first")
        await first_text(session)
        stopped.stop()
        await stopped
        asked = len(model.requests)
        assert (await session.send("a", signal=already)).status == "aborted"
        assert (await session.save_messages(["b"], signal=already)).status == "aborted"
        assert (await session.continue_turn(signal=already)).status == "aborted"
        async with session.stream(["c"], signal=already) as events:
            assert [event async for event in events] == []
        assert events.turn.result is not None
        assert events.turn.result.status == "aborted"
        assert len(model.requests) == asked


async def test_11_the_turn_id_is_known_to_the_caller_before_anything_has_run() -> None:
    """The turn id is known at once, to the caller, before anything has run."""
    model, agent = talker("hello")
    async with Session.open("s", agent=agent) as session:
        turn = session.send("hi", turn_id="mine")
        assert (turn.id, turn.status, model.requests) == ("mine", "queued", [])
        assert session.send("later").id
        assert session.stream(["more"]).turn.id
        assert session.stop("mine").status == "accepted"
        assert (await turn).status == "aborted"
        assert session.stop("not seen yet").status == "unknown"
        assert (await session.send("too late", turn_id="not seen yet")).status == "aborted"


async def test_12_any_outside_caller_can_stop_by_id(clock: FakeClock) -> None:
    """Any outside caller (an HTTP handler, a timer, a sibling) can stop by id."""
    _, agent = talker(["one", Stall()], ["two", Stall()])
    async with Session.open("s", agent=agent) as session:
        turn = session.send("hi")
        await first_text(session)
        acks: list[Any] = []
        thread = threading.Thread(target=lambda: acks.append(session.stop(turn.id, reason="from a thread")))
        thread.start()
        result = await turn
        await asyncio.to_thread(thread.join, 10)
        assert acks[0].status == "accepted"
        assert isinstance(result.outcome, Aborted)
        assert result.outcome.reason.message == "from a thread"
        turn = session.send("again")
        await first_text(session, session.last_seq)
        timer = clock.call_at(clock.monotonic() + 3, lambda: session.stop(turn.id, reason="a timer"))
        clock.advance(3)
        assert not timer.armed
        assert (await turn).status == "aborted"
        assert session.stop(turn.id).status == "already_finished"
