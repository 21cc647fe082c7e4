"""Owns a plain HTTP/1.1 server for tests: a thread and a loop of its own, so that it sees what a busy client does.

It hands each request to a player, an async function that writes the answer, and records per request when it came, what
it said, what was sent, and when the client closed the connection. Knows nothing of models.

    with WireServer(play) as server:
        ... a client talks to server.url ...
        exchange = server.exchanges[0]
        assert exchange.closed.wait(5), "the client never hung up"
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

__all__ = ["Exchange", "Player", "WireServer", "bounded"]

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}
START_SECONDS = 10.0


@dataclass(eq=False)
class Exchange:
    """One request and what became of it. Times are `time.monotonic()`; the events may be waited for in any thread."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int
    came_at: float
    sent: int = 0
    sent_at: list[float] = field(default_factory=list)
    ended_at: float | None = None
    closed_at: float | None = None
    began: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def hung_up(self) -> bool:
        """True: the client closed the connection before the answer was whole."""
        return self.closed_at is not None and (self.ended_at is None or self.closed_at < self.ended_at)


class Answering:
    """What a player writes to: the head of the answer, then pieces of its body."""

    def __init__(self, exchange: Exchange, transport: asyncio.Transport) -> None:
        self.exchange = exchange
        self._transport = transport

    def head(self, status: int = 200, *, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        """The status line and headers. Without `length` the body is sent in HTTP chunks."""
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", framing]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.raw(("\r\n".join(lines) + "\r\n\r\n").encode())

    def chunk(self, data: bytes) -> None:
        """A piece of the body."""
        self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end(self) -> None:
        """The end of a body sent in chunks."""
        self.raw(b"0\r\n\r\n")

    def whole(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
        """A whole answer at once: JSON, or bytes as they are."""
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.head(status, headers={"content-type": "application/json", **(headers or {})}, length=len(data))
        self.raw(data)

    def raw(self, data: bytes) -> None:
        """Bytes as they are, also in the middle of a chunk."""
        self._transport.write(data)
        self.exchange.sent += len(data)
        self.exchange.sent_at.append(time.monotonic())
        self.exchange.began.set()

    def cut(self) -> None:
        """Close the connection, wherever the answer stands."""
        self._transport.close()


Player = Callable[[Exchange, Answering], Awaitable[None]]


class WireServer:
    """Serves on loopback from `__enter__` to `__exit__`; at the end nothing of it is left: thread, sockets, tasks."""

    def __init__(self, play: Player) -> None:
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.broken: list[BaseException] = []
        self._play = play
        self._open: set[_Connection] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="wire-server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS), "the test server did not start"
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if exc is None and self.broken:
            raise self.broken[0]

    def close(self) -> None:
        """Close every connection and stop to listen. Again is harmless."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive(), "the test server did not end"

    def hang_up(self) -> None:
        """Close every connection that is open now, and go on listening."""
        for connection in list(self._open):
            self._loop.call_soon_threadsafe(connection.abort)

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self._port}"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024)
        self._port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for connection in list(self._open):
            connection.abort()
        # Let the lost connections be reported and their players end.
        async with asyncio.timeout(START_SECONDS):
            while self._open or len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.001)  # real time: sockets close in the loop's next rounds

    def _answer(self, exchange: Exchange, connection: "_Connection") -> "asyncio.Task[None]":
        self.exchanges.append(exchange)

        async def play() -> None:
            try:
                await self._play(exchange, Answering(exchange, connection.transport))
            except Exception as error:
                self.broken.append(error)
                connection.abort()
                return
            exchange.ended_at = time.monotonic()
            exchange.ended.set()
            connection.answered()

        return self._loop.create_task(play())


class _Connection(asyncio.Protocol):
    """One connection: reads requests one after the other, and notices at once when the client hangs up."""

    def __init__(self, server: WireServer) -> None:
        self._server = server
        self._buffer = b""
        self._exchange: Exchange | None = None
        self._playing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.connections += 1
        self._number = self._server.connections
        self._server._open.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def eof_received(self) -> None:
        self._hung_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hung_up()
        self._server._open.discard(self)

    def abort(self) -> None:
        self.transport.abort()

    def answered(self) -> None:
        """The answer is written: the next request may come."""
        self._playing = None
        self._read()

    def _read(self) -> None:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if self._playing is not None or not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        body = json.loads(rest[:length] or b"{}")
        self._exchange = Exchange(first.split(" ")[1], headers, body, self._number, time.monotonic())
        self._playing = self._server._answer(self._exchange, self)

    def _hung_up(self) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.closed_at is None:
            exchange.closed_at = time.monotonic()
            exchange.closed.set()
        if self._playing is not None:
            self._playing.cancel()


async def bounded(event: threading.Event, seconds: float = 5.0) -> bool:
    """Wait for an event of the server's thread without blocking this loop."""
    return await asyncio.to_thread(event.wait, seconds)
