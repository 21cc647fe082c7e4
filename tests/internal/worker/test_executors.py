"""Owns the tests of where one order is worked on: in this process, or in a child that can be killed at any moment."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from safepoint.agent import tool
from safepoint.models.scripted import Call
from safepoint.worker import Broker, MemoryBroker
from safepoint.worker.broker import BrokerConnection
from safepoint.worker.executors import Executor, InlineExecutor, ProcessExecutor
from safepoint.worker.protocol import Assignment, CloseCall, Ending, SendCall, StopCall, to_json
from safepoint.worker.worker_loop import WorkerLoop
from tests.session.lab import talker
from tests.worker.cast import TARGET
from tests.worker.lab import SECONDS, ends, eventually, linked, logged, nats

ORDER = Assignment("s", "actor", "w", idle_for=0.01)


async def send(link: BrokerConnection, turn_id: str, text: str) -> None:
    await link.append("inbox", ("s",), to_json(SendCall(turn_id, text)))


async def finished(seat: Executor) -> Ending:
    async with asyncio.timeout(SECONDS):
        return await seat.run()


# In a child


@asynccontextmanager
async def child(broker: Broker) -> AsyncIterator[ProcessExecutor]:
    async with asyncio.TaskGroup() as group:
        seat = ProcessExecutor(broker, [TARGET], "w")
        group.create_task(seat.talk())
        try:
            yield seat
        finally:
            seat.dismiss()


def gone(*pids: int) -> bool:
    """Whether none of these processes runs; one that waits to be collected does not."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    return not any(map(runs, pids))


async def progress(link: BrokerConnection, count: int = 1) -> str:
    """What the tool has said last."""

    async def told() -> str | None:
        found = [event for event in await logged(link, "s") if event.kind == "progress_made"]
        return found[count - 1].message if len(found) >= count else None

    return str(await eventually(told))


async def test_a_child_works_on_one_order_after_the_other():
    broker = nats()
    async with linked(broker) as link, child(broker) as seat:
        for turn_id in ("t1", "t2"):
            await send(link, turn_id, "pid")
            told: list[str | None] = []
            seat.begin(ORDER, told.append)
            assert await finished(seat) == "idle"
            assert told == [turn_id, None]
        done = ends(await logged(link, "s"))
        assert {one.value.text for one in done.values()} == {str(seat.pid)}
        assert seat.pid != os.getpid()


async def test_a_child_that_is_still_starting_is_waited_for_unless_it_is_about_a_stop():
    broker = nats()
    async with linked(broker) as link, child(broker) as seat:
        await send(link, "t1", "pid")
        seat.begin(ORDER, lambda turn_id: None)
        began = time.monotonic()
        assert await seat.ask(StopCall("t1", "NOW")) is None  # it is in its line all the same
        assert time.monotonic() - began < 1.0
        reply = await seat.ask(CloseCall("enough"))
        assert reply is not None
        assert await finished(seat) == "idle"
        assert ends(await logged(link, "s"))["t1"].status == "aborted"


async def test_a_child_whose_loop_is_blocked_answers_a_stop_and_says_so():
    broker = nats()
    async with linked(broker) as link, child(broker) as seat:
        await send(link, "t1", "block")
        seat.begin(ORDER, lambda turn_id: None)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(finished(seat))
            await progress(link)

            async def busy() -> bool:
                reply = await seat.ask(StopCall("t9", "NOW"))  # of a turn that is not there: it must get to block
                return reply is not None and reply.busy > 0 and "has not moved" in reply.message

            await eventually(busy)
            assert seat.kill()
            assert await ending == "died"


async def test_nothing_that_a_child_has_started_outlives_it():
    broker = nats()
    async with linked(broker) as link, child(broker) as seat:
        await send(link, "t1", "spawn")
        seat.begin(ORDER, lambda turn_id: None)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(finished(seat))
            grandchild = int(await progress(link))
            assert not gone(seat.pid, grandchild)
            seat.cut("the lease is lost")
            assert await ending == "died"

        async def all_gone() -> bool:
            return gone(seat.pid, grandchild)

        await eventually(all_gone)


async def test_of_a_child_that_has_died_nothing_is_heard_any_more():
    async with child(nats()) as seat:
        seat.begin(ORDER, lambda turn_id: None)
        seat.kill()

        async def noticed() -> bool:
            return not seat.alive

        await eventually(noticed)
        assert await finished(seat) == "died"
        assert await seat.ask(StopCall("t1")) is None


async def test_whoever_asks_while_a_child_dies_is_told_that():
    async with child(nats()) as seat, asyncio.TaskGroup() as group:
        seat.begin(ORDER, lambda turn_id: None)
        asked = group.create_task(seat.ask(CloseCall("enough")))
        await asyncio.sleep(0)
        seat.kill()
        reply = await asked
        assert reply is not None
        assert (reply.error, reply.status) == ("broken", "unknown")


async def test_a_child_makes_way_when_told():
    broker = nats()
    async with linked(broker) as link, child(broker) as seat:
        await send(link, "t1", "talk")
        told: list[str | None] = []
        seat.begin(ORDER, told.append)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(finished(seat))

            async def begun() -> bool:
                return told == ["t1"]

            await eventually(begun)
            seat.leave(0.0)
            assert await ending == "left"
        assert ends(await logged(link, "s"))["t1"].reason.kind == "lease_lost"


async def test_a_child_whose_agent_cannot_be_loaded_has_not_started_and_says_why(
    capfd: pytest.CaptureFixture[str],
):
    async with asyncio.TaskGroup() as group:
        seat = ProcessExecutor(nats(), ["tests.worker.cast:nobody"], "w")
        group.create_task(seat.talk())
        seat.begin(ORDER, lambda turn_id: None)
        assert await finished(seat) == "unstarted"
        assert "nobody" in seat.failure
    assert "nobody" in capfd.readouterr().err


# In this process


@asynccontextmanager
async def here(broker: Broker, *answers: object, **options: object) -> AsyncIterator[InlineExecutor]:
    agent = talker(*answers, name="actor", **options)
    workshop = WorkerLoop(broker, {"actor": agent}, "w")
    await workshop.open()
    yield InlineExecutor(workshop)
    await workshop.close()


async def test_a_seat_in_this_process_works_and_cannot_be_killed():
    broker = MemoryBroker()
    async with linked(broker) as link, here(broker, "one") as seat:
        await send(link, "t1", "hello")
        told: list[str | None] = []
        seat.begin(ORDER, told.append)
        reply = await seat.ask(CloseCall("enough"))
        assert reply is not None
        assert reply.error == "opening"
        assert await finished(seat) == "idle"
        assert ends(await logged(link, "s"))["t1"].value.text == "one"
        assert not seat.kill()
        assert told == ["t1", None]


async def test_work_that_nobody_can_do_fails_alone(caplog: pytest.LogCaptureFixture):
    broker = MemoryBroker()
    async with linked(broker) as link, here(broker) as seat:
        await link.append("log", ("s",), b'{"records": "of another kind"}')
        seat.begin(ORDER, lambda turn_id: None)
        assert await finished(seat) == "failed"
    assert "the work failed" in caplog.text


async def test_what_is_asked_of_a_blocked_loop_is_not_waited_for():
    broker = MemoryBroker()
    replies: list[object] = []

    @tool
    async def block() -> str:
        """Ask from another thread, and wait here until it has its answers."""

        async def ask() -> None:
            while not (reply := await seat.ask(StopCall("t9"))).busy:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)  # real time: until somebody notices that the loop is blocked
            replies.extend([reply, await seat.ask(CloseCall("enough"))])

        import threading

        thread = threading.Thread(target=lambda: asyncio.run(ask()))
        thread.start()
        thread.join(SECONDS)
        return "at last"

    async with linked(broker) as link, here(broker, [Call("block")], "end", tools=[block]) as seat:
        await send(link, "t1", "hello")
        seat.begin(ORDER, lambda turn_id: None)
        assert await finished(seat) == "idle"
    stop, close = replies
    assert "has not moved" in stop.message  # type: ignore[attr-defined]
    assert close is None


async def test_a_seat_in_this_process_makes_way_and_lets_go():
    broker = MemoryBroker()
    for way in ("leave", "cut"):
        async with linked(broker) as link, here(broker, "one") as seat:
            seat.begin(ORDER, lambda turn_id: None)
            seat.leave(0.0) if way == "leave" else seat.cut("the lease is lost")
            assert await finished(seat) == "left"
            assert await link.keys("inbox") == []
