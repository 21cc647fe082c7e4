"""Owns the tests that look inside, beside those of `tests/session/test_host.py`.

The local host: every phase of a turn by every source of a stop, and how sessions are kept by name.
"""

import asyncio

from safepoint.models.scripted import Stall
from safepoint.session import LocalHost, MemoryStore
from safepoint.session.store import LogRecord
from safepoint.testing import drain_ready_tasks
from tests.kit.agents import talker
from tests.session.test_host import ended


async def test_a_stop_does_not_wait_for_a_session_that_is_being_opened() -> None:
    class Slow(MemoryStore):
        gate = asyncio.Event()

        async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
            if session == "slow":
                await self.gate.wait()
            return await super().read(session, after, limit)

    store = Slow()
    host = LocalHost(talker(["half", Stall()]), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    opening = asyncio.create_task(host.create("slow"))
    await drain_ready_tasks()
    async with asyncio.timeout(5):
        await host.stop("s", "t")
        await ended(host, "s", "t")
    assert not opening.done()
    store.gate.set()
    await opening
    await host.close()
