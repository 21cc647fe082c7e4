"""The host of one process: ids that hold for life, deploys and crashes that lose nothing, sessions that recover."""

import asyncio
from typing import Any, Literal

import pytest

from safepoint import Aborted, Agent, Completed
from safepoint.abort import shield
from safepoint.agent import ModelRequest, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.events import (
    SessionClosed,
    SessionOpened,
    StopRequested,
    TextStreamed,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)
from safepoint.messages import UserMessage
from safepoint.models.scripted import Call, ScriptedModel, Stall
from safepoint.session import LocalHost, MemoryStore, SessionInfo, SqliteStore, StoreError
from safepoint.testing import drain_ready_tasks
from tests.kit.agents import HeldTool, asked, gated_agent, talker
from tests.kit.hosts import end_of, seen
from tests.kit.sessions import first_text, said, stored
from tests.kit.stores import FailingStore
from tests.kit.waiting import loop_until


def crashed(store: MemoryStore) -> MemoryStore:
    """What a process that dies now would leave behind."""
    left = MemoryStore()
    left._logs = {name: list(log) for name, log in store._logs.items()}
    left._ends = {name: dict(ends) for name, ends in store._ends.items()}
    return left


async def speaking(host: LocalHost, session_id: str = "s", turn_id: str = "t") -> None:
    """A turn that has begun to answer, and will not end by itself."""
    await host.create(session_id)
    await host.send(session_id, "hi", turn_id=turn_id)
    await first_text(await host.live(session_id))
    await (await host.live(session_id)).saved()


async def test_the_first_id_of_a_turn_reaches_what_goes_on_with_it_after_a_crash() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    left = crashed(store)
    await host.close()
    host = LocalHost(talker(["again", Stall()]), left, resume=True)
    await host.recover()
    goes_on = (await seen(host, "s", TurnQueued, continues="t")).turn_id
    await seen(host, "s", TextStreamed, run_id=goes_on)
    view = await host.turn("s", "t")
    assert (view.id, view.status, view.outcome, view.continued_by) == ("t", "running", None, goes_on)
    ack = await host.stop("s", "t", reason="enough")
    assert (ack.status, ack.level, ack.id) == ("accepted", "recorded", "t")
    assert (await ack.settled()).entries[0].fate == "stopped"
    view = await host.turn("s", "t")
    assert isinstance(view.outcome, Aborted)
    assert (view.status, view.continued_by, view.outcome.reason.message) == ("aborted", goes_on, "enough")
    assert (await host.turn("s", goes_on)).continued_by is None
    await host.continue_turn("s", "t")
    assert (await host.turn("s", "t")).status == "aborted", "what a person continues is another turn"
    await host.close()


async def test_an_id_shows_what_has_gone_on_with_it_after_several_crashes_also_of_a_stored_session() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    for _ in range(2):
        store = crashed(store)
        await host.close()
        host = LocalHost(talker(["more", Stall()]), store, resume=True)
        await host.recover()
        goes_on = (await host.session("s")).turns[0].id
        await seen(host, "s", TextStreamed, run_id=goes_on)
        await (await host.live("s")).saved()
    await host.stop("s", "t")
    await end_of(host, "s", "t")
    await host.close()
    host = LocalHost(talker(), crashed(store))
    view = await host.turn("s", "t")
    assert (view.status, view.continued_by) == ("aborted", goes_on)
    assert not (await host.session("s")).live
    await host.close()


@pytest.mark.parametrize("state", ["queued", "running", "ended", "edited", "never begun", "lost"])
async def test_the_same_message_sent_again_under_its_id_is_answered_and_not_run_again(state: str) -> None:
    store = MemoryStore()
    agent, released = gated_agent("done")
    host = LocalHost(agent, store)
    await host.create("s")
    if state == "never begun":
        await host.stop("s", "t")
    if state in ("queued", "edited"):
        await host.send("s", "ahead")
    first = await host.send("s", "hi", turn_id="t")
    if state == "edited":
        assert await host.edit("s", "t", "ho")
    if state == "ended":
        released.set()
        await end_of(host, "s", "t")
    if state == "lost":
        left = crashed(store)
        await host.close()
        host = LocalHost(talker(["half", Stall()]), left, resume=True)
        await host.recover()
    again = await host.send("s", "hi", turn_id="t")
    expected = {"ended": "completed", "never begun": "aborted", "lost": "running"}.get(state, first.status)
    assert (again.id, again.status) == ("t", expected)
    assert bool(again.continued_by) == (state == "lost")
    if state != "never begun":
        with pytest.raises(UsageError, match="had a turn"):
            await host.send("s", "something else", turn_id="t")
    queued = [one for one in await stored(host._store) if isinstance(one, TurnQueued) and one.turn_id == "t"]
    assert len(queued) == (state != "never begun")
    released.set()
    await host.close()


async def test_a_turn_that_a_crash_has_ended_has_the_time_at_which_it_had_started() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    left = crashed(store)
    await host.close()
    host = LocalHost(talker(), left)
    await host.recover()
    outcome = (await host.turn("s", "t")).outcome
    assert outcome is not None
    (started,) = [one.at for one in await stored(left) if isinstance(one, TurnStarted)]
    assert (outcome.started_at, outcome.finished_at >= started) == (started, True)
    await host.close()


@pytest.mark.parametrize("within", [0.0, 0.05])
async def test_a_host_that_is_closed_leaves_its_turns_to_the_next_one(within: float) -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store, resume=True)
    await speaking(host)
    await host.send("s", "two", turn_id="t2")
    await host.send("s", "three", turn_id="t3")
    waiting = (await host.live("s")).turns["t2"]
    await host.close(within=within)
    outcome = (await waiting).outcome
    assert isinstance(outcome, Aborted), "whoever waited for it in this process is told"
    assert outcome.receipt.entries[0].fate == "not_started"
    events = await stored(store)
    assert [one.turn_id for one in events if isinstance(one, TurnEnded)] == ["t"], "what waits has no end"
    assert not [one for one in events if isinstance(one, StopRequested)], "nobody has stopped anything"
    closed = events[-1]
    assert isinstance(closed, SessionClosed)
    assert closed.left == 3
    host = LocalHost(talker("whole", "2", "3"), store, resume=True)
    assert await host.recover() == ["s"]
    for turn_id in ("t", "t2", "t3"):
        assert (await end_of(host, "s", turn_id)).status == "completed"
    assert said((await host.live("s")).messages) == ["hi", "whole", "two", "2", "three", "3"]
    await host.close()


async def test_without_resume_the_running_turn_stays_ended_and_the_waiting_ones_run() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    await host.send("s", "two", turn_id="t2")
    await host.close()
    host = LocalHost(talker("2"), store)
    assert await host.recover() == ["s"]
    assert (await end_of(host, "s", "t2")).status == "completed"
    outcome = (await host.turn("s", "t")).outcome
    assert isinstance(outcome, Aborted)
    assert (outcome.reason.kind, outcome.partial.text) == ("shutdown", "half")  # type: ignore[union-attr]
    await host.close()


@pytest.mark.parametrize("who", ["a person", "session.close()", "a person, while it is closed"])
async def test_what_somebody_has_stopped_is_not_resumed_after_a_deploy(who: str) -> None:
    slow = HeldTool()
    store = MemoryStore()
    host = LocalHost(talker([Call("slow")], tools=[slow.tool]), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await slow.inside.wait()
    closing: asyncio.Task[None] | None = None
    if who == "a person":
        await host.stop("s", "t")
    elif who == "session.close()":
        closing = asyncio.create_task((await host.live("s")).close())
        await drain_ready_tasks()
    else:
        closing = asyncio.create_task(host.close())
        await drain_ready_tasks()
        assert (await host.stop("s", "t")).level == "recorded"
    slow.released.set()
    await host.close()
    if closing is not None:
        await closing
    host = LocalHost(talker("whole"), store, resume=True)
    assert await host.recover() == []
    view = await host.turn("s", "t")
    assert (view.status, view.continued_by) == ("aborted", None)
    await host.close()


@pytest.mark.parametrize("how", ["a crash", "a deploy"])
async def test_a_stop_of_a_turn_that_nobody_goes_on_with_yet_keeps_the_next_host_from_it(how: str) -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await first_text(await host.live("s"))
    left = MemoryStore()
    if how == "a deploy":
        await host.close()
    await left.append("s", await store.read("s"), durable=True)
    await host.close()
    host = LocalHost(talker("whole"), left)  # one that does not go on with it
    ack = await host.stop("s", "t", reason="enough")
    assert (ack.status, ack.level) == ("accepted", "recorded"), ack
    assert "will not be resumed" in ack.message
    assert (await host.stop("s", "t")).status == "already_finished"
    await host.close()
    host = LocalHost(talker("whole", "more"), left, resume=True)
    assert await host.recover() == []
    assert (await host.turn("s", "t")).status == "aborted"
    session = await host.live("s")
    assert (await session.continue_turn("t")).status == "completed", "a person may still go on with it"
    await host.close()


async def test_a_crash_while_the_host_is_closed_keeps_the_turn_as_well() -> None:
    slow = HeldTool(effects="read")
    store = MemoryStore()
    host = LocalHost(talker([Call("slow")], tools=[slow.tool]), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await slow.inside.wait()
    closing = asyncio.create_task(host.close())
    await drain_ready_tasks()
    await (await host.live("s")).saved()
    left = crashed(store)
    slow.released.set()
    await closing
    host = LocalHost(talker("whole"), left, resume=True)
    await host.recover()
    assert (await end_of(host, "s", "t")).status == "completed"
    await host.close()


async def test_a_function_of_messages_cannot_be_left_and_is_ended_for_good() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    session = await host.live("s")
    waiting = asyncio.create_task(session.save_messages(lambda messages: ["more"], turn_id="made"))
    await loop_until(lambda: "made" in session.turns)
    await host.close()
    outcome = (await waiting).outcome
    assert isinstance(outcome, Aborted)
    assert outcome.reason.kind == "shutdown"
    ended = [one.turn_id for one in await stored(store) if isinstance(one, TurnEnded)]
    assert sorted(ended) == ["made", "t"]


async def test_a_turn_that_is_just_beginning_when_the_host_is_closed_goes_on_later() -> None:
    for moment in range(24):
        store = MemoryStore()
        host = LocalHost(talker(["half", Stall()]), store)
        await host.create("s")
        session = await host.live("s")
        session.send("hi", turn_id="t")
        for _ in range(moment):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await host.close()
        host = LocalHost(talker("whole"), store, resume=True)
        await host.recover()
        assert (await end_of(host, "s", "t")).status == "completed", moment
        await host.close()


async def test_a_turn_that_kills_its_process_is_resumed_three_times_and_then_the_next_one_begins() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    await host.send("s", "two", turn_id="t2")
    for life in range(3):
        left = crashed(store)
        await host.close()
        store, host = left, LocalHost(talker([f"life {life}", Stall()]), left, resume=True)
        await host.recover()
        goes_on = (await host.turn("s", "t")).continued_by
        assert goes_on is not None, life
        await seen(host, "s", TextStreamed, run_id=goes_on)
        await (await host.live("s")).saved()
    left = crashed(store)
    await host.close()
    host = LocalHost(talker("2", "and on"), left, resume=True)
    await host.recover()
    assert (await end_of(host, "s", "t2")).status == "completed"
    outcome = (await host.turn("s", "t")).outcome
    assert isinstance(outcome, Aborted)
    assert "after it was resumed 3 times" in outcome.reason.message
    await host.close()


async def test_looking_at_a_stored_session_opens_nothing_and_writes_nothing() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    await host.send("s", "two", turn_id="t2")
    left = crashed(store)
    await host.close()
    before = list(left._logs["s"])
    agent = talker("whole")
    host = LocalHost(agent, left)
    view = await host.session("s")
    assert (view.live, view.agent, view.last_seq) == (False, "talker", before[-1].seq)
    assert [(turn.id, turn.status) for turn in view.turns] == [("t", "running"), ("t2", "queued")]
    assert (await host.turn("s", "t2")).status == "queued"
    assert [(one.id, one.live) for one in await host.sessions()] == [("s", False)]
    assert isinstance(await seen(host, "s", SessionOpened), SessionOpened)
    assert (left._logs["s"], left._live, asked(agent)) == (before, set(), 0)
    await host.close()


async def test_a_reader_of_a_stored_session_goes_on_when_it_becomes_live() -> None:
    store = MemoryStore()
    host = LocalHost(talker("one"), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await end_of(host, "s", "t")
    await host.close()
    host = LocalHost(talker("two"), store)
    last = (await host.session("s")).last_seq
    reading = asyncio.create_task(seen(host, "s", TurnEnded, last, turn_id="t2"))
    await drain_ready_tasks()
    assert not reading.done()
    await host.send("s", "again", turn_id="t2")
    assert (await reading).outcome.status == "completed"
    late = asyncio.create_task(seen(host, "s", TurnEnded, turn_id="never"))
    await drain_ready_tasks()
    await host.close()
    with pytest.raises(AssertionError, match="the host was closed"):
        await late


async def test_at_its_start_a_host_goes_on_without_anybody_looking() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()], "done", "idle"), store)
    await host.create("idle")
    await speaking(host)
    await host.send("s", "two", turn_id="t2")
    left = crashed(store)
    await host.close()
    host = LocalHost(talker("whole", "2"), left, resume=True)
    assert await host.agents() == ["talker"]
    assert await host.recover() == ["s"] == await host.recover()
    assert (await end_of(host, "s", "t2")).status == "completed"
    await host.close()


async def test_with_resume_the_first_use_of_a_host_begins_the_recovery() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    left = crashed(store)
    await host.close()
    host = LocalHost(talker("whole"), left, resume=True)
    await host.sessions()
    assert (await end_of(host, "s", "t")).status == "completed"
    await host.close()


async def test_a_recovery_that_failed_is_tried_again() -> None:
    class Shy(MemoryStore):
        fails = True

        async def sessions(self) -> list[SessionInfo]:
            if self.fails:
                raise StoreError("the disk went away")
            return await super().sessions()

    store = Shy()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    await host.close()
    host = LocalHost(talker("whole"), store, resume=True)
    with pytest.raises(StoreError, match="went away"):
        await host.recover()
    store.fails = False
    assert await host.recover() == ["s"]
    assert (await end_of(host, "s", "t")).status == "completed"
    await host.close()


async def test_one_session_that_cannot_be_opened_does_not_keep_the_others_from_going_on() -> None:
    store = MemoryStore()
    host = LocalHost({"a": talker(["half", Stall()], name="a"), "b": talker(["half", Stall()], name="b")}, store)
    for name in ("a", "b"):
        await host.create(name, name)
        await host.send(name, "hi", turn_id="t")
        await first_text(await host.live(name))
    await host.close()
    host = LocalHost(talker("whole", name="b"), store, resume=True)
    assert await host.recover() == ["b"]
    assert (await end_of(host, "b", "t")).status == "completed"
    await host.close()


async def test_a_stop_of_what_a_stored_session_has_left_comes_before_it_begins() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    await host.send("s", "two", turn_id="t2")
    left = crashed(store)
    await host.close()
    agent = talker("never")
    host = LocalHost(agent, left)
    assert (await host.stop("s", "t2")).level == "recorded"
    assert (await host.turn("s", "t2")).status == "aborted"
    await drain_ready_tasks()
    assert asked(agent) == 0
    await host.close()


async def test_a_session_whose_store_had_a_hiccup_is_opened_anew() -> None:
    store = FailingStore()
    host = LocalHost(talker("one", "two", "three"), store)
    await host.create("s")
    store.breaks = "turn_queued"
    with pytest.raises(StoreError, match="full"):
        await host.send("s", "hi", turn_id="t")
    with pytest.raises(StoreError, match="full"):
        await host.send("s", "hi", turn_id="t")
    store.breaks = "\0"
    assert not (await host.session("s")).live
    await host.send("s", "hi", turn_id="t")
    assert (await end_of(host, "s", "t")).status == "completed"
    await (await host.live("s")).close()
    await host.send("s", "again", turn_id="t2")
    assert (await end_of(host, "s", "t2")).status == "completed"
    await host.close()


@pytest.mark.parametrize("turn_id", ["runs", "waits"])
async def test_a_turn_that_was_stopped_while_the_store_failed_does_not_go_on_when_it_is_well_again(
    turn_id: str,
) -> None:
    store = FailingStore("enough")
    host = LocalHost(talker(["half", Stall()], "whole", "whole"), store, resume=True)
    await host.create("s")
    for name in ("runs", "waits"):
        await host.send("s", "hi", turn_id=name)
    await first_text(await host.live("s"))
    ack = await host.stop("s", turn_id, reason="enough")
    assert (ack.status, ack.level) == ("accepted", "accepted")
    store.breaks = ""  # nothing can be written at all
    with pytest.raises(StoreError, match="full"):
        await host.send("s", "hi", turn_id="after")
    store.breaks = "\0"
    await host.send("s", "hi", turn_id="after")
    assert (await end_of(host, "s", "after")).status == "completed"
    other_id = "waits" if turn_id == "runs" else "runs"
    stopped, other = [(await host.turn("s", name)).outcome for name in (turn_id, other_id)]
    assert isinstance(stopped, Aborted)
    assert stopped.reason.message == "enough"
    assert isinstance(other, Completed)
    await host.close()


async def test_a_session_in_sqlite_comes_back_when_the_lock_of_another_program_goes(tmp_path: Any) -> None:
    import sqlite3

    host = LocalHost(talker("one", "two"), SqliteStore(tmp_path / "s.db", busy_seconds=0.05))
    await host.create("s")
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        await host.send("s", "hi", turn_id="t")
    other.execute("ROLLBACK")
    other.close()
    await host.send("s", "hi", turn_id="t")
    assert (await end_of(host, "s", "t")).status == "completed"
    await host.close()


async def test_a_stop_reaches_a_turn_of_a_session_that_is_being_closed() -> None:
    deaf = HeldTool("deaf")
    host = LocalHost(talker([Call("deaf")], "next", tools=[deaf.tool]))
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await deaf.inside.wait()
    closing = asyncio.create_task(host.close_session("s"))
    await drain_ready_tasks()
    async with asyncio.timeout(5):
        await host.stop("s", "t", abandon=0.0)
        await closing
    deaf.released.set()
    await host.send("s", "again", turn_id="t2")
    assert (await end_of(host, "s", "t2")).status == "completed"
    await host.close()


async def test_a_session_keeps_its_agent_and_says_so() -> None:
    store = MemoryStore()
    agents = {"a": talker(name="a"), "b": talker(name="b")}
    host = LocalHost(agents, store)
    await host.create("s", "b")
    for _ in range(2):
        with pytest.raises(UsageError, match="'s' exists already, with the agent 'b'"):
            await host.create("s", "a")
        assert (await host.create("s", "b")).agent == "b"
        await host.close()
        host = LocalHost(agents, store)
    assert not (await host.session("s")).live, "nothing was opened by what was refused"
    await host.close()


ODD: list[Any] = ["\ud800", 5, b"x", ""]


@pytest.mark.parametrize("odd", ODD, ids=repr)
async def test_an_id_that_is_none_is_refused_everywhere(odd: Any) -> None:
    host = LocalHost(talker())
    await host.create("s")
    for use in (
        host.create(odd),
        host.session(odd),
        host.live(odd),
        host.send(odd, "hi"),
        host.stop(odd, "t"),
        host.turn(odd, "t"),
        host.edit(odd, "t", "hi"),
        host.send("s", "hi", turn_id=odd),
        host.stop("s", odd),
        host.turn("s", odd),
        anext(host.events(odd)),
    ):
        with pytest.raises(UsageError, match=r"the id of a (session|turn)"):
            await use
    assert len(await host.sessions()) == 1
    await host.close()


@pytest.mark.parametrize("text", [None, 5, b"hi", {"text": "hi"}, [None]], ids=repr)
async def test_a_text_that_is_none_is_refused(text: Any) -> None:
    host = LocalHost(talker())
    await host.create("s")
    with pytest.raises(UsageError, match="a message must be a text"):
        await host.send("s", text)
    assert (await host.session("s")).turns == ()
    await host.close()


@pytest.mark.parametrize(
    ("agents", "store", "told"),
    [
        ("helper", None, "agents must be an Agent, or a dict of names and agents, not 'helper'"),
        ({"helper": "gpt-5"}, None, r"agents\['helper'\] must be an Agent, not 'gpt-5'"),
        (talker(), "chat.db", "store must be a store such as"),
    ],
)
def test_what_is_no_agent_or_no_store_is_refused_at_once(agents: Any, store: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        LocalHost(agents, store)


@pytest.mark.parametrize("when_busy", ["steer", "interrupt"])
async def test_a_turn_that_was_to_make_way_for_a_newer_one_does_not_come_back_after_a_crash(
    when_busy: Literal["steer", "interrupt"],
) -> None:
    ran: list[str] = []
    begun, over = asyncio.Event(), asyncio.Event()

    @tool(effects="idempotent")
    async def work(ctx: ToolContext) -> str:
        ran.append(ctx.idempotency_key)
        begun.set()
        with shield(60):
            await over.wait()  # a tool that has not ended yet when the process dies
        return "done"

    def answer(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return [Call("work")] if isinstance(last, UserMessage) and last.text == "first" else "fine"

    agent = Agent(ScriptedModel(*[answer] * 10), tools=[work])
    store = MemoryStore()
    host = LocalHost(agent, store)
    await host.create("s")
    await host.send("s", "first", turn_id="old")
    await begun.wait()
    await host.send("s", "second", turn_id="new", when_busy=when_busy)
    left = crashed(store)
    over.set()
    await host.close()
    host = LocalHost(agent, left, resume=True)
    await host.recover()
    assert isinstance(await end_of(host, "s", "new"), Completed)
    view = await host.turn("s", "old")
    assert view.continued_by is None
    assert isinstance(view.outcome, Aborted)
    assert view.outcome.reason.kind == "preempted"
    assert len(ran) == 1
    await host.close()


async def test_the_first_id_also_leads_to_what_a_person_continues_after_too_many_crashes() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    while True:
        store = crashed(store)
        await host.close()
        host = LocalHost(talker(["more", Stall()], ["more", Stall()]), store, resume=True)
        await host.recover()
        running = (await host.session("s")).turns
        if not running:
            break  # it is not resumed by itself any more
        await seen(host, "s", TextStreamed, run_id=running[0].id)
        await (await host.live("s")).saved()
    by_hand = await host.continue_turn("s")
    await seen(host, "s", TextStreamed, run_id=by_hand.id)
    view = await host.turn("s", "t")
    assert (view.status, view.continued_by) == ("running", by_hand.id)
    ack = await host.stop("s", "t")
    assert ack.status == "accepted"
    await ack.settled()
    assert (await host.turn("s", by_hand.id)).status == "aborted"
    await host.close()
