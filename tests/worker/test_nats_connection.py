"""Owns the tests of one connection to NATS: a server that is killed and comes back, answers that got lost, limits."""

import asyncio

import pytest

from safepoint.errors import UsageError
from safepoint.worker import NatsBroker
from tests.kit.nats import nats_server
from tests.kit.workers import SECONDS, linked, nats


async def test_who_does_not_want_to_be_told_of_returns_is_not():
    with nats_server() as server:
        async with linked(NatsBroker(server.url)) as connection:
            told: list[str] = []
            returned = asyncio.Event()
            forget = connection.on_reconnect(lambda: told.append("forgotten"))
            connection.on_reconnect(returned.set)
            forget()
            server.kill()
            server.start()
            async with asyncio.timeout(SECONDS):
                await returned.wait()
            assert told == []


async def test_a_name_that_is_too_long_does_not_cost_the_connection():
    async with linked(nats()) as connection:
        with pytest.raises(UsageError, match="too long"):
            await connection.append("log", ("x" * 5000,), b"")
        assert await connection.append("log", ("x" * 1500,), b"")


async def test_a_long_log_is_read_to_its_end():
    async with linked(nats()) as connection:
        for number in range(30):
            await connection.append("log", ("s",), b"%02d" % number + b"x" * 300_000)
        found, after = [], 0
        while page := await connection.read("log", ("s",), after, 20):
            found += [entry.data[:2] for entry in page]
            after = page[-1].position
        assert found == [b"%02d" % number for number in range(30)]
