"""Owns the tests of a worker's control plane: what it takes, gives up, finds again, and how it makes way."""

from safepoint.models.scripted import Stall
from tests.kit.agents import talker
from tests.kit.workers import New, each_broker, ends, hosting, linked, logged, memory, until_kind, working


@each_broker
async def test_an_idle_session_gives_its_place_to_one_that_has_work(new: New):
    broker = new()
    async with working(talker("one", "two"), broker, concurrency=1, idle_for=30.0), hosting(broker) as host:
        for session in ("first", "second"):
            await host.create(session)
            await host.send(session, "hello")
            await until_kind(host, session, "turn_ended")


@each_broker
async def test_a_session_pinned_to_a_worker_runs_there_and_nowhere_else(new: New):
    broker = new()
    async with (
        working(talker(*["one"] * 9), broker, name="w1") as first,
        working(talker(*["two"] * 9), broker, name="w2") as second,
        hosting(broker) as host,
        linked(broker) as connection,
    ):
        for number in range(3):
            session = f"s{number}"
            await host.create(session, worker="w2")
            await host.send(session, "hello", turn_id="t")
            await until_kind(host, session, "turn_ended")
            assert ends(await logged(connection, session))["t"].value.text == "two"
        assert (first.stats.taken, second.stats.taken) == (0, 3)


@each_broker
async def test_a_worker_that_is_to_end_its_work_for_good_does(new: New):
    broker = new()
    async with linked(broker) as connection, hosting(broker) as host:
        async with working(talker([Stall()]), broker) as worker:
            await host.create("s")
            await host.send("s", "first", turn_id="t1")
            await until_kind(host, "s", "turn_started")
            await worker.close(give_back=False, reason="the building is closed")
        reason = ends(await logged(connection, "s"))["t1"].reason
        assert (reason.kind, reason.message) == ("shutdown", "the building is closed")
        assert await connection.pending_sessions() == set()


async def test_workers_say_that_they_are_there_and_that_they_have_gone():
    broker = memory()
    async with hosting(broker) as host:
        async with working(talker(), broker, name="w1"), working(talker(), broker, name="w2", concurrency=3):
            found = {one.name: one for one in await host.workers()}
            assert set(found) == {"w1", "w2"}
            assert (found["w2"].agents, found["w2"].concurrency, found["w2"].isolation) == (("talker",), 3, "task")
            assert not found["w2"].draining
        assert await host.workers() == []
