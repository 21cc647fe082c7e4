"""Owns the tests of a worker as its users hold it: what it acknowledges, what it ends by force, and how it goes."""

import asyncio
import threading
from typing import Any

import pytest

from safepoint.agent import tool
from safepoint.errors import UsageError
from safepoint.models.scripted import Call, Stall
from safepoint.worker import BrokerError, MemoryBroker, NatsBroker, RemoteHost, Worker
from tests.kit.agents import gated_agent, talker
from tests.kit.nats import free_port
from tests.kit.waiting import eventually
from tests.kit.workers import (
    SECONDS,
    New,
    each_broker,
    ends,
    hosting,
    linked,
    logged,
    memory,
    nats,
    until_kind,
    working,
)
from tests.worker.cast import TARGET, actor


async def outcome(host: RemoteHost, session: str, turn_id: str) -> Any:
    recorded = await until_kind(host, session, "turn_ended", turn_id=turn_id)
    return recorded.event.outcome  # type: ignore[union-attr]


@each_broker
async def test_what_is_sent_to_a_host_is_answered_by_a_worker(new: New):
    broker = new()
    async with working(talker("hello you"), broker), hosting(broker) as host:
        await host.create("s")
        await host.send("s", "hello", turn_id="t")
        assert (await outcome(host, "s", "t")).value.text == "hello you"


@each_broker
async def test_a_blocked_event_loop_still_acknowledges_a_stop_and_says_so(new: New):
    released = threading.Event()

    @tool
    async def block() -> str:
        released.wait(SECONDS)
        return "at last"

    def stop() -> Any:
        """From another thread, since the one of the worker is blocked: that is where its agents run."""

        async def ask() -> Any:
            async with hosting(broker) as host:
                await host.create("s")
                await host.send("s", "hello", turn_id="t")
                await asyncio.sleep(0.6)  # real time: it begins, and its loop is blocked for a while
                ack = await host.stop("s", "t")
                released.set()
                receipt = await ack.settled(SECONDS)
                return ack, receipt

        try:
            return asyncio.run(ask())
        finally:
            released.set()

    broker = new()
    async with working(talker([Call("block")], "never", tools=[block]), broker, isolation="task"):
        ack, receipt = await asyncio.to_thread(stop)
    assert (ack.status, ack.level) == ("accepted", "delivered")
    assert "has not moved" in ack.message
    assert receipt.reason.kind == "user"


async def test_a_turn_that_blocks_its_process_is_acknowledged_ended_by_force_and_sealed():
    broker = nats()
    async with hosting(broker) as host, working(TARGET, broker, grace=0.5, concurrency=2) as worker:
        for session, text in (("stuck", "block"), ("fine", "talk")):
            await host.create(session)
            await host.send(session, text, turn_id=f"{session}-1")
        await until_kind(host, "stuck", "progress_made")
        await until_kind(host, "fine", "text_streamed")
        await asyncio.sleep(0.5)  # real time: its loop is blocked for a while
        ack = await host.stop("stuck", "stuck-1", reason="enough")
        assert (ack.status, ack.level) == ("accepted", "delivered")
        assert "has not moved" in ack.message
        sealed = await outcome(host, "stuck", "stuck-1")
        assert (sealed.status, sealed.reason.kind, sealed.reason.message) == ("aborted", "user", "enough")
        assert worker.stats.killed == 1
        assert [turn.status for turn in (await host.session("fine")).turns] == ["running"]  # nobody has touched it
        await host.send("stuck", "and now?", turn_id="stuck-2")
        assert (await outcome(host, "stuck", "stuck-2")).value.text == "done"
        await host.stop("fine", "fine-1")
        assert (await outcome(host, "fine", "fine-1")).status == "aborted"


async def test_a_turn_that_ignores_its_stop_is_ended_by_force_and_not_run_again():
    broker = nats()
    async with hosting(broker) as host, linked(broker) as connection, working(TARGET, broker, grace=0.5) as worker:
        await host.create("s")
        await host.send("s", "ignore", turn_id="t1")
        await until_kind(host, "s", "progress_made")
        ack = await host.stop("s", "t1")
        assert ack.status == "accepted"
        await ack.settled(SECONDS)
        assert (await outcome(host, "s", "t1")).reason.kind == "user"

        async def at_rest() -> bool:
            return not await connection.pending_sessions()

        await eventually(at_rest)
        events = await logged(connection, "s")
        assert [event.kind for event in events].count("turn_queued") == 1
        assert (list(ends(events)), worker.stats.killed) == (["t1"], 1)


async def test_a_session_that_kills_its_process_is_tried_so_often_and_then_ended():
    broker = nats()
    async with hosting(broker) as host, linked(broker) as connection, working(TARGET, broker, attempts=2) as worker:
        await host.create("s")
        await host.send("s", "die", turn_id="t1")

        async def given_up() -> bool:
            return bool(await connection.read("dead", ("s",))) and not await connection.pending_sessions()

        await eventually(given_up)
        done = ends(await logged(connection, "s"))
        assert {one.status for one in done.values()} == {"aborted"}
        assert len(done) == 2  # the turn, and the one that went on with it
        assert worker.stats.dead == 1
        await host.send("s", "hello", turn_id="t2")  # the session itself goes on
        assert (await outcome(host, "s", "t2")).value.text == "done"


async def test_a_stopped_turn_goes_on_in_a_process_that_has_to_be_started_first():
    broker = nats()
    async with hosting(broker) as host:
        async with working(TARGET, broker):
            await host.create("s")
            await host.send("s", "talk", turn_id="t1")
            await until_kind(host, "s", "text_streamed")
            await (await host.stop("s", "t1")).settled(SECONDS)
        async with working(TARGET, broker):
            view = await host.continue_turn("s", "t1")
            await until_kind(host, "s", "turn_started", turn_id=view.id)
            await (await host.stop("s", view.id)).settled(SECONDS)


@each_broker
async def test_what_was_stopped_once_goes_on_although_the_record_of_its_stop_is_there(new: New):
    broker = new(lease=0.6)
    async with hosting(broker) as host, working(talker([Stall()], ["half", Stall()]), broker):
        await host.create("s")
        await host.send("s", "hello", turn_id="t1")
        await until_kind(host, "s", "turn_started")
        await (await host.stop("s", "t1")).settled(SECONDS)
        view = await host.continue_turn("s", "t1")
        await until_kind(host, "s", "text_streamed")
        await asyncio.sleep(0.5)  # real time: the lease is renewed, and with that the record is read
        assert (await host.turn("s", view.id)).status == "running"
        await (await host.stop("s", view.id)).settled(SECONDS)


@each_broker
async def test_a_deadline_counts_on_when_another_worker_goes_on(new: New):
    broker = new()
    async with hosting(broker) as host:
        async with working(talker([Stall()]), broker):
            await host.create("s")
            await host.send("s", "hello", turn_id="t1", timeout=1.0)
            await until_kind(host, "s", "turn_started")
        async with working(talker([Stall()]), broker):
            going_on = await until_kind(host, "s", "turn_queued", continues="t1")
            ended = await outcome(host, "s", going_on.event.run_id)
            assert (ended.status, ended.reason.kind) == ("timed_out", "deadline")


@each_broker
async def test_a_rolling_deploy_loses_no_turn(new: New):
    broker = new()
    agent, released = gated_agent("the end")
    async with hosting(broker) as host, linked(broker) as connection:
        first = Worker(agent, broker, idle_for=0.05)
        await first.start()
        await host.create("s")
        await host.send("s", "hello", turn_id="t1")
        await until_kind(host, "s", "tool_called")
        async with working(talker("the end", "waited"), broker):
            await host.send("s", "me too", turn_id="t2")
            async with asyncio.TaskGroup() as group:
                group.create_task(first.close(within=5.0))
                await until_kind(host, "s", "stop_requested", turn_id="t1")
                released.set()  # the tool gets to its end, and its result is not lost

            async def all_done() -> bool:
                done = ends(await logged(connection, "s"))
                return [one.value.text for one in done.values() if one.status == "completed"] == ["the end", "waited"]

            await eventually(all_done)
            results = [event.content for event in await logged(connection, "s") if event.kind == "tool_ended"]
            assert results == ["go"]


async def test_a_worker_takes_agents_by_name_and_by_themselves():
    broker = memory()
    async with working([TARGET], broker, isolation="task"), hosting(broker) as host:
        assert await host.agents() == ["actor"]
    async with working({"star": actor}, broker), hosting(broker) as host:
        assert await host.agents() == ["star"]


@pytest.mark.parametrize(
    ("agents", "options", "told"),
    [
        (actor, {"isolation": "process"}, "module:agent"),
        ({}, {}, "at least one agent"),
        (actor, {"concurrency": 0}, "at least 1"),
        (actor, {"attempts": 0}, "at least 1"),
        (actor, {"grace": -1.0}, "grace"),
        (actor, {"idle_for": float("nan")}, "idle_for"),
        (TARGET, {}, "MemoryBroker cannot be used"),
        ("tests.worker.cast:nobody", {}, "nobody"),
    ],
)
def test_what_makes_no_worker_is_said_at_once(agents: Any, options: dict[str, Any], told: str):
    with pytest.raises(UsageError, match=told):
        Worker(agents, MemoryBroker(), **options)


async def test_a_worker_without_a_broker_does_not_start():
    worker = Worker(actor, NatsBroker(f"nats://127.0.0.1:{free_port()}"))
    with pytest.raises(BrokerError, match="is a server running there"):
        await worker.start()


async def test_a_worker_that_was_not_started_has_nothing_to_wait_for_and_nothing_to_close():
    worker = Worker(actor, MemoryBroker())
    await worker.close()
    with pytest.raises(UsageError, match="not started"):
        await worker.wait()


async def test_a_worker_is_waited_for_until_it_has_gone_and_closed_as_often_as_one_likes():
    async with Worker(actor, MemoryBroker(), name="w") as worker, asyncio.TaskGroup() as group:
        assert worker.name == "w"
        waiting = group.create_task(worker.wait())
        await worker.close()
        await waiting
        await worker.close()


def test_two_workers_have_two_names():
    assert Worker(actor, MemoryBroker()).name != Worker(actor, MemoryBroker()).name
