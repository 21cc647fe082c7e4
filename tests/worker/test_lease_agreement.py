"""Owns the tests of the agreement on one lease: a worker with another one is refused, and takes nothing away."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from safepoint.worker import Broker, LeaseInForce, MemoryBroker, NatsBroker, Worker
from tests.kit.agents import gated_agent, talker
from tests.kit.waiting import eventually
from tests.kit.workers import New, each_broker, ends, hosting, linked, logged, until_kind, working


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
    agent, released = gated_agent("the end")
    async with hosting(broker) as host, linked(broker) as connection, working(agent, broker, name="w1") as worker:
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
        done = ends(await logged(connection, "s"))
        assert {turn_id: one.status for turn_id, one in done.items()} == {"t1": "completed"}
        assert (worker.stats.taken, worker.stats.redelivered, worker.stats.fenced) == (1, 0, 0)


@each_broker
async def test_what_cannot_be_read_of_another_worker_keeps_nobody_from_working(new: New):
    broker = new(lease=6.0)
    async with linked(broker) as connection:
        await connection.append("workers", ("strange",), b"from another world")
        async with working(talker("fine"), broker) as worker, hosting(broker) as host:
            await host.create("s")
            await host.send("s", "hello")
            await until_kind(host, "s", "turn_ended")

            async def counted() -> bool:
                return worker.stats.taken == 1

            await eventually(counted)
