"""Owns the tests that look inside, beside those of `tests/worker/test_directory.py`.

Owns the tests of what a server knows of sessions elsewhere: which there are, where they may run, how they stand.
"""

import asyncio

import pytest

from safepoint.errors import UsageError
from safepoint.models.scripted import Stall
from safepoint.session import NotFound
from safepoint.worker.broker import BrokerConnection
from safepoint.worker.protocol import Placement, SendCall, StopCall, from_json, to_json
from tests.kit.agents import talker
from tests.kit.waiting import eventually
from tests.kit.workers import New, each_broker, hosting, linked, memory, until_kind, working


@each_broker
async def test_two_who_create_a_session_at_once_get_the_same_one(new: New):
    broker = new()
    agents = {"painter": talker(name="painter"), "poet": talker(name="poet")}
    async with working(agents, broker), hosting(broker) as one, hosting(broker) as other, linked(broker) as connection:
        creating = (host.create("s", name) for host in (one, other) for name in agents)
        found = await asyncio.gather(*creating, return_exceptions=True)
        kept = await connection.last("sessions", ("s",))
        assert kept is not None
        place: Placement = from_json(Placement, kept.data)
        views = [one for one in found if not isinstance(one, UsageError)]
        assert [view.agent for view in views] == [place.agent] * 2  # type: ignore[union-attr]
        assert len(found) == 4, "who asked for the other agent is told that it cannot be had"


async def nothing_ordered(connection: BrokerConnection) -> bool:
    return not await connection.pending_sessions()


@each_broker
async def test_sessions_are_listed_the_newest_last_with_what_runs_in_them(new: New):
    broker = new()
    async with working(talker("one", [Stall()], "two"), broker), hosting(broker) as host, hosting(broker) as other:
        for session in ("a", "b", "c"):
            await host.create(session)
        await host.send("b", "hello")
        await until_kind(host, "b", "session_closed")
        async with linked(broker) as connection:
            await eventually(lambda: nothing_ordered(connection))  # its order is settled after that
        await host.send("a", "hello", turn_id="t")
        await until_kind(host, "a", "turn_started")
        views = await other.sessions()
        assert [view.id for view in views] == ["c", "b", "a"]
        assert [(view.live, view.last_seq > 0) for view in views] == [(False, False), (False, True), (True, True)]
        assert [(turn.id, turn.status) for turn in views[-1].turns] == [("t", "running")]
        await host.stop("a", "t")
        await until_kind(host, "a", "turn_ended")


async def test_a_turn_that_no_worker_has_seen_is_queued_or_on_its_way_to_be_stopped():
    broker = memory()
    async with hosting(broker) as host, linked(broker) as connection:
        await connection.append("sessions", ("s",), to_json(Placement("nobody")))
        await host.send("s", "hello", turn_id="t1")
        await host.send("s", "hello", turn_id="t2")
        await host.stop("s", "t2")
        assert [(turn.id, turn.status) for turn in (await host.session("s")).turns] == [
            ("t1", "queued"),
            ("t2", "stopping"),
        ]
        assert (await host.turn("s", "t1")).status == "queued"
        with pytest.raises(NotFound, match="no turn 't3'"):
            await host.turn("s", "t3")


@each_broker
async def test_what_another_version_has_written_hides_nothing_of_the_rest(new: New):
    broker = new()
    async with working(talker(), broker, name="w"), hosting(broker) as host, linked(broker) as connection:
        await connection.append("workers", ("from the future",), b'{"name": 3}')
        assert [worker.name for worker in await host.workers()] == ["w"]
        await connection.append("sessions", ("s",), to_json(Placement("nobody")))
        await connection.append("inbox", ("s",), b'{"of": "the future"}')
        await connection.append("inbox", ("s",), to_json(SendCall("t", "hello")))
        assert [turn.id for turn in (await host.session("s")).turns] == ["t"]


async def test_a_stop_of_another_session_is_none_of_this_one():
    broker = memory()
    async with hosting(broker) as host, linked(broker) as connection:
        for session in ("s", "other"):
            await connection.append("sessions", (session,), to_json(Placement("nobody")))
        await connection.append("stops", ("other", "t"), to_json(StopCall("t")))
        await host.send("s", "hello", turn_id="t")
        assert (await host.turn("s", "t")).status == "queued"


async def test_a_worker_that_falls_silent_is_not_listed_for_ever(monkeypatch: pytest.MonkeyPatch):
    from safepoint.worker.broker import RETENTION, Retention

    monkeypatch.setitem(RETENTION, "workers", Retention(newest_only=True, seconds=0.2))
    broker = memory()
    async with hosting(broker) as host, working(talker(), broker):
        assert len(await host.workers()) == 1

        async def gone() -> bool:
            return await host.workers() == []

        await eventually(gone)
