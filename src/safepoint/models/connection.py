"""Owns the connections of an SDK's client: reading the events of a response, and closing both completely.

**Events.** The SDKs turn each event of a stream into a validated object, which takes longer than everything else that
happens to it. So only the SDK's response is used, and its lines are read here: server-sent events whose data is JSON.
A response is read through a chain of async generators. Closing the connection alone leaves them suspended, and the
garbage collector would close them later, each in a task of its own. So `aclose` reads on until they have noticed it.

**TLS handshakes.** The SDKs speak HTTP through httpx, which opens connections through httpcore. When a handshake fails,
httpcore closes the socket in an `except Exception` block. An interruption (`CancelledError`) is no `Exception`, so it
passes that block, and the socket stays open until the garbage collector finds it: a stop would leave a connection
behind, and the server on the other side would not notice it. The fix is to catch `BaseException` around `start_tls`,
and close there. httpcore has no public place for that in a client that exists already, and building the client here
instead would lose what the SDK reads from the environment (proxies, certificates). So this module replaces one private
attribute, `pool._network_backend`, by a wrapper that hands out wrapped connections. Everything else (proxies,
certificates, HTTP/2, limits, time-outs) stays with the client. Each private name is looked up before it is used: with
a version of httpx that has renamed one, nothing is changed, and the client works as it did, without the fix. A test
checks that the fix works, so that an update cannot drop it unnoticed.

Knows nothing of models and of what the events mean.
"""

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

__all__ = ["HttpResponse", "ResponseEvents", "close_interrupted_handshakes"]

HEAD_BYTES = 2000  # of a response without events, for the error


class HttpResponse(Protocol):
    """What is used of a response of httpx."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def content(self) -> bytes: ...
    def aiter_bytes(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class ResponseEvents:
    """The events of one response, for `signal.stream()`. The request is sent when the first one is read.

    Args:
        send: Sends the request.
        whole: Whether the response is one JSON document, which then is the only event.

    Attributes:
        head: The beginning of a response in which there was no event.
        content_type: The type of the response, once it has begun.
    """

    def __init__(self, send: Callable[[], Awaitable[HttpResponse]], *, whole: bool) -> None:
        self.head = b""
        self.content_type = ""
        self._send = send
        self._whole = whole
        self._response: HttpResponse | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._events: deque[bytes] = deque()  # the data of the events that have come
        self._line = b""  # the beginning of a line whose end has not come yet
        self._data: list[bytes] = []  # the lines of the event that is being read
        self._over = False

    def __aiter__(self) -> "ResponseEvents":
        return self

    async def __anext__(self) -> object:
        """Return the next event, which may be any JSON value. Raises: ValueError if its data is no JSON."""
        if self._response is None:
            await self._begin()
        while not self._events:
            if self._pieces is None:
                raise StopAsyncIteration
            try:
                piece = await self._pieces.__anext__()
            except StopAsyncIteration:
                self._pieces = None
                if not self._over:
                    self._read(b"\n\n")  # some servers leave out the empty line after the last event
                continue
            if not self._over:  # what follows the mark is read too, or the connection could not be used again
                self._read(piece)
        return json.loads(self._events.popleft())

    async def _begin(self) -> None:
        response = self._response = await self._send()
        self.content_type = response.headers.get("content-type", "")
        if self._whole:
            self._events.append(response.content)
        else:
            self._pieces = response.aiter_bytes()

    def _read(self, piece: bytes) -> None:
        if len(self.head) < HEAD_BYTES:
            self.head += piece[:HEAD_BYTES]
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                if data.startswith(b"[DONE]"):
                    self._over = True
                    return
                self._events.append(data)

    async def aclose(self) -> None:
        """Close the connection, then read until the generators notice it.

        Reading on unwinds the whole chain in this task. It does not wait: the connection is closed already.
        """
        if self._response is None:
            return
        await self._response.aclose()
        try:
            while self._pieces is not None:
                await self._pieces.__anext__()
        except (Exception, StopAsyncIteration):
            pass  # the chain has ended, which is all that was wanted


def close_interrupted_handshakes(client: object) -> int:
    """Make an SDK's client close the connections of interrupted TLS handshakes at once.

    Args:
        client: A client of an SDK that nothing else uses yet and that has made no request.

    Returns:
        How many connection pools were changed: one, and one more per proxy. 0 if this version of httpx is not known.
    """
    http = getattr(client, "_client", None)
    mounts = getattr(http, "_mounts", None)
    transports = [getattr(http, "_transport", None), *(mounts.values() if isinstance(mounts, dict) else ())]
    pools = [getattr(transport, "_pool", None) for transport in transports]
    changed = 0
    for pool in pools:
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None and hasattr(backend, "connect_tcp"):
            pool._network_backend = _Backend(backend)
            changed += 1
    return changed


class _TlsConnection(Protocol):
    """What is used of a connection of httpcore."""

    async def start_tls(self, *args: object, **kwargs: object) -> "_TlsConnection": ...
    async def aclose(self) -> None: ...


class _NetworkBackend(Protocol):
    """What is used of a network backend of httpcore."""

    async def connect_tcp(self, *args: object, **kwargs: object) -> _TlsConnection: ...
    async def connect_unix_socket(self, *args: object, **kwargs: object) -> _TlsConnection: ...


class _Backend:
    """A network backend of httpcore whose connections close themselves when their handshake is interrupted."""

    def __init__(self, backend: _NetworkBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    async def connect_tcp(self, *args: object, **kwargs: object) -> "_Connection":
        return _Connection(await self._backend.connect_tcp(*args, **kwargs))

    async def connect_unix_socket(self, *args: object, **kwargs: object) -> "_Connection":
        return _Connection(await self._backend.connect_unix_socket(*args, **kwargs))


class _Connection:
    """A connection of httpcore. All attributes but `start_tls` are those of the wrapped connection."""

    def __init__(self, connection: _TlsConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    async def start_tls(self, *args: object, **kwargs: object) -> "_Connection":
        try:
            # The result is wrapped again: a proxy that is itself reached by TLS means a second handshake inside the
            # first one.
            return _Connection(await self._connection.start_tls(*args, **kwargs))
        except Exception:
            raise  # httpcore has closed the connection
        except BaseException:
            await self._connection.aclose()
            raise
