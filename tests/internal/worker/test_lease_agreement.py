"""Owns the tests that look inside, beside those of `tests/worker/test_lease_agreement.py`.

Owns the tests of the agreement on one lease: a worker with another one is refused, and takes nothing away.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from safepoint.worker import Broker, BrokerError, LeaseInForce, Worker, WorkerTimings
from safepoint.worker.broker import BrokerConnection, Key, Order, Queue, StreamName
from tests.kit.agents import talker
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, New, each_broker, linked, working
from tests.worker.test_lease_agreement import refused, with_lease

ANY: Queue = ("any", "talker")


@each_broker
async def test_when_all_workers_have_stopped_another_lease_can_be_put_in_force(new: New):
    broker = new(lease=6.0)
    async with working(talker(), broker):
        pass
    other = with_lease(broker, 3.0)
    async with working(talker(), other, name="w2"), linked(broker) as connection:
        assert await connection.lease_in_force(ANY) == 3.0
        assert "is 3 s" in await refused(talker(), broker)
        async with working(talker(), other, name="w3"):  # with the same one it may come
            pass


@each_broker
async def test_workers_of_another_agent_may_have_another_lease(new: New):
    broker = new(lease=6.0)
    async with (
        working(talker(), broker),
        working(talker(name="other"), with_lease(broker, 3.0)),
        linked(broker) as connection,
    ):
        assert (await connection.lease_in_force(ANY), await connection.lease_in_force(("any", "other"))) == (6.0, 3.0)
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
    async with linked(broker) as connection:
        assert leases <= {await connection.lease_in_force(ANY)}
    for worker, error in zip(workers, started, strict=True):
        if error is None:
            await worker.close()


class CutOff:
    """A broker that can refuse the announcements of a worker, and its requests for orders.

    Attributes:
        no_announcements: Whether it refuses announcements.
        no_orders: Whether it refuses requests for orders. They too would tell a worker that the lease has changed.
        refused: The number of refused announcements.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.no_announcements = self.no_orders = False
        self.refused = 0

    async def connect(self, name: str) -> BrokerConnection:
        connection = await self.broker.connect(name)
        real_append, real_take = connection.append, connection.take

        async def append(stream: StreamName, key: Key, data: bytes, *, expected_last: int | None = None) -> int:
            if stream == "workers" and self.no_announcements:
                self.refused += 1
                raise BrokerError("cut off")
            return await real_append(stream, key, data, expected_last=expected_last)

        async def take(queues: Sequence[Queue], limit: int, wait: float) -> list[Order]:
            try:
                if not self.no_orders:
                    return await real_take(queues, limit, wait)
            except LeaseInForce:
                if not self.no_orders:
                    raise
            raise BrokerError("cut off")

        connection.append, connection.take = append, take  # type: ignore[method-assign]  # of this connection only
        return connection


@each_broker
async def test_a_worker_that_was_not_seen_for_long_and_finds_another_lease_leaves(
    new: New, caplog: pytest.LogCaptureFixture
):
    broker = new(lease=6.0)
    through = CutOff(broker)
    worker = Worker(talker(), through, timings=WorkerTimings(announce_every=0.1, unseen_after=1.0))
    await worker.start()
    through.no_orders = through.no_announcements = True
    async with linked(with_lease(broker, 3.0)) as connection:
        await connection.change_lease(ANY)
        async with linked(broker) as old:
            with pytest.raises(LeaseInForce, match="is 3 s"):
                await old.take([ANY], 1, 0.1)
        await connection.append(
            "workers",
            ("w2",),
            b'{"name": "w2", "agents": ["talker"], "live": 0, "concurrency": 1, '
            b'"isolation": "task", "version": "1", "pid": 1, "machine": "m", "since": 1, "lease": 3.0}',
        )
        caplog.set_level(logging.ERROR)

        async def not_seen_for_long() -> bool:
            return through.refused > 12  # at least 0.1 s apart

        await eventually(not_seen_for_long)
        through.no_announcements = False
        with pytest.raises(LeaseInForce, match="is 3 s, and this worker was started with 6 s"):
            async with asyncio.timeout(SECONDS):
                await worker.wait()
    with pytest.raises(LeaseInForce):  # whoever closes it is told as well
        await worker.close()
    assert "gives its orders back and leaves" in caplog.text


async def test_a_worker_whose_connection_comes_back_finds_the_lease_that_is_in_force_then():
    from safepoint.worker.nats.connection import NatsConnection
    from tests.kit.workers import nats

    broker = nats(lease=6.0)
    async with linked(broker) as connection, linked(replace(broker, lease=3.0)) as other:
        assert isinstance(connection, NatsConnection)
        assert await connection.take([ANY], 1, 0.0) == []
        await other.change_lease(ANY)
        await connection.reconnected()
        with pytest.raises(LeaseInForce):
            await connection.take([ANY], 1, 0.0)
