"""Closing an SDK's stream to its last generator."""

import asyncio
import gc
from collections.abc import AsyncGenerator

import pytest

from safepoint.abort import AbortController, AbortError
from safepoint.models.sdk_events import SdkEvents


class Chain:
    """A stream as the SDKs have it: generators over a connection, which does not know of them when it is closed."""

    def __init__(self) -> None:
        self.open = True
        self.ended: list[str] = []
        self._events = self._parsed()

    def __anext__(self):
        return self._events.__anext__()

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.open = False

    async def _parsed(self) -> AsyncGenerator[str, None]:
        try:
            async for line in self._lines():
                yield line.upper()
        finally:
            self.ended.append("parsed")

    async def _lines(self) -> AsyncGenerator[str, None]:
        try:
            for line in ("a", "b", "c"):
                yield line
            while self.open:
                await asyncio.sleep(3600)  # real time: never reached, the connection is closed or the read is aborted
            raise ConnectionError("closed")
        finally:
            self.ended.append("lines")


async def test_closing_between_two_events_ends_every_generator_here_and_now():
    chain = Chain()
    source = SdkEvents[str](chain)
    assert await anext(source) == "A"
    await source.aclose()
    assert chain.ended == ["lines", "parsed"]
    tasks = asyncio.all_tasks()
    del chain, source
    gc.collect()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks, "nothing was left to the garbage collector"


async def test_it_hands_on_events_and_the_end():
    class Two:
        def __init__(self) -> None:
            self._left = ["a", "b"]
            self.closed = 0

        async def __anext__(self) -> str:
            if not self._left:
                raise StopAsyncIteration
            return self._left.pop(0)

        async def close(self) -> None:
            self.closed += 1

    two = Two()
    assert [event async for event in SdkEvents[str](two)] == ["a", "b"]
    await SdkEvents[str](two).aclose()
    assert two.closed == 1


async def test_an_abort_in_a_read_closes_it_once_and_raises_the_abort():
    chain = Chain()
    controller = AbortController()
    with pytest.raises(AbortError):
        async with controller.signal.stream(SdkEvents[str](chain)) as events:
            async for event in events:
                if event == "C":
                    asyncio.get_running_loop().call_soon(controller.abort)
    assert not chain.open
    assert chain.ended == ["lines", "parsed"]
