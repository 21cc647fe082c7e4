"""Owns the tests of how a stop travels: worker and record side by side, answered at once, and never lost."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from safepoint.session.loop_tasks import LoopTasks
from safepoint.worker.broker import BrokerConnection
from safepoint.worker.protocol import Reply, StopCall, from_json, to_json
from safepoint.worker.stop_reader import recorded_stops
from safepoint.worker.stop_sender import StopSender
from tests.kit.workers import New, each_broker, linked

CALL = StopCall("t1", "NOW")


@asynccontextmanager
async def belled(new: New) -> AsyncIterator[tuple[StopSender, BrokerConnection, BrokerConnection]]:
    broker = new()
    async with linked(broker) as connection, linked(broker) as worker:
        loop_tasks = LoopTasks()
        yield StopSender(connection, loop_tasks), connection, worker
        await loop_tasks.wait_all()


@each_broker
async def test_the_worker_is_told_and_the_record_is_kept(new: New):
    async with belled(new) as (bell, connection, worker):
        heard: list[StopCall] = []

        async def answer(data: bytes) -> bytes:
            heard.append(from_json(StopCall, data))
            return to_json(Reply(status="accepted", turn_id="t1"))

        await worker.serve(("ctl", "s"), answer)
        reply, recorded = await bell.send("s", CALL)
        assert reply == Reply(status="accepted", turn_id="t1")
        assert (heard, recorded) == ([CALL], True)
        ((_, kept),) = await recorded_stops(connection, "s")
        assert kept == CALL


@each_broker
async def test_where_nobody_is_the_record_is_kept_and_that_is_said_soon(new: New):
    async with belled(new) as (bell, connection, _):
        began = time.monotonic()
        assert await bell.send("s", CALL) == (None, True)
        assert time.monotonic() - began < 2
        assert len(await recorded_stops(connection, "s")) == 1


@each_broker
async def test_a_worker_that_takes_the_order_meanwhile_is_rung_again(new: New):
    async with belled(new) as (bell, _connection, worker):
        rings = 0

        async def answer(data: bytes) -> bytes:
            nonlocal rings
            rings += 1
            if rings == 1:  # the one before it: its process has just died
                return to_json(Reply(False, "its process has died", error="broken"))
            return to_json(Reply(status="accepted"))

        await worker.serve(("ctl", "s"), answer)
        reply, recorded = await bell.send("s", CALL)
        assert reply is not None
        assert (reply.status, recorded, rings) == ("accepted", True, 2)


@each_broker
async def test_who_only_ever_says_that_it_is_broken_has_not_been_told(new: New):
    async with belled(new) as (bell, _connection, worker):

        async def answer(data: bytes) -> bytes:
            return to_json(Reply(False, "its process has died", error="broken"))

        await worker.serve(("ctl", "s"), answer)
        assert await bell.send("s", CALL) == (None, True)


@each_broker
async def test_a_worker_that_does_not_answer_holds_nobody_up_and_is_rung_on(new: New):
    async with belled(new) as (bell, _connection, worker):
        gate, rung, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def answer(data: bytes) -> bytes:
            (again if rung.is_set() else rung).set()
            await gate.wait()
            return to_json(Reply(status="accepted"))

        await worker.serve(("ctl", "s"), answer)
        began = time.monotonic()
        assert await bell.send("s", CALL) == (None, True)
        assert time.monotonic() - began < 3
        async with asyncio.timeout(5):
            await again.wait()
        gate.set()


@each_broker
async def test_nonsense_as_an_answer_is_none(new: New):
    async with belled(new) as (bell, _connection, worker):

        async def answer(data: bytes) -> bytes:
            return b"what?"

        await worker.serve(("ctl", "s"), answer)
        assert await bell.send("s", CALL) == (None, True)


@each_broker
async def test_without_a_broker_there_is_neither_answer_nor_record(new: New):
    connection = await new().connect("test")
    await connection.close()
    loop_tasks = LoopTasks()
    assert await StopSender(connection, loop_tasks).send("s", CALL) == (None, False)
    await loop_tasks.wait_all()


@each_broker
async def test_a_record_that_cannot_be_read_is_a_stop_all_the_same(new: New):
    async with linked(new()) as connection:
        await connection.append("stops", ("s", "t1"), b'{"turn_id": "t1", "at": "SOME_DAY"}')
        await connection.append("stops", ("s", "t2"), to_json(StopCall("t2", "AFTER_TOOLS")))
        await connection.append("stops", ("other", "t3"), to_json(StopCall("t3")))
        found = [call for _, call in await recorded_stops(connection, "s")]
        assert next((call.turn_id, call.at, call.abort_reason.kind) for call in found) == ("t1", "NOW", "user")
        assert found[1] == StopCall("t2", "AFTER_TOOLS")
        assert len(found) == 2
