"""Owns the tests that look inside, beside those of `tests/worker/test_nats_connection.py`.

Owns the tests of one connection to NATS: a server that is killed and comes back, answers that got lost, limits.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from safepoint.worker import BrokerError, NatsBroker
from safepoint.worker.broker import Fenced, Queue, RequestTimeout
from tests.kit.nats import nats_server
from tests.kit.waiting import eventually
from tests.kit.workers import SECONDS, linked, nats

ANY: Queue = ("any", "helper")


async def test_after_a_restart_of_the_server_everything_goes_on():
    with nats_server() as server:
        async with linked(NatsBroker(server.url, lease=30.0)) as connection, asyncio.TaskGroup() as group:
            returned, heard = asyncio.Event(), asyncio.Event()
            connection.on_reconnect(returned.set)
            await connection.listen(("news", "s"), lambda data: heard.set())
            await connection.serve(("ctl", "s"), _echo)
            first = await connection.append("log", ("s",), b"before", expected_last=0)
            await connection.enqueue(ANY, "s", b"")
            (held,) = await connection.take([ANY], 1, 5)
            server.kill()
            writing = group.create_task(connection.append("log", ("s",), b"meanwhile", expected_last=first))
            reading = group.create_task(connection.read("inbox", ("s",)))
            server.start()
            async with asyncio.timeout(SECONDS):
                await returned.wait()
                assert await writing > first
                assert await reading == []
                await connection.publish(("news", "s"), b"")
                await heard.wait()
            assert [entry.data for entry in await connection.read("log", ("s",))] == [b"before", b"meanwhile"]
            assert await connection.request(("ctl", "s"), b"still there", 5) == b"still there"
            await eventually(partial(_tried, held.renew))
            await _tried(held.complete)  # whether or not it was answered: a server does not answer it twice

            async def completed() -> bool:
                return await connection.pending_sessions() == set()

            await eventually(completed)
            assert await connection.enqueue(ANY, "t", b"")
            (held,) = await connection.take([ANY], 1, 5)
            assert held.session == "t"


async def _tried(request: Callable[[], Awaitable[object]]) -> bool:
    """Whether a request was answered. A server that has just been started may be too late the first time."""
    try:
        await request()
    except RequestTimeout:
        return False
    return True


async def _echo(data: bytes) -> bytes:
    return data


async def test_what_is_too_big_is_refused_at_once_and_the_connection_lives():
    async with linked(nats()) as connection:
        began = time.monotonic()
        with pytest.raises(BrokerError, match="2000000 bytes"):
            await connection.append("inbox", ("s",), b"x" * 2_000_000)
        with pytest.raises(BrokerError):
            await connection.enqueue(ANY, "s", b"x" * 2_000_000)
        assert time.monotonic() - began < 5
        assert await connection.append("inbox", ("s",), b"x" * 1_000_000)


async def test_a_write_whose_answer_got_lost_counts_as_ours_and_one_of_another_does_not():
    from safepoint.worker.nats.connection import NatsConnection

    async with linked(nats()) as connection:
        assert isinstance(connection, NatsConnection)
        position = await connection.append("log", ("s",), b"mine", expected_last=0)
        assert await connection._position_if_ours("log", ("s",), b"mine", True) == position
        for data, unsure in ((b"mine", False), (b"of another", True)):
            with pytest.raises(Fenced):
                await connection._position_if_ours("log", ("s",), data, unsure)


async def test_a_queue_that_does_not_answer_does_not_delay_the_orders_of_the_others():
    silent: Queue = ("at", "w")
    # The server ignores requests that concern the consumer of one queue, as it does while that has no leader.
    denied = f'publish: {{ deny: ["$JS.API.CONSUMER.DURABLE.CREATE.safepoint-orders.{silent[0]}-{silent[1]}"] }}'
    with nats_server(f"authorization {{ users: [{{ user: w, password: p, permissions: {{ {denied} }} }}] }}") as server:
        async with linked(NatsBroker(server.url, user="w", password="p")) as connection:
            await connection.enqueue(ANY, "s", b"{}")
            async with asyncio.timeout(15):
                [order] = await connection.take([silent, ANY], 2, 1.0)
            assert order.session == "s"
