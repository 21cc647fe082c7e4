"""Owns closing the connection of a TLS handshake that is interrupted. Knows nothing of models and providers.

The SDKs speak HTTP by httpx, which connects by httpcore. httpcore closes a connection whose handshake *fails*, by
`except Exception`; an interruption is no `Exception`, so the socket stays open until the garbage collector finds it.
What is changed here is only that: the connections of a client's own pools are handed out in a thin wrapper, whose
`start_tls` closes them on every way out. Proxies, certificates, HTTP/2, limits and time-outs stay the client's own.

There is no public place to change it in a client that has been made, and making the client ourselves would lose what it
takes from the environment (proxies, certificates). So private names are used, each looked for before it is touched: in
a version that has renamed them the client stays as it was, and works as it did.
"""

from typing import Any

__all__ = ["close_interrupted_handshakes"]


def close_interrupted_handshakes(client: object) -> int:
    """Let an SDK's client close the connections of interrupted TLS handshakes at once.

    Args:
        client: an SDK's client that has been made and not been used yet, and that nobody else has.

    Returns:
        How many connection pools were changed: one, and one per proxy. 0: this version of httpx is not known.
    """
    http = getattr(client, "_client", None)
    mounts = getattr(http, "_mounts", None)
    transports = [getattr(http, "_transport", None), *(mounts.values() if isinstance(mounts, dict) else ())]
    pools = [getattr(transport, "_pool", None) for transport in transports]
    changed = 0
    for pool in pools:
        backend = getattr(pool, "_network_backend", None)
        if hasattr(backend, "connect_tcp"):
            pool._network_backend = _Backend(backend)  # type: ignore[union-attr]  # it has one: see above
            changed += 1
    return changed


class _Backend:
    """A network backend of httpcore, whose connections close themselves when their handshake is interrupted."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> "_Connection":
        return _Connection(await self._backend.connect_tcp(*args, **kwargs))

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> "_Connection":
        return _Connection(await self._backend.connect_unix_socket(*args, **kwargs))


class _Connection:
    """A connection of httpcore. Everything but `start_tls` is its own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def start_tls(self, *args: Any, **kwargs: Any) -> "_Connection":
        try:
            # Wrapped again: through a proxy that is spoken to by TLS, there is a second handshake inside of the first.
            return _Connection(await self._connection.start_tls(*args, **kwargs))
        except Exception:
            raise  # closed already, by httpcore
        except BaseException:
            await self._connection.aclose()
            raise
