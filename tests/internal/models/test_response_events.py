"""Reading the events of a response, and closing it to its last generator."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Mapping

import pytest

from safepoint.abort import AbortController, AbortError
from safepoint.models.connection import HttpResponse, ResponseEvents


class Chain:
    """A response as the SDKs have it: generators over a connection, which does not know of them when it is closed."""

    headers: Mapping[str, str] = {"content-type": "text/event-stream"}

    def __init__(self, *pieces: bytes, stays_open: bool = True) -> None:
        self.open = stays_open
        self.ended: list[str] = []
        self.content = b"".join(pieces)
        self._pieces = pieces

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.open = False

    async def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._raw():
                yield piece
        finally:
            self.ended.append("decoded")

    async def _raw(self) -> AsyncGenerator[bytes, None]:
        try:
            for piece in self._pieces:
                yield piece
            while self.open:
                await asyncio.sleep(3600)  # real time: never reached, the connection is closed or the read is aborted
        finally:
            self.ended.append("raw")


def events_of(chain: Chain, *, whole: bool = False) -> ResponseEvents:
    async def send() -> HttpResponse:
        return chain

    return ResponseEvents(send, whole=whole)


ABC = (b'data: "A"\n\n', b'data: "B"\n\n', b'data: "C"\n\n')


async def test_closing_between_two_events_ends_every_generator_here_and_now():
    chain = Chain(*ABC)
    source = events_of(chain)
    assert await anext(source) == "A"
    await source.aclose()
    assert chain.ended == ["raw", "decoded"]
    tasks = asyncio.all_tasks()
    del chain, source
    gc.collect()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks, "nothing was left to the garbage collector"


async def read(chain: Chain) -> list[object]:
    return [event async for event in events_of(chain)]


DOCUMENT = {"text": "größe 😀", "n": [1, 2]}
LINES = f"data: {json.dumps(DOCUMENT, ensure_ascii=False)}\n\n".encode() * 3


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_events_are_the_same_however_the_response_is_cut_into_pieces(size: int, end: bytes):
    text = LINES.replace(b"\n", end)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert await read(Chain(*pieces, stays_open=False)) == [DOCUMENT] * 3


async def test_comments_names_and_data_of_several_lines_are_read():
    text = b': ping\n\nevent: x\nid: 5\ndata: {"a":\ndata:1}\n\n\n\ndata: 2'
    assert await read(Chain(text, stays_open=False)) == [{"a": 1}, 2]


async def test_nothing_after_the_last_mark_is_an_event_but_the_response_is_read_to_its_end():
    chain = Chain(b"data: 1\n\ndata: [DONE]\n\ndata: 2\n\n", b"data: 3\n\n", stays_open=False)
    assert await read(chain) == [1]
    assert chain.ended == ["raw", "decoded"]


async def test_a_whole_response_is_one_event():
    source = events_of(Chain(b'{"a": 1}', stays_open=False), whole=True)
    assert [event async for event in source] == [{"a": 1}]
    await source.aclose()


async def test_a_request_that_was_never_sent_has_nothing_to_close():
    async def send() -> HttpResponse:
        raise AssertionError("it is sent when the first event is read")

    await ResponseEvents(send, whole=False).aclose()


async def test_an_abort_in_a_read_closes_it_once_and_raises_the_abort():
    chain = Chain(*ABC)
    controller = AbortController()
    with pytest.raises(AbortError):
        async with controller.signal.stream(events_of(chain)) as events:
            async for event in events:
                if event == "C":
                    asyncio.get_running_loop().call_soon(controller.abort)
    assert not chain.open
    assert chain.ended == ["raw", "decoded"]
