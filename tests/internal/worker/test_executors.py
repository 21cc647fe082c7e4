"""Owns the tests of where one order is worked on: in this process, or in a child that can be killed at any moment."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from safepoint.agent import tool
from safepoint.models.scripted import Call
from safepoint.worker import Broker, MemoryBroker
from safepoint.worker.broker import BrokerConnection
from safepoint.worker.executors import Executor, InlineExecutor, ProcessExecutor
from safepoint.worker.protocol import Assignment, CloseCall, Ending, SendCall, StopCall, to_json
from safepoint.worker.worker_loop import WorkerLoop
from tests.kit.agents import talker
from tests.kit.programs import gone
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, ends, linked, logged, nats
from tests.worker.cast import TARGET

ORDER = Assignment("s", "actor", "w", idle_for=0.01)


async def send(connection: BrokerConnection, turn_id: str, text: str) -> None:
    await connection.append("inbox", ("s",), to_json(SendCall(turn_id, text)))


async def finished(executor: Executor) -> Ending:
    async with asyncio.timeout(SECONDS):
        return await executor.run()


# In a child


@asynccontextmanager
async def child(broker: Broker) -> AsyncIterator[ProcessExecutor]:
    async with asyncio.TaskGroup() as group:
        executor = ProcessExecutor(broker, [TARGET], "w")
        group.create_task(executor.read_messages())
        try:
            yield executor
        finally:
            executor.close()


async def progress(connection: BrokerConnection, count: int = 1) -> str:
    """What the tool has said last."""

    async def told() -> str | None:
        found = [event for event in await logged(connection, "s") if event.kind == "progress_made"]
        return found[count - 1].message if len(found) >= count else None

    return str(await eventually(told))


async def test_a_child_works_on_one_order_after_the_other():
    broker = nats()
    async with linked(broker) as connection, child(broker) as executor:
        for turn_id in ("t1", "t2"):
            await send(connection, turn_id, "pid")
            told: list[str | None] = []
            executor.begin(ORDER, told.append)
            assert await finished(executor) == "idle"
            assert told == [turn_id, None]
        done = ends(await logged(connection, "s"))
        assert {one.value.text for one in done.values()} == {str(executor.pid)}
        assert executor.pid != os.getpid()


async def test_a_child_that_is_still_starting_is_waited_for_unless_it_is_about_a_stop():
    broker = nats()
    async with linked(broker) as connection, child(broker) as executor:
        await send(connection, "t1", "pid")
        executor.begin(ORDER, lambda turn_id: None)
        began = time.monotonic()
        assert await executor.request(StopCall("t1", "NOW")) is None  # it is in its line all the same
        assert time.monotonic() - began < 1.0
        reply = await executor.request(CloseCall("enough"))
        assert reply is not None
        assert await finished(executor) == "idle"
        assert ends(await logged(connection, "s"))["t1"].status == "aborted"


async def test_a_child_whose_loop_is_blocked_answers_a_stop_and_says_so():
    broker = nats()
    async with linked(broker) as connection, child(broker) as executor:
        await send(connection, "t1", "block")
        executor.begin(ORDER, lambda turn_id: None)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(finished(executor))
            await progress(connection)

            async def busy() -> bool:
                reply = await executor.request(
                    StopCall("t9", "NOW")
                )  # of a turn that is not there: it must get to block
                return reply is not None and reply.busy > 0 and "has not moved" in reply.message

            await eventually(busy)
            assert executor.kill()
            assert await ending == "died"


async def test_nothing_that_a_child_has_started_outlives_it():
    broker = nats()
    async with linked(broker) as connection, child(broker) as executor:
        await send(connection, "t1", "spawn")
        executor.begin(ORDER, lambda turn_id: None)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(finished(executor))
            grandchild = int(await progress(connection))
            assert not gone(executor.pid, grandchild)
            executor.revoke("the lease is lost")
            assert await ending == "died"

        async def all_gone() -> bool:
            return gone(executor.pid, grandchild)

        await eventually(all_gone)


async def test_of_a_child_that_has_died_nothing_is_heard_any_more():
    async with child(nats()) as executor:
        executor.begin(ORDER, lambda turn_id: None)
        executor.kill()

        async def noticed() -> bool:
            return not executor.alive

        await eventually(noticed)
        assert await finished(executor) == "died"
        assert await executor.request(StopCall("t1")) is None


async def test_whoever_asks_while_a_child_dies_is_told_that():
    async with child(nats()) as executor, asyncio.TaskGroup() as group:
        executor.begin(ORDER, lambda turn_id: None)
        asked = group.create_task(executor.request(CloseCall("enough")))
        await asyncio.sleep(0)
        executor.kill()
        reply = await asked
        assert reply is not None
        assert (reply.error, reply.status) == ("broken", "unknown")


async def test_a_child_makes_way_when_told():
    broker = nats()
    async with linked(broker) as connection, child(broker) as executor:
        await send(connection, "t1", "talk")
        told: list[str | None] = []
        executor.begin(ORDER, told.append)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(finished(executor))

            async def begun() -> bool:
                return told == ["t1"]

            await eventually(begun)
            executor.hand_over(0.0)
            assert await ending == "left"
        assert ends(await logged(connection, "s"))["t1"].reason.kind == "lease_lost"


async def test_a_child_whose_agent_cannot_be_loaded_has_not_started_and_says_why(
    capfd: pytest.CaptureFixture[str],
):
    async with asyncio.TaskGroup() as group:
        executor = ProcessExecutor(nats(), ["tests.worker.cast:nobody"], "w")
        group.create_task(executor.read_messages())
        executor.begin(ORDER, lambda turn_id: None)
        assert await finished(executor) == "unstarted"
        assert "nobody" in executor.failure
    assert "nobody" in capfd.readouterr().err


# In this process


@asynccontextmanager
async def here(broker: Broker, *answers: object, **options: object) -> AsyncIterator[InlineExecutor]:
    agent = talker(*answers, name="actor", **options)
    worker_loop = WorkerLoop(broker, {"actor": agent}, "w")
    await worker_loop.open()
    yield InlineExecutor(worker_loop)
    await worker_loop.close()


async def test_a_seat_in_this_process_works_and_cannot_be_killed():
    broker = MemoryBroker()
    async with linked(broker) as connection, here(broker, "one") as executor:
        await send(connection, "t1", "hello")
        told: list[str | None] = []
        executor.begin(ORDER, told.append)
        reply = await executor.request(CloseCall("enough"))
        assert reply is not None
        assert reply.error == "opening"
        assert await finished(executor) == "idle"
        assert ends(await logged(connection, "s"))["t1"].value.text == "one"
        assert not executor.kill()
        assert told == ["t1", None]


async def test_work_that_nobody_can_do_fails_alone(caplog: pytest.LogCaptureFixture):
    broker = MemoryBroker()
    async with linked(broker) as connection, here(broker) as executor:
        await connection.append("log", ("s",), b'{"records": "of another kind"}')
        executor.begin(ORDER, lambda turn_id: None)
        assert await finished(executor) == "failed"
    assert "the work failed" in caplog.text


async def test_what_is_asked_of_a_blocked_loop_is_not_waited_for():
    broker = MemoryBroker()
    replies: list[object] = []

    @tool
    async def block() -> str:
        """Ask from another thread, and wait here until it has its answers."""

        async def ask() -> None:
            while not (reply := await executor.request(StopCall("t9"))).busy:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)  # real time: until somebody notices that the loop is blocked
            replies.extend([reply, await executor.request(CloseCall("enough"))])

        import threading

        thread = threading.Thread(target=lambda: asyncio.run(ask()))
        thread.start()
        thread.join(SECONDS)
        return "at last"

    async with linked(broker) as connection, here(broker, [Call("block")], "end", tools=[block]) as executor:
        await send(connection, "t1", "hello")
        executor.begin(ORDER, lambda turn_id: None)
        assert await finished(executor) == "idle"
    stop, close = replies
    assert "has not moved" in stop.message  # type: ignore[attr-defined]
    assert close is None


async def test_a_seat_in_this_process_makes_way_and_lets_go():
    broker = MemoryBroker()
    for way in ("leave", "cut"):
        async with linked(broker) as connection, here(broker, "one") as executor:
            executor.begin(ORDER, lambda turn_id: None)
            executor.hand_over(0.0) if way == "leave" else executor.revoke("the lease is lost")
            assert await finished(executor) == "left"
            assert await connection.keys("inbox") == []
