"""Owns the tests that look inside, beside those of `tests/worker/test_supervisor.py`.

Owns the tests of a worker's control plane: what it takes, gives up, finds again, and how it makes way.
"""

import asyncio
import json

import pytest

from safepoint.models.scripted import Stall
from safepoint.worker import Broker, MemoryBroker
from safepoint.worker.broker import BrokerConnection, Queue
from safepoint.worker.protocol import Placement, SendCall, to_json
from tests.kit.agents import gated_agent, talker
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

ANY: Queue = ("any", "talker")


PLACE = to_json(Placement("talker"))


async def finished(connection: BrokerConnection, *sessions: str) -> None:
    """Until each of these sessions has ended a turn, and nobody has an order any more."""

    async def all_done() -> bool:
        done = [ends(await logged(connection, session)) for session in sessions]
        return all(done) and not await connection.pending_sessions()

    await eventually(all_done)


async def test_no_more_orders_are_taken_than_there_are_places():
    broker = memory()
    agent = talker(*[[Stall()]] * 5)
    async with linked(broker) as connection:
        for number in range(5):
            await connection.append("inbox", (f"s{number}",), to_json(SendCall(f"t{number}", "hello")))
            await connection.enqueue(ANY, f"s{number}", PLACE)
        async with working(agent, broker, concurrency=2) as worker, hosting(broker) as host:

            async def full() -> bool:
                return worker.stats.taken == 2

            await eventually(full)
            assert [one.concurrency for one in await host.workers()] == [2]
            with pytest.raises(AssertionError):  # it takes no third one
                await eventually(lambda: _more_than(worker.stats.taken, 2), 0.3)


async def _more_than(count: int, limit: int) -> bool:
    return count > limit


@each_broker
async def test_a_message_without_an_order_is_found(new: New):
    broker = new(lease=0.4)
    async with linked(broker) as connection, working(talker("found"), broker):
        await connection.append("sessions", ("s",), PLACE)
        await connection.append(
            "inbox", ("s",), to_json(SendCall("t", "hello"))
        )  # whoever wrote it died before it ordered
        await finished(connection, "s")
        assert ends(await logged(connection, "s"))["t"].value.text == "found"


async def test_a_session_pinned_to_a_worker_that_is_gone_waits_for_it():
    broker = memory()
    async with linked(broker) as connection, hosting(broker) as host:
        async with working(talker("never"), broker, name="w1"):
            await host.create("s", worker="w2")
            view = await host.send("s", "hello", turn_id="t")
            assert view.status == "queued"
        async with working(talker("at last"), broker, name="w2"):
            await finished(connection, "s")
        assert ends(await logged(connection, "s"))["t"].value.text == "at last"


@each_broker
async def test_an_order_that_was_tried_too_often_is_a_dead_letter_and_its_turn_is_ended(new: New):
    broker = new(lease=30.0)
    async with linked(broker) as connection:
        await connection.append("sessions", ("s",), PLACE)
        await connection.append("inbox", ("s",), to_json(SendCall("t", "hello")))
        await connection.enqueue(ANY, "s", PLACE)
        await give_back(connection, 2)
        agent = talker("it was in the inbox: it has never been tried")
        async with working(agent, broker, attempts=2) as worker:
            await finished(connection, "s")
            assert worker.stats.dead == 1
        (letter,) = await connection.read("dead", ("s",))
        told = json.loads(letter.data)
        assert (told["session"], told["attempts"]) == ("s", 2)
        assert "2 attempts" in told["why"]


async def give_back(connection: BrokerConnection, times: int) -> None:
    """As often as that somebody took the order and came to nothing."""
    for _ in range(times):
        (gated_agent,) = await connection.take([ANY], 1, 5)
        await gated_agent.give_back()


@each_broker
async def test_an_order_whose_end_cannot_be_written_either_is_dropped_in_the_end(new: New):
    broker = new(lease=30.0)
    async with linked(broker) as connection:
        await connection.append("log", ("s",), b"nobody can read this")
        await connection.enqueue(ANY, "s", PLACE)
        await give_back(connection, 6)
        async with working(talker(), broker, attempts=1) as worker:

            async def dropped() -> bool:
                return not await connection.pending_sessions()

            await eventually(dropped)
            assert worker.stats.taken == 1


@each_broker
async def test_a_log_that_nobody_can_read_does_not_take_the_worker_with_it(new: New):
    broker = new()
    async with linked(broker) as connection, working(talker("fine"), broker) as worker, hosting(broker) as host:
        await connection.append("log", ("broken",), b'{"records": "nobody can read this"}')
        await connection.enqueue(ANY, "broken", PLACE)

        async def tried() -> bool:
            return worker.stats.taken > 0

        await eventually(tried)
        await host.create("s")
        await host.send("s", "hello")
        ended = await until_kind(host, "s", "turn_ended")
        assert ended.event.outcome.value.text == "fine"  # type: ignore[union-attr]


@each_broker
async def test_an_order_that_nobody_can_read_is_given_up_like_any_other(new: New):
    broker = new(lease=30.0)
    async with linked(broker) as connection:
        await connection.enqueue(ANY, "s", b"from another world")
        await give_back(connection, 6)
        async with working(talker(), broker, attempts=1):

            async def dropped() -> bool:
                return not await connection.pending_sessions()

            await eventually(dropped)


async def test_an_order_for_what_is_being_worked_on_here_is_given_back():
    broker = nats()
    agent, released = gated_agent("one")
    async with linked(broker) as connection, working(agent, broker) as worker, hosting(broker) as host:
        await host.create("s")
        await host.send("s", "hello", turn_id="t")
        await until_kind(host, "s", "turn_started")
        await connection.enqueue(("at", worker.name), "s", PLACE)  # a second one, which there should not be

        async def given_back() -> bool:
            return worker.stats.taken >= 2

        await eventually(given_back)
        released.set()
        await until_kind(host, "s", "turn_ended")
        await finished(connection, "s")
        assert list(ends(await logged(connection, "s"))) == ["t"]


@each_broker
async def test_a_worker_that_makes_way_gives_its_turn_to_another_one_and_what_waits_too(new: New):
    broker = new()
    async with linked(broker) as connection, hosting(broker) as host:
        async with working(talker([Stall()]), broker, name="old"):
            await host.create("s")
            await host.send("s", "first", turn_id="t1")
            await host.send("s", "second", turn_id="t2")
            await until_kind(host, "s", "turn_started")
            await until_kind(host, "s", "turn_queued", turn_id="t2")
        assert ends(await logged(connection, "s"))["t1"].reason.kind == "lease_lost"
        assert await connection.pending_sessions() == {"s"}
        assert await host.workers() == []
        async with working(talker("went on", "what had waited"), broker, name="new") as worker:
            await finished(connection, "s")
            done = ends(await logged(connection, "s"))
            successor = next(
                event.turn_id
                for event in await logged(connection, "s")
                if event.kind == "turn_queued" and event.continues == "t1"
            )
            assert (done[successor].value.text, done["t2"].value.text) == ("went on", "what had waited")
            assert worker.stats.redelivered == 0, "a hand-over is no failed attempt"
            assert await connection.read("inbox", ("s",)) == []


class Fragile:
    """A broker whose links can all be closed from outside."""

    def __init__(self) -> None:
        self._broker = MemoryBroker()
        self.links: dict[str, BrokerConnection] = {}

    async def connect(self, name: str) -> BrokerConnection:
        self.links[name] = await self._broker.connect(name)
        return self.links[name]


async def test_a_worker_that_has_lost_its_broker_for_good_still_ends_when_told():
    broker: Broker = Fragile()
    async with working(talker(), broker, name="w"):
        await broker.links["w (control)"].close()  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)  # real time: its own thread has to notice


@each_broker
async def test_agents_of_one_worker_take_turns(new: New):
    broker = new()
    busy, rare = talker(*["one"] * 30, name="busy"), talker("two", name="rare")
    async with linked(broker) as connection:
        for number in range(30):
            await connection.append("sessions", (f"s{number}",), to_json(Placement("busy")))
            await connection.append("inbox", (f"s{number}",), to_json(SendCall(f"t{number}", "hello")))
            await connection.enqueue(("any", "busy"), f"s{number}", to_json(Placement("busy")))
        await connection.append("sessions", ("r",), to_json(Placement("rare")))
        await connection.append("inbox", ("r",), to_json(SendCall("r1", "hello")))
        await connection.enqueue(("any", "rare"), "r", to_json(Placement("rare")))
        async with working({"busy": busy, "rare": rare}, broker, concurrency=1, idle_for=0.0):

            async def served() -> bool:
                return bool(ends(await logged(connection, "r")))

            await eventually(served)
            assert len(await connection.pending_sessions()) > 20, "it did not wait until the other one had nothing left"


@each_broker
async def test_a_pinned_session_whose_worker_came_back_without_its_agent_ends_its_turns(new: New):
    broker = new()
    async with hosting(broker) as host, linked(broker) as connection:
        async with working(talker("one", name="poet"), broker, name="w1"):
            await host.create("s", "poet", worker="w1")
        turn = await host.send("s", "hello", turn_id="t1")
        await host.send("s", "and this", turn_id="t2")
        ack = await host.stop("s", "t2")
        assert (turn.status, ack.status, ack.level) == ("queued", "accepted", "recorded")
        async with working(talker(name="painter"), broker, name="w1", attempts=2) as worker:
            ended = await until_kind(host, "s", "turn_ended", turn_id="t1")
            error = ended.event.outcome.error  # type: ignore[union-attr]
            assert "worker 'w1' has no agent 'poet': it has painter" in str(error)
            await ack.settled(SECONDS)
            assert (await host.turn("s", "t2")).status == "aborted"
            await finished(connection, "s")
            assert (worker.stats.dead, worker.stats.taken) == (0, 1)
        assert await connection.read("dead", ("s",)) == []


@each_broker
async def test_a_message_of_a_newer_server_ends_and_is_seen_until_then(new: New):
    broker = new()
    async with hosting(broker) as host, linked(broker) as connection:
        await connection.append("sessions", ("s",), PLACE)
        data = json.dumps({"turn_id": "t1", "text": "hello", "when_busy": "whenever"}).encode()
        await connection.append("inbox", ("s",), data)
        assert (await host.turn("s", "t1")).status == "queued"
        async with working(talker("two"), broker):
            await host.send("s", "hello again", turn_id="t2")
            await until_kind(host, "s", "turn_ended", turn_id="t2")
            view = await host.turn("s", "t1")
            assert view.status == "failed"
            assert "when_busy: Input should be" in str(view.outcome.error)  # type: ignore[union-attr]
            assert [letter.data for letter in await connection.read("dead", ("s",))] == [data]
