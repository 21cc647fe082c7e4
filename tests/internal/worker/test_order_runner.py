"""Owns the tests of the work on one order: stops that come early, turns that are handed over, owners that lose it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from safepoint.abort import AbortReason
from safepoint.agent import Agent, ToolContext, tool
from safepoint.models.scripted import Call, Stall
from safepoint.worker import BrokerError, MemoryBroker
from safepoint.worker.broker import BrokerConnection, Key, StreamEntry, StreamName
from safepoint.worker.memory import MemoryConnection
from safepoint.worker.order_runner import GIVEN_BACK, OrderRunner
from safepoint.worker.protocol import (
    AnswerCall,
    Assignment,
    CloseCall,
    ContinueCall,
    EditCall,
    Ending,
    ForgetCall,
    OwnerEnded,
    RemoveCall,
    SendCall,
    StopCall,
    to_json,
)
from tests.kit.agents import asked, gated_agent, talker
from tests.kit.sessions import said
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, ends, linked, logged

USER = AbortReason("user", "enough").to_dict()


class Work:
    """A runner at work on session "s", and what it says of its turns."""

    def __init__(self, connection: BrokerConnection, agent: Agent, **about: Any) -> None:
        self.connection = connection
        self.told: list[str | None] = []
        self.began: dict[str, asyncio.Event] = {}
        assignment = Assignment("s", agent.name, "w", **{"idle_for": 0.01, **about})
        self.runner = OrderRunner(connection, {agent.name: agent}, assignment, self._heard)
        self.ended: asyncio.Task[Ending]

    def _heard(self, turn_id: str | None) -> None:
        self.told.append(turn_id)
        if turn_id is not None:
            self.began.setdefault(turn_id, asyncio.Event()).set()

    async def begins(self, turn_id: str) -> None:
        async with asyncio.timeout(SECONDS):
            await self.began.setdefault(turn_id, asyncio.Event()).wait()

    async def a_turn_begins(self, continues: str | None = None) -> str:
        """The id of the turn that begins, which may not be known before."""

        async def begun() -> str | None:
            session = self.runner.session
            turns = [] if session is None else session.turns.values()
            return next((one.id for one in turns if one.continues == continues and one.id in self.began), None)

        return str(await eventually(begun))

    @property
    def session(self) -> Any:
        assert self.runner.session is not None
        return self.runner.session

    async def left(self) -> Ending:
        async with asyncio.timeout(SECONDS):
            return await self.ended


@asynccontextmanager
async def at_work(connection: BrokerConnection, agent: Agent, **about: Any) -> AsyncIterator[Work]:
    async with asyncio.TaskGroup() as group:
        work = Work(connection, agent, **about)
        work.ended = group.create_task(work.runner.run())
        yield work


async def ran(connection: BrokerConnection, agent: Agent, **about: Any) -> Ending:
    async with at_work(connection, agent, **about) as work:
        return await work.left()


async def send(connection: BrokerConnection, *turn_ids: str, **about: Any) -> None:
    for turn_id in turn_ids:
        await connection.append("inbox", ("s",), to_json(SendCall(turn_id, f"do {turn_id}", **about)))
    await connection.publish(("poke", "s"), b"")


async def record(connection: BrokerConnection, turn_id: str) -> None:
    await connection.append("stops", ("s", turn_id), to_json(StopCall(turn_id, "NOW", None, USER)))


async def ended(connection: BrokerConnection) -> dict[str, Any]:
    return ends(await logged(connection, "s"))


async def statuses(connection: BrokerConnection) -> dict[str, str]:
    return {turn_id: outcome.status for turn_id, outcome in (await ended(connection)).items()}


async def continued(connection: BrokerConnection) -> dict[str, str]:
    """Which turn went on with which."""
    queued = [event for event in await logged(connection, "s") if event.kind == "turn_queued"]
    return {event.continues: event.turn_id for event in queued if event.continues is not None}


def staller(*more: Any) -> Agent:
    """Its first answer never ends."""
    return talker([Stall()], *more)


async def test_the_inbox_is_worked_off_in_order_and_then_nothing_is_left():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", "t2")
        async with at_work(connection, talker("one", "two")) as work:
            assert await work.left() == "idle"
        assert {turn_id: one.value.text for turn_id, one in (await ended(connection)).items()} == {
            "t1": "one",
            "t2": "two",
        }
        assert await connection.keys("inbox") == []
        assert work.told == ["t1", None, "t2", None]


async def test_a_message_that_comes_later_is_found_also_if_nobody_says_so():
    agent, released = gated_agent("one")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, agent) as work:
            await work.begins("t1")
            await connection.append("inbox", ("s",), to_json(SendCall("t2", "later")))

            async def seen() -> bool:
                return "t2" in work.session.turns

            await eventually(seen)
            work.runner.stop(StopCall("t2"))
            released.set()
            assert await work.left() == "idle"
        assert await statuses(connection) == {"t1": "completed", "t2": "aborted"}


async def test_a_stop_before_the_session_is_open_keeps_the_turn_from_beginning():
    agent = talker("never", "two")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", "t2")
        work = Work(connection, agent)
        await record(connection, "t3")
        noted = work.runner._early_stops
        reply = work.runner.stop(StopCall("t1", "NOW", None, USER))
        assert (reply.status, reply.turn_id) == ("unknown", "t1")
        assert await work.runner.run() == "idle"
        assert await statuses(connection) == {"t1": "aborted", "t2": "completed"}
        outcome = (await ended(connection))["t1"]
        assert (outcome.reason.kind, outcome.reason.message) == ("user", "enough")
        assert (asked(agent), work.told) == (1, ["t2", None])
        assert work.runner._early_stops is noted, "a stop that another thread notes meanwhile would be lost"


async def test_a_turn_in_the_inbox_whose_stop_was_recorded_never_begins_and_its_end_is_recorded():
    agent = talker("never")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        await record(connection, "t1")
        assert await ran(connection, agent) == "idle"
        assert (await statuses(connection), asked(agent)) == ({"t1": "aborted"}, 0)


async def test_a_stop_that_cannot_be_read_is_one_and_its_turn_is_not_put_aside():
    agent = talker("never", "two")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", "t2")
        await connection.append("stops", ("s", "t1"), b"of another version")
        assert await ran(connection, agent) == "idle"
        assert (await statuses(connection), asked(agent)) == ({"t1": "aborted", "t2": "completed"}, 1)
        assert await connection.keys("dead") == []


async def test_a_stop_that_was_recorded_while_its_session_was_open_keeps_the_turn_from_beginning():
    agent, released = gated_agent("one")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, agent) as work:
            await work.begins("t1")
            await record(connection, "t2")
            await send(connection, "t2")
            released.set()
            assert await work.left() == "idle"
        assert await statuses(connection) == {"t1": "completed", "t2": "aborted"}
        assert work.told == ["t1", None]


async def test_a_stop_of_a_turn_that_is_not_here_yet_hits_no_other_one():
    agent, released = gated_agent("one")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, agent) as work:
            await work.begins("t1")
            assert work.runner.stop(StopCall("t2")).status == "unknown"
            await send(connection, "t2")

            async def gone() -> bool:
                return (await statuses(connection)).get("t2") == "aborted"

            await eventually(gone)
            released.set()
            assert await work.left() == "idle"
        assert await statuses(connection) == {"t1": "completed", "t2": "aborted"}


async def test_the_end_of_a_turn_that_never_began_is_not_taken_for_the_end_of_the_one_that_runs():
    """Whoever ends what does not stop would take nothing to be running, and would end nothing."""
    agent, released = gated_agent("one")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", "t2")
        async with at_work(connection, agent) as work:
            await work.begins("t1")
            work.runner.stop(StopCall("t2"))

            async def gone() -> bool:
                return (await statuses(connection)).get("t2") == "aborted"

            await eventually(gone)
            released.set()
            assert await work.left() == "idle"
        assert work.told == ["t1", None]


async def test_a_message_that_came_twice_is_one_turn():
    agent = talker("one", "two")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", "t1")
        assert await ran(connection, agent) == "idle"
        await send(connection, "t1", "t2")  # the first owner died before it was taken out of the inbox
        assert await ran(connection, agent) == "idle"
        assert (await statuses(connection), asked(agent)) == ({"t1": "completed", "t2": "completed"}, 2)


async def test_who_leaves_gives_its_turn_back_and_the_next_one_goes_on_with_it():
    agent = talker([Stall()], "done by the next one")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", "waits")
        async with at_work(connection, agent) as work:
            await work.begins("t1")
            work.runner.hand_over(0.0)
            assert await work.left() == "left"
        assert (await ended(connection))["t1"].reason == GIVEN_BACK
        assert "waits" not in await ended(connection)
        successor = talker("went on", "what had waited")
        assert await ran(connection, successor, attempt=2) == "idle"
        next_turn = (await continued(connection))["t1"]
        done = await ended(connection)
        assert (done[next_turn].value.text, done["waits"].value.text) == ("went on", "what had waited")


async def test_who_may_take_its_time_leaves_at_a_safe_point():
    began, released = asyncio.Event(), asyncio.Event()

    @tool(on_abort="finish")
    async def careful() -> str:
        began.set()
        await released.wait()
        return "all of it"

    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, talker([Call("careful")], "never", tools=[careful])) as work:
            await began.wait()
            work.runner.hand_over(10.0)

            async def told() -> bool:
                return bool(work.session.turns["t1"].status == "stopping")

            await eventually(told)
            released.set()
            assert await work.left() == "left"
        partial = (await ended(connection))["t1"].partial
        assert partial.messages[-1].content == "all of it"


async def test_whoever_is_told_to_leave_before_its_session_is_open_leaves():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        work = Work(connection, talker("never"))
        work.runner.hand_over(0.0)
        assert await work.runner.run() == "left"
        assert (await ended(connection)).get("t1") is None
        assert await ran(connection, talker("one")) == "idle"
        assert await statuses(connection) == {"t1": "completed"}


async def test_an_owner_whose_place_was_taken_writes_nothing_more():
    broker = MemoryBroker()
    async with linked(broker) as connection, linked(broker) as other:
        await send(connection, "t1")
        async with at_work(connection, staller()) as old:
            await old.begins("t1")
            assert await ran(other, talker("the heir"), attempt=2) == "idle"
            before = await logged(connection, "s")
            old.runner.stop(StopCall("t1"))
            assert await old.left() == "fenced"
        assert await logged(connection, "s") == before
        done = await ended(connection)
        assert done[(await continued(connection))["t1"]].value.text == "the heir"


async def crash(connection: BrokerConnection, *turn_ids: str) -> None:
    """An owner that takes these turns, begins the first, and is not heard of again."""
    await send(connection, *turn_ids)
    async with at_work(connection, staller()) as work:
        await work.begins(turn_ids[0])
        await work.session.saved()
        work.runner.revoke("the power went")
        assert await work.left() == "left"
    assert turn_ids[0] not in await ended(connection)


async def test_a_turn_whose_owner_has_died_is_taken_up_by_the_next_one():
    async with linked(MemoryBroker()) as connection:
        await crash(connection, "t1", "waits")
        assert await ran(connection, talker("again", "waited"), attempt=2) == "idle"
        done = await ended(connection)
        assert (done["t1"].status, done["t1"].reason.kind) == ("aborted", "lease_lost")
        assert done[(await continued(connection))["t1"]].value.text == "again"
        assert done["waits"].value.text == "waited"


async def test_a_turn_whose_owner_was_lost_may_still_run_unless_somebody_saw_the_end_of_its_process():
    for told in (False, True):
        async with linked(MemoryBroker()) as connection:
            await crash(connection, "t1")
            notes = [OwnerEnded("w/1")] if told else [OwnerEnded("another/1")]
            for note in notes:
                await connection.append("inbox", ("s",), to_json(note))
            assert await ran(connection, talker("again"), attempt=2) == "idle"
            reason = (await ended(connection))["t1"].reason
            assert reason.kind == "lease_lost"
            assert ("has ended" in reason.message, "may still run" in reason.message) == (told, not told)
            assert (await connection.keys("inbox"), await connection.keys("dead")) == ([], [])


async def test_a_turn_that_was_stopped_while_it_had_no_owner_is_sealed_and_not_run_again():
    agent = talker("never", "waited")
    async with linked(MemoryBroker()) as connection:
        await crash(connection, "t1", "waits")
        await record(connection, "t1")
        assert await ran(connection, talker("waited"), attempt=2) == "idle"
        done = await ended(connection)
        assert (done["t1"].status, done["t1"].reason.kind) == ("aborted", "user")
        assert await continued(connection) == {}
        assert done["waits"].value.text == "waited"
        assert asked(agent) == 0


async def test_a_turn_that_was_given_back_and_then_stopped_is_not_taken_up():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, staller()) as work:
            await work.begins("t1")
            work.runner.hand_over(0.0)
            await work.left()
        await record(connection, "t1")
        agent = talker("never")
        assert await ran(connection, agent, attempt=2) == "idle"
        assert (asked(agent), await continued(connection)) == (0, {})


async def test_an_order_that_was_tried_too_often_is_ended_and_not_run_again():
    async with linked(MemoryBroker()) as connection:
        await crash(connection, "t1")
        agent = talker("never")
        assert await ran(connection, agent, attempt=11, resume=False) == "idle"
        assert (await statuses(connection), asked(agent)) == ({"t1": "aborted"}, 0)


async def test_a_stop_of_a_turn_that_was_handed_over_stops_the_one_that_goes_on_with_it():
    async with linked(MemoryBroker()) as connection:
        await crash(connection, "t1")
        async with at_work(connection, staller()) as second:  # it is handed over twice
            await second.a_turn_begins("t1")
            second.runner.hand_over(0.0)
            assert await second.left() == "left"
        successor = (await continued(connection))["t1"]
        async with at_work(connection, staller()) as third:
            last = await third.a_turn_begins(successor)
            reply = third.runner.stop(StopCall("t1", "NOW", None, USER))
            assert (reply.status, reply.turn_id) == ("accepted", last)
            assert await third.left() == "idle"
        assert (await ended(connection))[last].reason.kind == "user"


async def test_a_stop_of_a_turn_that_was_handed_over_is_found_also_when_its_heir_lost_its_owner():
    async with linked(MemoryBroker()) as connection:
        await crash(connection, "t1")
        async with at_work(connection, staller()) as second:
            successor = await second.a_turn_begins("t1")
            await second.session.saved()
            second.runner.revoke("the power went")
            await second.left()
        await record(connection, "t1")
        agent = talker("never")
        assert await ran(connection, agent, attempt=3) == "idle"
        assert ((await ended(connection))[successor].reason.kind, asked(agent)) == ("user", 0)


async def test_how_far_down_a_stop_goes_is_passed_on():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, staller()) as work:
            await work.begins("t1")
            turn = work.session.turns["t1"]
            assert work.runner.stop(StopCall("t1", "SAFE_POINT", None, USER)).status == "accepted"
            assert turn.stop_request.scope == "root"
            work.runner.stop(StopCall("t1", "SAFE_POINT", None, USER, scope="tree"))
            assert turn.stop_request.scope == "tree"
            work.runner.revoke("the power went")
            await work.left()


async def test_the_old_stop_of_a_turn_does_not_hit_the_one_that_was_made_to_go_on_with_it():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, talker([Stall()], [Stall()]), idle_for=5.0) as work:
            await work.begins("t1")
            await record(connection, "t1")
            work.runner.stop(StopCall("t1", "NOW", None, USER))

            async def over() -> bool:
                return not work.session.turns

            await eventually(over)
            going_on = (await work.runner.handle(ContinueCall("t1"))).turn_id
            await work.begins(going_on)
            assert work.runner.stop(StopCall("t1", "NOW", None, USER)).status == "already_finished"
            assert work.session.turns[going_on].status == "running"
            work.runner.revoke("the power went")
            await work.left()
        assert await ran(connection, talker("the end"), attempt=2) == "idle"  # the old stop is in the record still
        last = (await continued(connection))[going_on]
        assert (await ended(connection))[last].value.text == "the end"


async def test_what_cannot_be_read_is_put_aside_and_the_rest_is_worked_off():
    async with linked(MemoryBroker()) as connection:
        await connection.append("inbox", ("s",), b"nonsense")
        await connection.append("inbox", ("s",), to_json(SendCall("", "a turn without a name")))
        await send(connection, "t1")
        assert await ran(connection, talker("one")) == "idle"
        assert await statuses(connection) == {"t1": "completed"}
        assert next(entry.data for entry in await connection.read("dead", ("s",))) == b"nonsense"
        assert len(await connection.read("dead", ("s",))) == 2
        assert await connection.keys("inbox") == []


async def test_a_message_of_a_newer_version_ends_as_failed_and_says_why():
    newer = {"turn_id": "t1", "text": "hello", "when_busy": "whenever"}
    async with linked(MemoryBroker()) as connection:
        await connection.append("inbox", ("s",), json.dumps(newer).encode())
        await connection.append("inbox", ("s",), json.dumps(newer).encode())  # it came twice
        await connection.append("inbox", ("s",), to_json(SendCall("t2", " ")))  # nothing is said
        await send(connection, "t3")
        agent = talker("one")
        assert await ran(connection, agent) == "idle"
        done = await ended(connection)
        assert {turn_id: one.status for turn_id, one in done.items()} == {
            "t1": "failed",
            "t2": "failed",
            "t3": "completed",
        }
        assert "cannot be understood" in str(done["t1"].error)
        assert "the message is empty" in str(done["t2"].error)
        assert asked(agent) == 1, "what was refused is not part of the conversation"
        assert "hello" not in said(done["t3"].value.messages)


async def test_a_turn_that_did_not_want_to_wait_is_refused_where_one_runs():
    agent, released = gated_agent("one")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, agent) as work:
            await work.begins("t1")
            await send(connection, "t2", when_busy="reject")

            async def refused() -> bool:
                return "t2" in await ended(connection)

            await eventually(refused)
            released.set()
            assert await work.left() == "idle"
        assert "rejected" in (await ended(connection))["t2"].reason.message


async def test_the_deadline_of_a_message_counts_for_its_turn():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", seconds=0.1)
        assert await ran(connection, staller()) == "idle"
        assert await statuses(connection) == {"t1": "timed_out"}


async def test_an_agent_that_nobody_has_is_a_failure_and_takes_nothing():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        agent = talker()
        work = OrderRunner(connection, {"painter": agent}, Assignment("s", "poet", "w"), print)
        assert await work.run() == "failed"
        assert await connection.keys("inbox") == [("s",)]


async def test_a_session_that_may_run_nowhere_else_ends_its_turns_where_the_agent_is_missing():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1", "t2")
        await record(connection, "t2")
        work = OrderRunner(
            connection, {"painter": talker()}, Assignment("s", "poet", "w", idle_for=0.01, offered=False), print
        )
        assert await work.run() == "idle"
        done = await ended(connection)
        assert (done["t1"].status, done["t2"].status) == ("failed", "aborted")
        told = str(done["t1"].error)
        assert "worker 'w' has no agent 'poet'" in told
        assert "it has painter" in told
        assert said(done["t1"].partial.messages) == ["do t1"]
        assert await connection.keys("inbox") == []


async def test_what_was_interrupted_ends_where_the_agent_is_missing_and_goes_on_where_it_is_there_again():
    agent = talker(["half an answer", Stall()], "and the rest")
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, agent) as work:
            await work.begins("t1")
            await eventually_said(connection, "half")
            work.runner.hand_over(0.0)
            assert await work.left() == "left"
        without = OrderRunner(connection, {}, Assignment("s", agent.name, "w", idle_for=0.01, offered=False), print)
        assert await without.run() == "idle"
        successor = (await continued(connection))["t1"]
        failed = (await ended(connection))[successor]
        assert failed.status == "failed"
        assert "half an answer" in "".join(said(failed.partial.messages))
        async with at_work(connection, agent, idle_for=SECONDS) as work:
            reply = await eventually_continued(work, successor)

            async def gone_on() -> bool:
                return reply.turn_id in await ended(connection)

            await eventually(gone_on)
            await work.runner.handle(CloseCall("enough"))
        assert (await ended(connection))[reply.turn_id].value.text == "and the rest"


async def eventually_said(connection: BrokerConnection, text: str) -> None:
    async def heard() -> bool:
        return any(text in getattr(event, "text", "") for event in await logged(connection, "s"))

    await eventually(heard)


async def eventually_continued(work: Work, turn_id: str) -> Any:
    async def asked_to() -> Any:
        reply = await work.runner.handle(ContinueCall(turn_id))
        return reply if reply.ok else None

    return await eventually(asked_to)


class Breaking(MemoryConnection):
    """A link whose inbox cannot be read any more as soon as it is told to break."""

    broken = False

    async def read(self, stream: StreamName, key: Key, after: int = 0, limit: int = 1000) -> list[StreamEntry]:
        if self.broken and stream == "inbox":
            raise BrokerError("the inbox is gone")
        return await super().read(stream, key, after, limit)


async def test_work_that_fails_half_way_ends_no_turn_for_good():
    broker = MemoryBroker()
    connection = Breaking(broker._hub, 10.0)
    await send(connection, "t1")
    async with at_work(connection, staller()) as work:
        await work.begins("t1")
        connection.broken = True
        await connection.publish(("poke", "s"), b"")
        assert await work.left() == "failed"
    connection.broken = False
    assert "t1" not in await ended(connection)
    assert await ran(connection, talker("went on"), attempt=2) == "idle"
    assert (await ended(connection))[(await continued(connection))["t1"]].value.text == "went on"


async def test_a_stop_from_another_thread_is_answered_while_the_event_loop_is_blocked():
    blocked, answered = threading.Event(), threading.Event()
    replies: list[Any] = []

    @tool
    async def block() -> str:
        blocked.set()
        answered.wait(SECONDS)
        return "at last"

    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, talker([Call("block")], "never", tools=[block])) as work:

            def stop() -> None:
                blocked.wait(SECONDS)
                replies.append(work.runner.stop(StopCall("t1", "NOW", None, USER)))
                answered.set()

            thread = threading.Thread(target=stop)
            thread.start()
            assert await work.left() == "idle"
            thread.join(SECONDS)
        assert [reply.status for reply in replies] == ["accepted"]
        assert await statuses(connection) == {"t1": "aborted"}


async def test_what_is_asked_of_a_session_that_is_being_opened_is_to_be_asked_again():
    async with linked(MemoryBroker()) as connection:
        reply = await Work(connection, talker()).runner.handle(CloseCall("enough"))
        assert (reply.ok, reply.error) == (False, "opening")


async def test_everything_that_can_be_asked_of_a_session_is_answered():
    @tool
    async def ask(ctx: ToolContext) -> str:
        return await ctx.ask_user("Which colour?")

    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        agent = talker([Call("ask")], [Stall()], "again", tools=[ask])
        async with at_work(connection, agent, idle_for=SECONDS) as work:
            handle = work.runner.handle

            async def question() -> str | None:
                found = [event for event in await logged(connection, "s") if event.kind == "question_asked"]
                return found[0].question_id if found else None

            assert (await handle(AnswerCall(str(await eventually(question)), "blue"))).ok
            assert not (await handle(AnswerCall("never asked", "blue"))).ok
            await send(connection, "t2", "t3")

            async def waiting() -> bool:
                return {"t2", "t3"} <= set(work.session.turns)

            await eventually(waiting)
            edited = await handle(EditCall("t2", "other words"))
            assert (edited.ok, edited.recorded) == (True, True)
            assert not (await handle(EditCall("t9", "other words"))).ok
            removed = await handle(RemoveCall("t2"))
            assert (removed.ok, removed.recorded) == (True, True)
            assert not (await handle(RemoveCall("t2"))).ok
            assert (await handle(RemoveCall("t3"))).ok
            assert (await handle(ForgetCall("t1"))).error == "usage"
            assert (await handle(StopCall("t1", "NOW", None, USER))).status == "accepted"
            assert (await handle(ContinueCall("t7"))).error == "usage"

            async def over() -> bool:
                return not work.session.turns

            await eventually(over)
            going_on = await handle(ContinueCall(None))
            await work.begins(going_on.turn_id)

            async def done() -> bool:
                return (await statuses(connection)).get(going_on.turn_id) == "completed"

            await eventually(done)
            assert (await handle(ForgetCall(going_on.turn_id))).ok
            assert (await handle(CloseCall("enough"))).ok
            assert await work.left() == "idle"
            assert (await handle(ForgetCall("t1"))).error == "ended"


async def test_what_runs_when_its_session_is_closed_is_aborted_with_that_reason():
    async with linked(MemoryBroker()) as connection:
        await send(connection, "t1")
        async with at_work(connection, staller()) as work:
            await work.begins("t1")
            assert (await work.runner.handle(CloseCall("going home"))).ok
            assert await work.left() == "idle"
        outcome = (await ended(connection))["t1"]
        assert (outcome.reason.kind, outcome.reason.message) == ("shutdown", "going home")
