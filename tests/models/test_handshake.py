"""A stop in the TLS handshake closes its socket at once; everything else about a client stays as it was."""

import asyncio
import gc
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError
from safepoint.models.anthropic import AnthropicModel
from safepoint.models.ollama import OllamaModel
from safepoint.models.openai import OpenAIModel
from tests.kit.certificates import self_signed
from tests.kit.providers.openai import Provider
from tests.models.asking import ask, text_of

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


MODELS: dict[str, Callable[[str], Any]] = {
    "openai": lambda url: OpenAIModel("tiny", base_url=f"{url}/v1", api_key="any"),
    "anthropic": lambda url: AnthropicModel("tiny", base_url=url, api_key="any"),
    "ollama": lambda url: OllamaModel("tiny", host=url),
}


each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


class Mute:
    """A server that takes connections and never says a word. It keeps them open, whatever the other side does."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._kept: list[socket.socket] = []
        self._spoken_to = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.port: int = self._listening.getsockname()[1]

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listening.accept()
                self._kept.append(connection)
                if connection.recv(1):
                    self._spoken_to += 1

    async def spoken_to(self, times: int) -> None:
        """Wait until so many clients have begun their handshake."""
        async with asyncio.timeout(10):
            while self._spoken_to < times:
                await asyncio.sleep(0.001)  # real time: the server is another thread

    def sockets(self) -> set[str]:
        return {f"socket:[{os.fstat(each.fileno()).st_ino}]" for each in (self._listening, *self._kept)}

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        for each in (self._listening, *self._kept):
            each.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    server = Mute()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is closed here is not closed by the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def open_sockets() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of this listing
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {link for link in found if link.startswith("socket:")}


async def stop_when(model: Any, ready: Awaitable[None]) -> None:
    """Ask, stop as soon as it is ready, and wait until the stop is over."""
    controller = AbortController()

    async def asking() -> None:
        with pytest.raises(AbortError):
            await ask(model, signal=controller.signal)

    async with asyncio.TaskGroup() as group:
        group.create_task(asking())
        await ready
        controller.abort("stop")


@each_model
@pytest.mark.usefixtures("no_collector")
async def test_twenty_stops_in_the_handshake_leave_no_socket_open(make: Callable[[str], Any], mute: Mute):
    async with make(f"https://127.0.0.1:{mute.port}") as model:
        before = open_sockets()
        for stops in range(1, 21):
            await stop_when(model, mute.spoken_to(stops))
            assert open_sockets() - before - mute.sockets() == set(), f"after {stops} stops"


@each_model
@pytest.mark.usefixtures("no_collector")
async def test_a_stop_in_the_handshake_behind_a_proxy_leaves_no_socket_open(
    make: Callable[[str], Any], mute: Mute, monkeypatch: pytest.MonkeyPatch
):
    async with proxy() as (port, asked):
        for_proxy(monkeypatch, port)
        before = open_sockets()
        async with make(f"https://127.0.0.1:{mute.port}") as model:
            await stop_when(model, mute.spoken_to(1))
            assert asked == [f"127.0.0.1:{mute.port}"]
            async with asyncio.timeout(10):  # the proxy, in this process too, has to notice before its own are closed
                while open_sockets() - before - mute.sockets():
                    await asyncio.sleep(0.001)  # real time: sockets


@each_model
@pytest.mark.usefixtures("no_collector")
async def test_a_stop_while_nobody_takes_the_connection_leaves_no_socket_open(make: Callable[[str], Any]):
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in (first, second):  # two fill the queue: the next one is not even refused
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        async with make(f"https://127.0.0.1:{full.getsockname()[1]}") as model:
            before = open_sockets()

            async def connecting() -> None:
                async with asyncio.timeout(10):
                    while not open_sockets() - before:
                        await asyncio.sleep(0.001)  # real time: a socket is being made

            await stop_when(model, connecting())
            assert open_sockets() - before == set()


@pytest.mark.parametrize("proxied", [False, True], ids=["directly", "by a proxy"])
async def test_certificates_and_proxies_of_the_environment_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxied: bool
):
    context = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with Provider() as provider:
        provider.will(["Good", " day"])
        target = int(provider.url.rsplit(":", 1)[1])
        async with relay(target, context) as port, proxy() as (proxy_port, asked):
            if proxied:
                for_proxy(monkeypatch, proxy_port)
            async with MODELS["openai"](f"https://127.0.0.1:{port}") as model:
                assert text_of(await ask(model)) == "Good day"
            assert asked == ([f"127.0.0.1:{port}"] if proxied else [])


async def test_a_client_that_is_given_is_left_as_it_is():
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key="any") as client:
        pool = client._client._transport._pool  # type: ignore[attr-defined]
        backend = pool._network_backend
        OpenAIModel("tiny", client=client)
        assert pool._network_backend is backend


def for_proxy(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    for name in ("NO_PROXY", "no_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def relay(target: int, context: ssl.SSLContext | None) -> Any:
    """A port that hands everything on to another one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await join(reader, writer, target)

    async with serving(serve, context) as port:
        yield port


@asynccontextmanager
async def proxy() -> Any:
    """An HTTP proxy for TLS, with the list of what it was asked for."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split()[1])
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await join(reader, writer, int(asked[-1].rsplit(":", 1)[1]))

    async with serving(serve, None) as port:
        yield port, asked


@asynccontextmanager
async def serving(serve: Callable[..., Awaitable[None]], context: ssl.SSLContext | None) -> Any:
    ended: list[asyncio.Event] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(done := asyncio.Event())
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.close()
            done.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in ended:
            await each.wait()


async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Copy both ways until one side has nothing more to say."""
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)

    ways = [asyncio.ensure_future(copy(reader, far_writer)), asyncio.ensure_future(copy(far_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        far_writer.close()
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
