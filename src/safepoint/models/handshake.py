"""Owns closing a connection whose TLS handshake is interrupted. Knows nothing of models and providers.

The SDKs speak HTTP through httpx, which opens connections through httpcore. When a handshake fails, httpcore closes
the socket in an `except Exception` block. An interruption (`CancelledError`) is no `Exception`, so it passes that
block, and the socket stays open until the garbage collector finds it: a stop would leave a connection behind, and the
server on the other side would not notice it. The fix is to catch `BaseException` around `start_tls`, and close there.

httpcore has no public place for that in a client that exists already, and building the client here instead would lose
what the SDK reads from the environment (proxies, certificates). So this module replaces one private attribute,
`pool._network_backend`, by a wrapper that hands out wrapped connections. Everything else (proxies, certificates,
HTTP/2, limits, time-outs) stays with the client. Each private name is looked up before it is used: with a version of
httpx that has renamed one, nothing is changed, and the client works as it did, without the fix. A test checks that
the fix works, so that an update cannot drop it unnoticed.
"""

from typing import Protocol

__all__ = ["close_interrupted_handshakes"]


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
