"""Owns the tests of names in JetStream: two keys never become one subject, and streams are made once."""

import asyncio

from tests.kit.workers import linked, nats


async def test_streams_that_are_there_stay_as_they_are():
    broker = nats()
    async with linked(broker) as connection:
        position = await connection.append("log", ("s",), b"kept")
        async with linked(broker) as other:
            found = await other.last("log", ("s",))
            assert found is not None
            assert found.position == position


async def test_ten_who_come_at_once_make_each_stream_once():
    broker = nats()
    links = await asyncio.gather(*(broker.connect(f"c{number}") for number in range(10)))
    assert [await connection.keys("log") for connection in links] == [[]] * 10
    for connection in links:
        await connection.close()
