"""Owns the tests of what a worker counts."""

from tests.kit.agents import talker
from tests.kit.waiting import eventually
from tests.kit.workers import hosting, memory, until_kind, working


async def test_orders_are_counted_and_told_to_whoever_lists_the_workers():
    broker = memory()
    async with working(talker("one", "two"), broker) as worker, hosting(broker) as host:
        for session in ("a", "b"):
            await host.create(session)
            await host.send(session, "hello")
            await until_kind(host, session, "turn_ended")
        assert (worker.stats.taken, worker.stats.redelivered) == (2, 0)

        async def told() -> bool:
            (info,) = await host.workers()
            return info.taken == 2

        await eventually(told)
