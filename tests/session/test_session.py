"""A live session as its users hold it."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from safepoint import AbortController, Aborted, Completed, StopAt
from safepoint.agent import Agent, AgentResult, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.events import QuestionAsked, QuestionWithdrawn, SessionClosed, TextStreamed, ToolCalled, TurnEnded
from safepoint.messages import AssistantMessage, ToolResult
from safepoint.models.scripted import Call, ScriptedModel, Stall
from safepoint.run import Context, StopAck
from safepoint.session import MemoryStore, Session, SessionBusy, SessionEnded, SessionInUse, SqliteStore
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.conftest import counts
from tests.kit.agents import asked, talker
from tests.kit.sessions import ends, first_text, is_valid, read_all, said, stored, until
from tests.kit.stores import GatedStore
from tests.kit.waiting import loop_until


def is_question(event: object) -> bool:
    return isinstance(event, QuestionAsked)


async def test_queued_turns_run_one_after_the_other_in_order() -> None:
    async with Session.open("s", agent=talker("1", "2", "3")) as session:
        turns = [session.send(text) for text in "abc"]
        assert [turn.status for turn in turns] == ["queued"] * 3
        assert [(await turn).status for turn in turns] == ["completed"] * 3
        assert said(session.messages) == ["a", "1", "b", "2", "c", "3"]


async def test_steering_lets_the_running_turn_finish_its_tool_calls_and_comes_next() -> None:
    entered, released = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        entered.set()
        await released.wait()
        return "worked"

    agent = talker([Call("work")], "steered", "waited", tools=[work])
    async with Session.open("s", agent=agent) as session:
        running, waiting = session.send("go"), session.send("later")
        await entered.wait()
        steering = session.send("that way", when_busy="steer")
        await drain_ready_tasks()
        assert running.status == "running", "its tool is left to finish"
        released.set()
        outcome = (await running).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.kind == "preempted"
        assert (await steering).status == "completed"
        assert waiting.result is None, "it comes before what waits"
        await waiting
        results = [message for message in session.messages if isinstance(message, ToolResult)]
        assert [(result.content, result.status) for result in results] == [("worked", "completed")], "nothing is lost"
        assert is_valid(session)


async def test_steering_a_turn_that_answers_first_lets_it_complete() -> None:
    async with Session.open("s", agent=talker("whole answer", "next")) as session:
        running = session.send("go")
        await first_text(session)
        steering = session.send("that way", when_busy="steer")
        assert (await running).status == "completed"
        assert (await steering).status == "completed"


async def test_an_interrupt_makes_the_running_turn_give_way_at_once() -> None:
    async with Session.open("s", agent=talker(["half", Stall()], "urgent", "later")) as session:
        running, waiting = session.send("go"), session.send("later")
        await first_text(session)
        urgent = session.send("now!", when_busy="interrupt")
        outcome = (await running).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.kind == "preempted"
        assert (await urgent).status == "completed"
        assert (await waiting).status == "completed"
        assert said(session.messages) == ["go", "half", "now!", "urgent", "later", "later"]
        assert isinstance(session.messages[1], AssistantMessage)
        assert session.messages[1].interrupted


async def test_two_interrupts_come_in_their_order() -> None:
    async with Session.open("s", agent=talker(["half", Stall()], ["first", Stall()], "second")) as session:
        session.send("go")
        await first_text(session)
        first = session.send("first!", when_busy="interrupt")
        second = session.send("second!", when_busy="interrupt")
        after = session.last_seq
        await first_text(session, after)
        third = session.send("third!", when_busy="interrupt")
        assert (await first).status == "aborted"
        assert (await second).status == "completed"
        third.stop()
        await third


async def test_whoever_wants_no_other_way_is_rejected_while_a_turn_runs_or_waits() -> None:
    agent = talker(["half", Stall()], "ok")
    async with Session.open("s", agent=agent) as session:
        running = session.send("go", turn_id="mine", when_busy="reject")
        await first_text(session)
        with pytest.raises(SessionBusy, match="busy with turn 'mine'"):
            session.send("me too", turn_id="other", when_busy="reject")
        running.stop()
        await running
        assert (await session.send("now", turn_id="other", when_busy="reject")).status == "completed"
        session.pause()
        waiting = session.send("wait")
        with pytest.raises(SessionBusy):
            session.send("me too", when_busy="reject")
        waiting.stop()
        await waiting


async def test_an_unknown_way_is_refused_and_nothing_is_stored() -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker("ok"), store=store) as session:
        with pytest.raises(UsageError, match="when_busy must be"):
            session.send("hi", when_busy="politely")  # type: ignore[arg-type]
        assert session.turns == {}
    assert [event.kind for event in await stored(store)] == ["session_opened", "session_closed"]


async def test_a_turn_that_waits_can_be_edited() -> None:
    async with Session.open("s", agent=talker(["half", Stall()], "ok")) as session:
        running, waiting = session.send("go", turn_id="1"), session.send("mistake", turn_id="2")
        await first_text(session)
        assert session.edit("2", "corrected")
        assert not session.edit("1", "too late"), "it runs"
        assert not session.edit("3", "nobody"), "there is none"
        with pytest.raises(UsageError, match="empty"):
            session.edit("2", "")
        running.stop()
        assert (await waiting).status == "completed"
        assert said(session.messages) == ["go", "half", "corrected", "ok"]
        assert not session.edit("2", "too late")


async def test_an_edit_survives_a_crash() -> None:
    store = MemoryStore()
    session = await Session.open("s", agent=talker(["half", Stall()]), store=store)
    session.send("go", turn_id="1")
    session.send("mistake", turn_id="2")
    await first_text(session)
    session.edit("2", "corrected")
    await session.saved()
    crashed = MemoryStore()
    crashed._logs = {"s": list(store._logs["s"])}
    await session.close()
    async with Session.open("s", agent=talker("ok"), store=crashed) as session:
        await session.turns["2"]
        assert said(session.messages)[-2:] == ["corrected", "ok"]


async def test_a_turn_that_waits_can_be_removed_and_its_message_is_part_of_nothing() -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker(["half", Stall()], "ok"), store=store) as session:
        running, waiting, last = session.send("go", turn_id="1"), session.send("no", turn_id="2"), session.send("yes")
        await first_text(session)
        assert session.remove("2")
        assert not session.remove("2"), "once"
        assert not session.remove("1"), "it runs"
        result = await waiting
        assert isinstance(result.outcome, Aborted)
        assert result.outcome.reason.message == "removed from the queue"
        assert running.status == "running"
        running.stop()
        assert (await last).status == "completed"
        assert said(session.messages) == ["go", "half", "yes", "ok"]


async def test_a_paused_session_begins_no_turn_and_a_stop_works_all_the_same() -> None:
    agent = talker("first", "second")
    async with Session.open("s", agent=agent) as session:
        session.pause()
        first, second = session.send("1"), session.send("2")
        await drain_ready_tasks()
        assert (first.status, asked(agent)) == ("queued", 0)
        second.stop()
        assert (await second).status == "aborted", "at once"
        session.resume()
        assert (await first).status == "completed"
        session.pause()
        session.send("3")
    assert asked(agent) == 1, "closing a paused session does not hang"


async def test_the_last_turn_can_be_forgotten_as_if_it_had_never_been() -> None:
    store = MemoryStore()
    agent = talker("one", ["half", Stall()], "two")
    async with Session.open("s", agent=agent, store=store) as session:
        await session.send("a", turn_id="a")
        before = session.messages
        turn = session.send("b", turn_id="b")
        await first_text(session, session.last_seq)
        with pytest.raises(UsageError, match="only the last turn"):
            session.forget("b")
        with pytest.raises(UsageError, match="while another turn runs"):
            session.forget("a")
        turn.stop()
        await turn
        with pytest.raises(UsageError, match="only the last turn can be forgotten, which is 'b'"):
            session.forget("a")
        session.forget("b")
        assert session.messages == before
        await session.send("c")
        assert said(session.messages) == ["a", "one", "c", "two"]
    async with Session.open("s", agent=talker(), store=store) as session:
        assert said(session.messages) == ["a", "one", "c", "two"], "also for the next process"


async def test_what_was_removed_from_the_queue_does_not_stand_in_the_way_of_forgetting_and_going_on() -> None:
    async with Session.open("s", agent=talker(["half", Stall()], "whole")) as session:
        running = session.send("go", turn_id="1")
        waiting = session.send("no", turn_id="2")
        await first_text(session)
        running.stop()
        session.remove("2")
        await running
        await waiting
        assert (await session.continue_turn()).status == "completed"
        assert said(session.messages) == ["go", "whole"]


async def test_a_stopped_turn_goes_on_and_repeats_nothing_that_has_run() -> None:
    ran: list[str] = []

    @tool
    async def first() -> str:
        ran.append("first")
        return "done"

    @tool(effects="idempotent")
    async def second(ctx: ToolContext) -> str:
        ran.append("second")
        if len(ran) == 2:
            await ctx.signal.wait_async()
        return "done too"

    store = MemoryStore()
    agent = talker([Call("first"), Call("second")], "finished", tools=[first, second])
    async with Session.open("s", agent=agent, store=store) as session:
        turn = session.send("go", turn_id="1")
        await loop_until(lambda: len(ran) == 2)
        turn.stop()
        assert (await turn).status == "aborted"
    async with Session.open("s", agent=talker("finished", tools=[first, second]), store=store) as session:
        with pytest.raises(UsageError, match="no stopped turn to continue: the last one is '1'"):
            await session.continue_turn("other")
        result = await session.continue_turn("1")
        assert isinstance(result.outcome, Completed)
        assert ran == ["first", "second", "second"]
        assert result.turn_id != "1", "a turn of its own, that can be stopped"
        assert is_valid(session)
        with pytest.raises(UsageError, match="no stopped turn"):
            await session.continue_turn()


async def test_a_continuation_that_is_removed_from_the_queue_takes_nothing_away() -> None:
    async with Session.open("s", agent=talker(["half", Stall()], "whole")) as session:
        turn = session.send("go")
        await first_text(session)
        turn.stop()
        await turn
        session.pause()
        again = session.continue_turn()
        assert not session.edit(again.id, "other words"), "it has no words of its own"
        session.remove(again.id)
        await again
        session.resume()
        assert said(session.messages) == ["go", "half"]
        assert (await session.continue_turn()).status == "completed"
        assert said(session.messages) == ["go", "whole"]


async def test_a_continuation_that_was_forgotten_can_be_tried_again() -> None:
    async with Session.open("s", agent=talker(["half", Stall()], "wrong", "right")) as session:
        turn = session.send("go")
        await first_text(session)
        turn.stop()
        await turn
        result = await session.continue_turn()
        session.forget(result.turn_id)
        assert said(session.messages) == ["go", "half"]
        await session.continue_turn()
        assert said(session.messages) == ["go", "right"]


async def test_a_question_is_answered_by_its_id_once() -> None:
    agent = talker([Call("ask_user", question="Which?")], "thanks", ask_user=True)
    async with Session.open("s", agent=agent) as session:
        turn = session.send("go")
        question = (await until(session, is_question)).event
        assert isinstance(question, QuestionAsked)
        assert question.text == "Which?"
        assert not session.answer("another", "this one")
        assert session.answer(question.question_id, "this one")
        assert not session.answer(question.question_id, "that one")
        assert (await turn).status == "completed"
        assert "this one" in said(session.messages)
        assert not session.answer(question.question_id, "too late")


async def test_a_stop_withdraws_the_question() -> None:
    agent = talker([Call("ask_user", question="Which?")], ask_user=True)
    async with Session.open("s", agent=agent) as session:
        turn = session.send("go")
        question = (await until(session, is_question)).event
        turn.stop()
        assert (await turn).status == "aborted"
        events = [one.event async for one in _so_far(session)]
        withdrawn = [event.question_id for event in events if isinstance(event, QuestionWithdrawn)]
        assert withdrawn == [question.question_id]  # type: ignore[union-attr]


async def _so_far(session: Session):
    last = session.last_seq
    async with aclosing(session.events()) as events:
        async for recorded in events:
            yield recorded
            if recorded.seq >= last:
                return


async def test_readers_replay_then_follow_without_a_gap_and_without_a_duplicate(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    words = " ".join(str(number) for number in range(400))
    async with asyncio.TaskGroup() as group:
        session = await Session.open("s", agent=talker(*[words] * 4), store=store)
        readers = []
        for number in range(4):
            turn = session.send(str(number))
            for _ in range(5):
                after = session.last_seq // 2
                readers.append((after, group.create_task(read_all(session.events(after)))))
                await asyncio.sleep(0)
            await turn
        await session.close()
        last = session.last_seq
    for after, reader in readers:
        assert [recorded.seq for recorded in reader.result()] == list(range(after + 1, last + 1))
        assert isinstance(reader.result()[-1].event, SessionClosed)
    assert len({tuple(one.event.text for one in r.result() if isinstance(one.event, TextStreamed)) for _, r in readers})
    await store.close()


async def test_a_reader_that_leaves_stops_nothing() -> None:
    async with Session.open("s", agent=talker("hello world")) as session:
        turn = session.send("hi")
        await first_text(session)
        assert (await turn).status == "completed"


async def test_the_policy_stops_the_turns_when_nobody_was_there_for_so_long(clock: FakeClock) -> None:
    async with Session.open("s", agent=talker(["half", Stall()]), on_disconnect=5.0) as session:
        turn, waiting = session.send("hi"), session.send("and")
        await first_text(session)
        await clock.elapse(3)
        async with aclosing(session.events()) as events:
            await anext(events)
            await clock.elapse(60)
            assert turn.status == "running", "somebody came back in time"
        await clock.elapse(5)
        outcomes = [(await one).outcome for one in (turn, waiting)]
        assert [outcome.reason.kind for outcome in outcomes if isinstance(outcome, Aborted)] == ["disconnected"] * 2


async def test_whoever_waits_for_a_turn_with_a_limit_does_not_stop_it(clock: FakeClock) -> None:
    async with Session.open("s", agent=talker(["half", Stall()])) as session:
        turn = session.send("hi")
        waiting = asyncio.ensure_future(turn.wait(timeout=1.0))
        await clock.elapse(1.1)
        with pytest.raises(TimeoutError):
            await waiting
        assert turn.status == "running"
        turn.stop()
        assert isinstance((await turn.wait(timeout=1.0)).outcome, Aborted)


async def test_a_session_that_is_closed_may_give_its_turn_time_to_reach_a_safe_point(clock: FakeClock) -> None:
    inside, done = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        inside.set()
        await done.wait()
        return "finished"

    agent = talker([Call("slow")], "never asked", tools=[slow])
    session = await Session.open("s", agent=agent)
    first, second = session.send("hi"), session.send("waits")
    await inside.wait()
    closing = asyncio.ensure_future(session.close(within=5.0, reason="deploy"))
    await drain_ready_tasks()
    assert isinstance((await second).outcome, Aborted), "what waits does not begin"
    assert not first.signal.aborted
    done.set()
    outcome = (await first).outcome
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "deploy"
    assert said(session.messages)[-1] == "finished", "the tool had the time that it needed"
    await closing


async def test_a_session_that_is_closed_does_not_wait_for_a_safe_point_for_ever(clock: FakeClock) -> None:
    session = await Session.open("s", agent=talker(["half", Stall()]))
    turn = session.send("hi")
    await first_text(session)
    closing = asyncio.ensure_future(session.close(within=5.0))
    await clock.elapse(4.9)
    assert turn.status in ("running", "stopping")
    await clock.elapse(0.2)
    await closing
    assert isinstance((await turn).outcome, Aborted)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"agent": "helper"}, "agent must be an Agent, not 'helper'"),
        ({"store": "chat.db"}, r'store must be a store such as SqliteStore\("chat.db"\), not \'chat.db\''),
        ({"store": MemoryStore}, r"not the class MemoryStore: make one with MemoryStore\(…\)"),
    ],
)
def test_what_is_no_agent_or_no_store_is_refused_at_once(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Session.open("s", **{"agent": talker(), **wrong})


@pytest.mark.parametrize("policy", [-1, float("nan"), "never"])
async def test_a_policy_that_is_no_time_is_refused(policy) -> None:
    with pytest.raises((UsageError, ValueError)):
        await Session.open("s", agent=talker(), on_disconnect=policy)


async def test_the_disconnect_policy_counts_for_a_turn_that_begins_while_nobody_is_there(clock: FakeClock) -> None:
    agent = talker(["half", Stall()], ["half", Stall()], "in time")
    async with Session.open("s", agent=agent, on_disconnect=5.0) as session:
        turn = session.send("hi")
        await clock.elapse(4.9)
        assert turn.status == "running"
        await clock.elapse(0.2)
        outcome = (await turn).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.reason.kind == "disconnected"
        seen = session.send("somebody looks at this one")
        await clock.elapse(4)
        async with aclosing(session.events()) as events:
            await anext(events)
            await clock.elapse(60)
            assert seen.status == "running"
        seen.stop()
        await seen
        assert (await session.send("more")).status == "completed"
    assert clock.pending == 0


async def test_an_agent_that_has_answered_when_a_stop_comes_is_aborted_with_its_answer_and_not_asked_again() -> None:
    class Stops(Agent):
        async def __call__(self, ctx: Context, value: Any, /) -> AgentResult:
            result = await super().__call__(ctx, value)
            if not stopped:
                stopped.append(session.stop("t", reason="in that very moment"))
            return result

    stopped: list[StopAck] = []
    agent = Stops(ScriptedModel("all of it"), name="talker")
    async with Session.open("s", agent=agent) as session:
        outcome = (await session.send("hi", turn_id="t")).outcome
        assert isinstance(outcome, Aborted)
        assert outcome.partial is not None
        assert outcome.partial.text == "all of it"
        assert said(session.messages) == ["hi", "all of it"]
        assert (await session.continue_turn("t")).status == "completed"
        assert said(session.messages) == ["hi", "all of it"]
        assert asked(agent) == 1


async def test_closing_stops_everything_and_the_last_event_says_so() -> None:
    store = MemoryStore()
    session = await Session.open("s", agent=talker(["half", Stall()]), store=store)
    running, waiting = session.send("1", turn_id="1"), session.send("2", turn_id="2")
    await first_text(session)
    await session.close(reason="shutdown")
    for turn in (running, waiting):
        outcome = (await turn).outcome
        assert isinstance(outcome, Aborted)
        assert (outcome.reason.kind, outcome.reason.message) == ("shutdown", "shutdown")
    kinds = [event.kind for event in await stored(store)]
    assert kinds[-1] == "session_closed"
    assert kinds.count("turn_ended") == 2
    for use in (
        lambda: session.send("3"),
        lambda: session.stream("3"),
        lambda: session.continue_turn(),
        lambda: session.forget("1"),
    ):
        with pytest.raises(SessionEnded, match="is closed"):
            use()
    with pytest.raises(SessionEnded):
        await session.save_messages("3")
    assert session.stop("1").status == "already_finished"
    assert session.stop("3").status == "unknown"
    assert len(await read_all(session.events())) == len(kinds), "what there was can still be read"


async def test_closing_twice_at_once_is_closing_once(clock: FakeClock) -> None:
    store = MemoryStore()
    session = await Session.open("s", agent=talker(["half", Stall()]), store=store, on_disconnect=9.0)
    session.send("1")
    await first_text(session)
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(session.close())
    await session.close()
    assert [event.kind for event in await stored(store)].count("session_closed") == 1
    assert clock.pending == 0


async def test_a_close_whose_caller_is_told_to_go_is_finished_first() -> None:
    store = GatedStore()
    session = await Session.open("s", agent=talker(["half", Stall()]), store=store)
    turn = session.send("1")
    await first_text(session)
    store.shut()
    closing = asyncio.create_task(session.close())
    await drain_ready_tasks()
    closing.cancel()
    await drain_ready_tasks()
    assert not closing.done()
    store.gate.set()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert turn.result is not None
    async with Session.open("s", agent=talker("ok"), store=store) as session:
        assert (await session.send("2")).status == "completed"


async def test_one_session_is_live_once() -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker(), store=store):
        with pytest.raises(SessionInUse, match="'s' is live already"):
            await Session.open("s", agent=talker(), store=store)
        async with Session.open("other", agent=talker(), store=store):
            pass
    async with Session.open("s", agent=talker(), store=store):
        pass


@pytest.mark.parametrize("name", ["", "half \ud83d"])
async def test_a_session_needs_a_name_that_can_be_kept(name: str) -> None:
    with pytest.raises(UsageError, match="the id of a session"):
        await Session.open(name, agent=talker())


async def test_the_parents_stop_ends_exactly_the_turn_it_drives_and_leaves_no_listener() -> None:
    rounds = counts(50, 1000)
    long_lived = AbortController()
    helper_agent = talker(*["ok"] * rounds, *[["helping", Stall()]] * 2, name="helper")
    async with Session.open("helper", agent=helper_agent) as helper:

        @tool
        async def ask(ctx: ToolContext) -> str:
            for _ in range(rounds):
                assert (await helper.save_messages("help", signal=ctx.signal)).status == "completed"
                signals.append(ctx.signal.observers)
            return (await helper.save_messages("help", signal=ctx.signal)).status

        signals: list[int] = []
        async with Session.open("parent", agent=talker([Call("ask")], name="parent", tools=[ask])) as parent:
            turn = parent.send("go", signal=long_lived.signal)
            await loop_until(lambda: len(signals) == rounds)
            await until(helper, lambda event: isinstance(event, TextStreamed) and event.text == "helping")
            sibling = helper.send("I wait")
            turn.stop()
            assert (await turn).status == "aborted"
            assert set(signals) == {signals[0]}, "no listener is left by a turn that has ended"
            await loop_until(lambda: sibling.status == "running")
            assert long_lived.signal.observers == 0
            sibling.stop()
            await sibling


async def test_a_parent_that_is_stopped_before_the_child_has_begun_keeps_it_from_beginning() -> None:
    helper_agent = talker(["busy", Stall()], name="helper")
    async with Session.open("helper", agent=helper_agent) as helper:
        busy = helper.send("busy")
        await first_text(helper)

        @tool
        async def ask(ctx: ToolContext) -> str:
            return (await helper.save_messages("help", turn_id="child", signal=ctx.signal)).status

        async with Session.open("parent", agent=talker([Call("ask")], name="parent", tools=[ask])) as parent:
            turn = parent.send("go")
            await loop_until(lambda: "child" in helper.turns)
            turn.stop()
            assert (await turn).status == "aborted"
            outcome = None
            for _ in range(100):
                outcome = outcome or helper.outcome_of("child")
                await asyncio.sleep(0)
            assert isinstance(outcome, Aborted)
            assert outcome.receipt.entries[0].fate == "not_started"
        assert busy.status == "running"
        assert asked(helper_agent) == 1


async def test_huge_and_strange_messages_come_back_as_they_were(tmp_path: Path) -> None:
    huge = "x" * 3_000_000
    strange = "half \ud83d, nul \x00, \u2028, \U0001f9d1‍\U0001f680, \\ \" '"
    store = SqliteStore(tmp_path / "s.db")
    async with Session.open("s", agent=talker(huge, strange), store=store) as session:
        assert (await session.send(strange)).status == "completed"
        assert (await session.send(huge)).status == "completed"
        before = session.messages
        sendable = strange.replace("\ud83d", "\ufffd")  # half of a character would make every later request fail
        assert said(before) == [sendable, huge, huge, sendable]
    async with Session.open("s", agent=talker(), store=store) as session:
        assert session.messages == before
    await store.close()


async def test_stopped_turns_are_let_go() -> None:
    async with Session.open("s", agent=talker(*[["half", Stall()]] * 20)) as session:
        contexts = []
        for _ in range(20):
            turn = session.send("hi")
            await first_text(session, session.last_seq)
            contexts.append(turn)
            turn.stop()
            await turn
        assert all(turn.ctx is None for turn in contexts)
        assert session.turns == {}


async def test_the_turns_that_ended_are_in_the_store_and_everybody_agrees() -> None:
    store = MemoryStore()
    async with Session.open("s", agent=talker("one", ["half", Stall()]), store=store) as session:
        first = await session.send("1", turn_id="1")
        second = session.send("2", turn_id="2")
        await first_text(session, session.last_seq)
        session.stop("2", StopAt.NOW)
        results = {"1": first, "2": await second}
        told = {one.event.turn_id: one.event async for one in _so_far(session) if isinstance(one.event, TurnEnded)}
        for turn_id, result in results.items():
            assert session.outcome_of(turn_id) == result.outcome == told[turn_id].outcome
    for turn_id, end in (await ends(store)).items():
        assert end.outcome == results[turn_id].outcome
    assert not any(isinstance(one, ToolCalled) for one in await stored(store))


async def test_a_turn_that_is_refused_has_an_end_and_is_not_part_of_the_conversation():
    agent = talker("one")
    store = MemoryStore()
    async with Session.open("s", agent=agent, store=store) as session:
        session.refuse("t1", "hello", UsageError("nobody understands this"))
        turn = session.turns["t1"]
        assert str((await turn).outcome.error) == "nobody understands this"  # type: ignore[union-attr]
        with pytest.raises(UsageError, match="had a turn"):
            session.refuse("t1", "", UsageError("again"))
        await session.send("and now?", turn_id="t2")
        assert said(session.messages) == ["and now?", "one"]
    assert {turn_id: ended.outcome.status for turn_id, ended in (await ends(store)).items()} == {
        "t1": "failed",
        "t2": "completed",
    }
