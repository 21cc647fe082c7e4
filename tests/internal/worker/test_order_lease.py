"""Owns the tests of one order in a worker's hands: its lease, the stops that reach it, and what becomes of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from safepoint.worker import MemoryBroker
from safepoint.worker.broker import BrokerConnection, Queue
from safepoint.worker.lease import OrderLease, TakenOrder
from safepoint.worker.memory import MemoryConnection
from safepoint.worker.protocol import (
    Assignment,
    Call,
    CloseCall,
    Ending,
    OwnerEnded,
    Reply,
    SendCall,
    Stats,
    StopCall,
    from_json,
    to_json,
)
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, linked

ANY: Queue = ("any", "helper")
GRACE = 0.1


class Chair:
    """A seat on which a test sits: it notes what it is told, and ends when the test says so."""

    def __init__(self, *, killable: bool = True, answers: bool = True, successor: str | None = None) -> None:
        self.killable, self.answers, self.successor = killable, answers, successor
        self.asked: list[Call] = []
        self.cuts: list[str] = []
        self.kills = 0
        self.held_until: list[float] = []
        self.over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.on_turn: Callable[[str | None], object]

    def begin(
        self,
        assignment: Assignment,
        on_turn: Callable[[str | None], object],
        on_waiting: Callable[[bool], object] = lambda waits: None,
    ) -> None:
        self.on_turn = on_turn

    def lease_renewed(self, until: float) -> None:
        self.held_until.append(until)

    def end(self, ending: Ending) -> None:
        if not self.over.done():
            self.over.set_result(ending)

    async def run(self) -> Ending:
        return await self.over

    async def request(self, call: Call) -> Reply | None:
        self.asked.append(call)
        turn_id = getattr(call, "turn_id", "")
        return Reply(status="accepted", turn_id=self.successor or turn_id) if self.answers else None

    def hand_over(self, within: float) -> None:
        self.end("left")

    def revoke(self, reason: str) -> None:
        self.cuts.append(reason)
        self.end("left")

    def kill(self) -> bool:
        if self.killable:
            self.kills += 1
            self.end("died")
        return self.killable


class Held:
    """A hold of session "s" at work."""

    def __init__(
        self, connection: BrokerConnection, chair: Chair, stats: Stats, ending: "asyncio.Task[Ending]"
    ) -> None:
        self.connection, self.chair, self.stats, self._ending = connection, chair, stats, ending

    async def ring(self, call: Call) -> Reply:
        read: Reply = from_json(Reply, await self.connection.request(("ctl", "s"), to_json(call), 5))
        return read

    async def ended(self) -> Ending:
        async with asyncio.timeout(SECONDS):
            return await self._ending


@asynccontextmanager
async def holding(broker: MemoryBroker, connection: BrokerConnection, chair: Chair) -> AsyncIterator[Held]:
    await connection.enqueue(ANY, "s", b"data")
    (order,) = await connection.take([ANY], 1, 5)
    stats = Stats()
    order_lease = OrderLease(connection, TakenOrder(order, ANY, Assignment("s", "helper", "w")), chair, GRACE, stats)
    async with asyncio.TaskGroup() as group:
        held = Held(connection, chair, stats, group.create_task(order_lease.run()))

        async def there() -> bool:
            return bool(broker._hub.serving.get(("ctl", "s")))

        await eventually(there)
        yield held
        chair.end("idle")


async def test_an_order_is_held_for_as_long_as_the_work_takes_and_then_it_is_done():
    broker = MemoryBroker(lease=0.8)
    async with linked(broker) as connection, linked(broker) as other:
        async with holding(broker, connection, Chair()) as held:
            assert await other.take([ANY], 1, 2 * 0.8) == []
            held.chair.end("idle")
            assert await held.ended() == "idle"
        assert await connection.pending_sessions() == set()


async def test_whoever_works_is_told_until_when_the_order_is_held():
    broker = MemoryBroker(lease=0.6)
    async with linked(broker) as connection:
        chair, began = Chair(), time.monotonic()
        async with holding(broker, connection, chair):

            async def renewed() -> bool:
                return len(chair.held_until) > 2

            await eventually(renewed)
        assert began < chair.held_until[0] <= time.monotonic() + 0.6
        assert chair.held_until == sorted(set(chair.held_until)), "each renewal gives more time"


async def test_the_end_of_a_process_is_told_to_whoever_has_the_session_next():
    broker = MemoryBroker(lease=30.0)
    endings: list[tuple[Ending, bool]] = [("died", True), ("failed", False)]
    for ending, told in endings:
        async with linked(broker) as connection:
            async with holding(broker, connection, Chair()) as held:
                held.chair.end(ending)
                await held.ended()
            notes = [entry.data for entry in await connection.read("inbox", ("s",))]
            assert notes == ([to_json(OwnerEnded("w/1"))] if told else [])
            await connection.purge("inbox", ("s",), 2**62)
            (order,) = await connection.take([ANY], 1, 5)
            await order.complete()


async def test_what_came_in_the_moment_of_the_end_has_an_order_again():
    broker = MemoryBroker()
    async with linked(broker) as connection:
        async with holding(broker, connection, Chair()) as held:
            await connection.append("inbox", ("s",), to_json(SendCall("t", "hello")))
            held.chair.end("idle")
            await held.ended()
        (again,) = await connection.take([ANY], 1, 5)
        assert (again.session, again.data, again.attempt) == ("s", b"data", 1)


async def test_what_is_left_is_free_at_once_and_what_failed_a_little_later():
    broker = MemoryBroker(lease=30.0)
    endings: list[tuple[Ending, bool]] = [("left", True), ("failed", False), ("died", False)]
    for ending, at_once in endings:
        async with linked(broker) as connection:
            async with holding(broker, connection, Chair()) as held:
                held.chair.end(ending)
                assert await held.ended() == ending
            found = await connection.take([ANY], 1, 0)
            assert bool(found) == at_once
            (order,) = found or await connection.take([ANY], 1, 5)
            assert order.attempt == (1 if ending == "left" else 2), "a hand-over is no failed attempt"
            await order.complete()


async def test_a_session_that_was_lost_to_another_owner_is_not_settled():
    broker = MemoryBroker(lease=30.0)
    async with linked(broker) as connection:
        async with holding(broker, connection, Chair()) as held:
            held.chair.end("fenced")
            assert await held.ended() == "fenced"
            assert held.stats.fenced == 1
        assert await connection.pending_sessions() == {"s"}
        assert await connection.take([ANY], 1, 0) == []


async def test_whoever_was_silent_for_longer_than_its_lease_has_lost_it():
    broker = MemoryBroker(lease=0.2)
    async with linked(broker) as connection, linked(broker) as other:
        async with holding(broker, connection, Chair()) as held:
            time.sleep(0.3)  # real time: the whole process was frozen, and with it the one who renews
            assert await held.ended() == "left"
            assert held.chair.cuts == ["the lease is lost"]
        (heirs,) = await other.take([ANY], 1, 5)
        await heirs.renew()
        assert heirs.attempt == 2


async def test_a_stop_is_passed_on_and_its_answer_is_given_back():
    broker = MemoryBroker()
    async with linked(broker) as connection, holding(broker, connection, Chair()) as held:
        reply = await held.ring(StopCall("t1", "AFTER_TOOLS"))
        assert (reply.status, reply.turn_id) == ("accepted", "t1")
        assert held.chair.asked == [StopCall("t1", "AFTER_TOOLS")]


async def test_a_stop_that_was_recorded_before_is_passed_on_first_thing_and_once():
    broker = MemoryBroker(lease=1.0)
    async with linked(broker) as connection:
        await connection.append("stops", ("s", "t1"), to_json(StopCall("t1", "SAFE_POINT")))
        await connection.append("stops", ("other", "t1"), to_json(StopCall("t1", "NOW")))
        async with holding(broker, connection, Chair()) as held:

            async def passed_on() -> bool:
                return bool(held.chair.asked)

            await eventually(passed_on)
            await connection.append("stops", ("s", "t2"), to_json(StopCall("t2", "SAFE_POINT")))

            async def both() -> bool:
                return len(held.chair.asked) > 1

            await eventually(both)
            assert held.chair.asked == [StopCall("t1", "SAFE_POINT"), StopCall("t2", "SAFE_POINT")]


async def test_a_recorded_stop_that_was_not_answered_is_passed_on_again():
    broker = MemoryBroker(lease=1.0)
    async with linked(broker) as connection:
        await connection.append("stops", ("s", "t1"), to_json(StopCall("t1", "SAFE_POINT")))
        async with holding(broker, connection, Chair(answers=False)) as held:

            async def again() -> bool:
                return len(held.chair.asked) > 1

            await eventually(again)


async def test_a_record_that_cannot_be_read_stops_its_turn_and_holds_no_other_up():
    broker = MemoryBroker()
    async with linked(broker) as connection:
        await connection.append("stops", ("s", "t1"), b"nonsense")
        await connection.append("stops", ("s", "t2"), to_json(StopCall("t2", "SAFE_POINT")))
        async with holding(broker, connection, Chair()) as held:

            async def both() -> bool:
                return [getattr(call, "turn_id", None) for call in held.chair.asked] == ["t1", "t2"]

            await eventually(both)


async def test_a_turn_that_does_not_end_has_its_process_ended_after_the_grace():
    broker = MemoryBroker(lease=30.0)
    async with linked(broker) as connection:
        async with holding(broker, connection, Chair()) as held:
            held.chair.on_turn("t1")
            began = time.monotonic()
            await held.ring(StopCall("t1", "NOW"))
            assert await held.ended() == "died"
            assert time.monotonic() - began >= GRACE
            assert (held.stats.killed, held.chair.kills) == (1, 1)
        assert await connection.take([ANY], 1, 0)  # what was ended by force is sealed at once


async def test_a_stop_that_leaves_time_is_not_enforced_before_that_is_over():
    broker = MemoryBroker()
    async with linked(broker) as connection, holding(broker, connection, Chair()) as held:
        held.chair.on_turn("t1")
        began = time.monotonic()
        await held.ring(StopCall("t1", "SAFE_POINT", within=0.3))
        assert await held.ended() == "died"
        assert time.monotonic() - began >= 0.3 + GRACE


async def test_only_the_turn_that_runs_and_was_stopped_can_cost_the_process():
    broker = MemoryBroker()
    async with linked(broker) as connection, holding(broker, connection, Chair()) as held:
        held.chair.on_turn("t1")
        await held.ring(StopCall("t2", "NOW"))  # it waits
        await held.ring(StopCall("t1", "SAFE_POINT"))  # without a limit
        await asyncio.sleep(3 * GRACE)  # real time: nothing happens
        assert held.chair.kills == 0


async def test_a_turn_that_ends_in_time_costs_nothing_nor_does_the_next_one():
    broker = MemoryBroker()
    async with linked(broker) as connection, holding(broker, connection, Chair()) as held:
        held.chair.on_turn("t1")
        await held.ring(StopCall("t1", "NOW"))
        held.chair.on_turn(None)
        held.chair.on_turn("t2")
        await asyncio.sleep(3 * GRACE)  # real time: nothing happens
        assert held.chair.kills == 0


async def test_a_stop_of_a_turn_that_was_handed_over_is_enforced_on_its_heir():
    broker = MemoryBroker()
    async with linked(broker) as connection, holding(broker, connection, Chair(successor="t2")) as held:
        held.chair.on_turn("t2")
        await held.ring(StopCall("t1", "NOW"))
        assert await held.ended() == "died"


async def test_a_process_that_does_not_answer_is_answered_for():
    broker = MemoryBroker()
    async with linked(broker) as connection, holding(broker, connection, Chair(answers=False)) as held:
        stop = await held.ring(StopCall("t1", "AFTER_TOOLS"))
        assert (stop.status, stop.busy > 0, stop.error) == ("unknown", True, "")
        assert "does not answer" in stop.message
        assert (await held.ring(CloseCall("enough"))).error == "broken"


async def test_nonsense_is_answered_as_such():
    broker = MemoryBroker()
    async with linked(broker) as connection, holding(broker, connection, Chair()):
        reply: Reply = from_json(Reply, await connection.request(("ctl", "s"), b"nonsense", 5))
        assert (reply.ok, reply.status, reply.error) == (False, "unknown", "broken")


async def test_nobody_answers_for_an_order_that_has_ended():
    broker = MemoryBroker()
    async with linked(broker) as connection:
        async with holding(broker, connection, Chair()) as held:
            held.chair.end("idle")
            await held.ended()
        assert isinstance(connection, MemoryConnection)
        assert broker._hub.serving == {}
