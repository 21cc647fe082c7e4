"""Owns the tests of what every broker does, over each of them: kept messages, leased orders, words that fly by."""

import asyncio

from tests.kit.waiting import eventually
from tests.kit.workers import New, each_broker, linked

pytestmark = each_broker


async def test_a_slow_answer_holds_no_other_one_up(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other, asyncio.TaskGroup() as group:
        asked, gate = asyncio.Event(), asyncio.Event()

        async def answer(data: bytes) -> bytes:
            if data == b"slow":
                asked.set()
                await gate.wait()
            return data

        await other.serve(("ctl", "s"), answer)
        slow = group.create_task(connection.request(("ctl", "s"), b"slow", 10))
        async with asyncio.timeout(5):
            await asked.wait()
        assert await connection.request(("ctl", "s"), b"stop", 2) == b"stop"
        gate.set()
        assert await slow == b"slow"


async def test_whoever_listens_hears_what_is_said_from_then_on(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other:
        await other.publish(("news", "s"), b"before")
        assert await other.last("log", ("s",)) is None  # what was said is on its way no longer
        heard: list[bytes] = []
        also: list[bytes] = []
        end = await connection.listen(("news", "s"), heard.append)
        await other.listen(("news", "s"), also.append)
        await other.publish(("news", "s"), b"one")
        await other.publish(("news", "t"), b"not for us")
        await other.publish(("news", "s"), b"two")

        async def all_heard() -> bool:
            return heard == also == [b"one", b"two"]

        await eventually(all_heard)
        await end()
        await other.publish(("news", "s"), b"three")

        async def one_heard() -> bool:
            return also == [b"one", b"two", b"three"]

        await eventually(one_heard)
        assert heard == [b"one", b"two"]


async def test_a_link_tells_its_lease(new: New):
    async with linked(new(lease=7.5)) as connection:
        assert connection.lease == 7.5
