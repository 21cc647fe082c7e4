"""Owns the tests of what only the broker in this process does: threads, loops that end, and leases that are over."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from safepoint.errors import UsageError
from safepoint.worker import MemoryBroker
from tests.kit.workers import SECONDS, linked


class Elsewhere:
    """Something that serves in the event loop of another thread, until it is told to end."""

    def __init__(self, broker: MemoryBroker, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.ready, self.end = threading.Event(), threading.Event()
        self._broker, self._answer = broker, answer
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.thread.start()
        assert self.ready.wait(SECONDS)

    async def _serve(self) -> None:
        connection = await self._broker.connect("elsewhere")
        await connection.serve(("ctl", "s"), self._answer)
        self.ready.set()
        await asyncio.to_thread(self.end.wait, SECONDS)

    async def gone(self) -> None:
        self.end.set()
        await asyncio.to_thread(self.thread.join, SECONDS)


async def test_a_question_is_answered_in_the_thread_of_whoever_serves():
    async def answer(data: bytes) -> bytes:
        return threading.current_thread().name.encode()

    broker = MemoryBroker()
    there = Elsewhere(broker, answer)
    async with linked(broker) as connection:
        assert await connection.request(("ctl", "s"), b"", 5) == there.thread.name.encode()
        await there.gone()


async def test_what_goes_wrong_with_an_answer_is_told_to_whoever_asked():
    async def answer(data: bytes) -> bytes:
        raise ZeroDivisionError

    async with linked(MemoryBroker()) as connection:
        await connection.serve(("ctl", "s"), answer)
        with pytest.raises(ZeroDivisionError):
            await connection.request(("ctl", "s"), b"", 5)


async def test_who_listens_in_a_loop_that_has_ended_is_not_there():
    broker = MemoryBroker()

    async def listen() -> None:
        await (await broker.connect("short-lived")).listen(("news",), print)

    await asyncio.to_thread(asyncio.run, listen())
    async with linked(broker) as connection:
        heard: list[bytes] = []
        await connection.listen(("news",), heard.append)
        await connection.publish(("news",), b"new")
        await asyncio.sleep(0)
        assert heard == [b"new"]


async def test_a_connection_in_memory_is_never_lost():
    async with linked(MemoryBroker()) as connection:
        connection.on_reconnect(lambda: pytest.fail("it has not come back"))()


@pytest.mark.parametrize("lease", [-1.0, float("nan")])
def test_a_lease_is_a_number_of_seconds(lease: float):
    with pytest.raises(UsageError, match="lease"):
        MemoryBroker(lease)
