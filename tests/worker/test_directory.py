"""Owns the tests of what a server knows of sessions elsewhere: which there are, where they may run, how they stand."""

import pytest

from safepoint.errors import UsageError
from safepoint.session import NotFound, SessionEnded
from tests.kit.agents import talker
from tests.kit.workers import New, each_broker, hosting, memory, working


async def test_without_a_worker_there_is_nothing_to_open():
    async with hosting(memory()) as host:
        assert (await host.workers(), await host.agents(), await host.sessions()) == ([], [], [])
        with pytest.raises(NotFound, match="there is no worker"):
            await host.create("s")


@each_broker
async def test_the_agents_of_all_workers_are_offered_each_once(new: New):
    broker = new()
    painter, poet = talker(name="painter"), talker(name="poet")
    async with hosting(broker) as host, working(painter, broker, name="w1"):
        async with working({"painter": painter, "poet": poet}, broker, name="w2"):
            assert await host.agents() == ["painter", "poet"]
            assert (await host.create("a")).agent == "painter"
            assert (await host.create("b", "poet")).agent == "poet"
            with pytest.raises(NotFound, match="the workers offer painter, poet"):
                await host.create("c", "dancer")
        assert await host.agents() == ["painter"]
        assert (await host.create("b")).agent == "poet"  # it is there already, also if its worker is not


async def test_a_session_for_one_worker_has_an_agent_of_that_one():
    broker = memory()
    async with (
        hosting(broker) as host,
        working(talker(name="painter"), broker, name="w1"),
        working(talker(name="poet"), broker, name="w2"),
    ):
        assert (await host.create("s", worker="w2")).agent == "poet"
        with pytest.raises(NotFound, match="offers poet"):
            await host.create("t", "painter", worker="w2")
        with pytest.raises(NotFound):
            await host.session("t")


async def test_an_id_is_made_up_if_there_is_none_and_refused_if_it_is_no_id():
    broker = memory()
    async with working(talker(), broker), hosting(broker) as host:
        first, second = await host.create(), await host.create()
        assert first.id != second.id
        with pytest.raises(UsageError):
            await host.create("\ud800")
        for ask in (host.session("never"), host.turn("never", "t"), host.send("never", "hello")):
            with pytest.raises(NotFound, match="never"):
                await ask


async def test_a_host_that_was_closed_knows_nothing_any_more():
    broker = memory()
    async with hosting(broker) as host:
        await host.workers()
        await host.close()
        with pytest.raises(SessionEnded):
            await host.workers()
        with pytest.raises(SessionEnded):
            await host.session("s")
