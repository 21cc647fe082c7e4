"""The look at the record of stops: shared requests, answers that are too old, a broker that is away, and the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from safepoint.agent import Agent, ToolContext, tool
from safepoint.models.scripted import Call
from safepoint.worker import BrokerError, MemoryBroker
from safepoint.worker.broker import Key, StreamEntry, StreamName
from safepoint.worker.memory import MemoryConnection
from safepoint.worker.protocol import StopCall, to_json
from safepoint.worker.stop_reader import READS, StallDetector, StopReader
from tests.internal.worker.test_order_runner import at_work, record, send
from tests.kit.agents import talker
from tests.kit.waiting import loop_until
from tests.kit.workers import ends, logged


class Counted:
    """A link whose record of stops can be held back, or fail, and which counts how often it is read."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.connection = MemoryConnection(broker._hub, 10.0)
        self.requests = 0
        self.failures = 0
        self.open = asyncio.Event()
        self.open.set()
        self.connection.last_per_key = self._last_per_key  # type: ignore[method-assign]  # everything else is as it is

    async def _last_per_key(self, stream: StreamName, under: Key = (), after: int = 0) -> list[StreamEntry]:
        if stream == "stops":
            self.requests += 1
        found = await MemoryConnection.last_per_key(self.connection, stream, under, after)
        await self.open.wait()
        if self.failures:
            self.failures -= 1
            raise BrokerError("it does not answer")
        return found


class LatePulse(StallDetector):
    """A process that stood still during the next so many requests."""

    late = 0

    def stalled_since(self, moment: float) -> bool:
        self.late -= 1
        return self.late >= 0


class Reading:
    """A reader at work on session "s"."""

    def __init__(self) -> None:
        self.counted = Counted(MemoryBroker())
        self.pulse = LatePulse()
        self.applied: list[str] = []
        self.reader = StopReader(self.counted.connection, "s", self._apply, self.pulse)

    def _apply(self, call: StopCall) -> None:
        self.applied.append(call.turn_id)

    async def record(self, turn_id: str) -> None:
        await self.counted.connection.append("stops", ("s", turn_id), to_json(StopCall(turn_id, "NOW")))


@asynccontextmanager
async def reading() -> AsyncIterator[Reading]:
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        made = Reading()
        group.create_task(made.reader.keep_reading())
        yield made
        made.reader.close()


async def test_those_who_look_in_one_moment_share_one_request() -> None:
    async with reading() as made:
        await made.record("t1")
        await asyncio.gather(*(made.reader.catch_up() for _ in range(20)))
        assert (made.applied, made.counted.requests) == (["t1"], 1)
        await made.reader.catch_up()
        assert (made.applied, made.counted.requests) == (["t1"], 2)


async def test_who_looks_while_a_request_is_on_its_way_waits_for_the_next_one() -> None:
    async with reading() as made, asyncio.TaskGroup() as group:
        made.counted.open.clear()
        first = group.create_task(made.reader.catch_up())
        await loop_until(lambda: made.counted.requests == 1)
        await made.record("t1")  # after the broker has read what it will answer
        second = group.create_task(made.reader.catch_up())
        await asyncio.sleep(0)
        made.counted.open.set()
        await first
        await second
        assert (made.applied, made.counted.requests) == (["t1"], 2)


async def test_an_answer_from_before_the_process_stood_still_is_not_believed() -> None:
    async with reading() as made:
        made.pulse.late = 1
        await made.reader.catch_up()
        assert made.counted.requests == 2
        made.pulse.late = 1000  # it is late all the time: it is busy, and goes on all the same
        await made.reader.catch_up()
        assert made.counted.requests == 2 + READS


async def test_a_look_lasts_until_the_broker_answers_or_the_reader_is_closed() -> None:
    async with reading() as made, asyncio.TaskGroup() as group:
        made.counted.failures = 2
        await made.record("t1")
        await made.reader.catch_up()
        assert (made.applied, made.counted.requests) == (["t1"], 3)
        made.counted.open.clear()
        waiting = group.create_task(made.reader.catch_up())
        await loop_until(lambda: made.counted.requests == 4)
        made.reader.close()
        await waiting
        await made.reader.catch_up()
        assert made.counted.requests == 4


def payer(ran: list[str]) -> Agent:
    @tool
    async def pay(n: int, ctx: ToolContext) -> str:
        ran.append(ctx.call_id)
        return "paid"

    return talker([Call("pay", n=number) for number in range(20)], "done", tools=[pay])


async def test_a_round_of_calls_costs_one_look_and_the_end_of_the_turn_another() -> None:
    counted, ran = Counted(MemoryBroker()), list[str]()
    await send(counted.connection, "t1")
    before = 0

    def heard(turn_id: str | None) -> None:
        nonlocal before
        before = before or counted.requests

    async with at_work(counted.connection, payer(ran)) as work:
        work.runner._on_turn = heard
        assert await work.left() == "idle"
    assert len(ran) == 20
    # One more is that of the worker itself, which looks when a turn has ended.
    assert counted.requests - before <= 3


async def test_a_broken_connection_lets_no_tool_begin_and_the_wait_ends_when_the_lease_is_lost() -> None:
    counted, ran = Counted(MemoryBroker()), list[str]()
    await send(counted.connection, "t1")
    async with at_work(counted.connection, payer(ran)) as work:
        await work.begins("t1")
        counted.open.clear()
        await loop_until(lambda: any(e.event.kind == "call_recorded" for e in work.session._engine.log._recent))
        work.runner.revoke("the lease is lost")
        assert await work.left() == "left"
    assert ran == []


async def test_the_wait_for_a_broken_connection_ends_at_a_stop() -> None:
    counted, ran = Counted(MemoryBroker()), list[str]()
    await send(counted.connection, "t1")
    async with at_work(counted.connection, payer(ran)) as work:
        await work.begins("t1")
        counted.open.clear()
        work.runner.stop(StopCall("t1", "NOW"))
        outcome = (await work.session.turns["t1"]).outcome
        assert outcome.status == "aborted"
        counted.open.set()
        assert await work.left() == "idle"
    assert ran == []


async def test_a_stop_that_was_recorded_and_not_heard_keeps_the_next_tool_from_beginning() -> None:
    counted, ran = Counted(MemoryBroker()), list[str]()
    await send(counted.connection, "t1")
    async with at_work(counted.connection, payer(ran)) as work:
        await work.begins("t1")
        await record(counted.connection, "t1")  # and nobody says so
        assert await work.left() == "idle"
    assert ran == []
    assert ends(await logged(counted.connection, "s"))["t1"].status == "aborted"
