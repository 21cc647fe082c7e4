"""Owns the tests that look inside, beside those of `tests/worker/test_memory.py`.

Owns the tests of what only the broker in this process does: threads, loops that end, and leases that are over.
"""

import asyncio
import threading
from collections.abc import Awaitable

import pytest

from safepoint.worker import MemoryBroker
from safepoint.worker.broker import NoResponders, Queue
from tests.kit.workers import SECONDS, linked
from tests.worker.test_memory import Elsewhere

ANY: Queue = ("any", "helper")


async def test_an_event_loop_that_is_closed_serves_nobody():
    async def answer(data: bytes) -> bytes:
        return b""

    broker = MemoryBroker()
    await Elsewhere(broker, answer).gone()
    async with linked(broker) as connection:
        with pytest.raises(NoResponders, match="has ended"):
            await connection.request(("ctl", "s"), b"", 5)


async def test_who_ends_while_it_answers_has_gone_and_whoever_asked_goes_on():
    asked = threading.Event()

    async def answer(data: bytes) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    broker = MemoryBroker()
    there = Elsewhere(broker, answer)
    async with linked(broker) as connection, asyncio.TaskGroup() as group:
        question = group.create_task(_outcome(connection.request(("ctl", "s"), b"", SECONDS)))
        assert await asyncio.to_thread(asked.wait, SECONDS)
        await there.gone()
        assert isinstance(await question, NoResponders)


async def _outcome(question: Awaitable[bytes]) -> bytes | Exception:
    try:
        return await question
    except Exception as error:
        return error


async def test_whoever_has_lost_its_order_cannot_settle_it_any_more():
    broker = MemoryBroker(lease=0.05)
    async with linked(broker) as connection:
        await connection.enqueue(ANY, "s", b"")
        (late,) = await connection.take([ANY], 1, 5)
        (held,) = await connection.take([ANY], 1, 5)
        assert (late.attempt, held.attempt) == (1, 2)
        await held.renew()
        await late.complete()
        await late.give_back()
        assert await connection.pending_sessions() == {"s"}
        assert await connection.take([ANY], 1, 0) == []
