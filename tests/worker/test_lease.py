"""Owns the tests of the agreement on one lease: a worker with another one is refused, and takes nothing away."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from safepoint.worker import Broker, LeaseInForce, MemoryBroker, NatsBroker, Worker, supervisor
from safepoint.worker.broker import Queue
from tests.session.lab import held, talker
from tests.worker.lab import SECONDS, New, each_broker, ends, eventually, hosting, linked, logged, until_kind, working

ANY: Queue = ("any", "talker")


def with_lease(broker: Broker, lease: float) -> Broker:
    """The same broker, for a worker that is started with another lease."""
    if isinstance(broker, MemoryBroker):
        return broker.with_lease(lease)
    assert isinstance(broker, NatsBroker)
    return replace(broker, lease=lease)


async def refused(agent: Any, broker: Broker, **options: Any) -> str:
    worker = Worker(agent, broker, **options)
    with pytest.raises(LeaseInForce) as told:
        await worker.start()
    return str(told.value)


@each_broker
async def test_a_worker_with_another_lease_is_refused_and_the_turn_that_runs_is_left_alone(new: New):
    broker = new(lease=6.0)
    agent, released = held("the end")
    async with hosting(broker) as host, linked(broker) as link, working(agent, broker, name="w1") as worker:
        await host.create("s")
        await host.send("s", "hello", turn_id="t1")
        await until_kind(host, "s", "tool_called")
        told = await refused(agent, with_lease(broker, 0.5), name="w2")
        assert "the lease in force for agent 'talker' is 6 s" in told
        assert "was started with 0.5 s" in told
        assert "stop all workers" in told
        assert "w1" in told
        await asyncio.sleep(1.5)  # real time: three times the lease that was refused
        assert [one.name for one in await host.workers()] == ["w1"]
        released.set()
        await until_kind(host, "s", "turn_ended")
        done = ends(await logged(link, "s"))
        assert {turn_id: one.status for turn_id, one in done.items()} == {"t1": "completed"}
        assert (worker.stats.taken, worker.stats.redelivered, worker.stats.fenced) == (1, 0, 0)


@each_broker
async def test_when_all_workers_have_stopped_another_lease_can_be_put_in_force(new: New):
    broker = new(lease=6.0)
    async with working(talker(), broker):
        pass
    other = with_lease(broker, 3.0)
    async with working(talker(), other, name="w2"), linked(broker) as link:
        assert await link.lease_in_force(ANY) == 3.0
        assert "is 3 s" in await refused(talker(), broker)
        async with working(talker(), other, name="w3"):  # with the same one it may come
            pass


@each_broker
async def test_workers_of_another_agent_may_have_another_lease(new: New):
    broker = new(lease=6.0)
    async with (
        working(talker(), broker),
        working(talker(name="other"), with_lease(broker, 3.0)),
        linked(broker) as link,
    ):
        assert (await link.lease_in_force(ANY), await link.lease_in_force(("any", "other"))) == (6.0, 3.0)
        both = {"talker": talker(), "other": talker(name="other")}
        assert "agent 'other' is 3 s" in await refused(both, broker)


@each_broker
async def test_of_workers_that_start_at_once_with_two_leases_those_that_stay_have_one(new: New):
    broker = new(lease=6.0)
    workers = [Worker(talker(), with_lease(broker, lease)) for lease in (6.0, 3.0, 6.0, 3.0)]
    started = await asyncio.gather(*(worker.start() for worker in workers), return_exceptions=True)
    leases = {6.0 if place % 2 == 0 else 3.0 for place, error in enumerate(started) if error is None}
    assert len(leases) <= 1
    assert {type(error) for error in started if error is not None} <= {LeaseInForce}
    async with linked(broker) as link:
        assert leases <= {await link.lease_in_force(ANY)}
    for worker, error in zip(workers, started, strict=True):
        if error is None:
            await worker.close()


@each_broker
async def test_a_worker_that_was_not_seen_for_long_and_finds_another_lease_leaves(
    new: New, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.1)
    broker = new(lease=6.0)
    worker = Worker(talker(), broker)
    await worker.start()
    async with linked(with_lease(broker, 3.0)) as link:
        await link.change_lease(ANY)
        async with linked(broker) as old:
            with pytest.raises(LeaseInForce, match="is 3 s"):
                await old.take([ANY], 1, 0.1)
        await link.append(
            "workers",
            ("w2",),
            b'{"name": "w2", "agents": ["talker"], "live": 0, "concurrency": 1, '
            b'"isolation": "task", "version": "1", "pid": 1, "machine": "m", "since": 1, "lease": 3.0}',
        )
        caplog.set_level(logging.ERROR)
        monkeypatch.setattr(supervisor, "UNSEEN_SECONDS", -1.0)
        with pytest.raises(LeaseInForce, match="is 3 s, and this worker was started with 6 s"):
            async with asyncio.timeout(SECONDS):
                await worker.wait()
    with pytest.raises(LeaseInForce):  # whoever closes it is told as well
        await worker.close()
    assert "gives its orders back and leaves" in caplog.text


async def test_a_worker_whose_connection_comes_back_finds_the_lease_that_is_in_force_then():
    from safepoint.worker.nats_link import NatsLink
    from tests.worker.lab import nats

    broker = nats(lease=6.0)
    async with linked(broker) as link, linked(replace(broker, lease=3.0)) as other:
        assert isinstance(link, NatsLink)
        assert await link.take([ANY], 1, 0.0) == []
        await other.change_lease(ANY)
        await link.returned()
        with pytest.raises(LeaseInForce):
            await link.take([ANY], 1, 0.0)


@each_broker
async def test_what_cannot_be_read_of_another_worker_keeps_nobody_from_working(new: New):
    broker = new(lease=6.0)
    async with linked(broker) as link:
        await link.append("workers", ("strange",), b"from another world")
        async with working(talker("fine"), broker) as worker, hosting(broker) as host:
            await host.create("s")
            await host.send("s", "hello")
            await until_kind(host, "s", "turn_ended")

            async def counted() -> bool:
                return worker.stats.taken == 1

            await eventually(counted)
