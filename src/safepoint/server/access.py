"""Owns who may come in: hosts, origins, the token, the size of a body. Pure ASGI, so that disconnects stay visible.

Knows nothing of sessions. A page from elsewhere cannot reach a server on loopback by a name of its own (DNS rebinding):
the Host must be ours, and an Origin, where there is one, must be the same.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

__all__ = ["AccessControl"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
# Without a token only these may be seen: the page itself, and whether the server lives.
OPEN = ("/healthz", "/static/", "/favicon.ico")


class AccessControl:
    """Stands before the app. `hosts`: the names by which it may be called; None: any."""

    def __init__(self, app: App, *, token: str | None, hosts: Iterable[str] | None, body_bytes: int) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None else LOOPBACK | {host.lower() for host in hosts}
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it in, or say why not."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(headers) or self._stranger(scope["path"], headers)
        if refusal is not None:
            return await _say(send, *refusal)
        return await self._app(scope, _Bounded(receive, self._body_bytes), send)

    def _refusal(self, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            return 421, f"this server is not {host!r}: call it by its own name"
        origin = headers.get("origin")
        if origin is not None and _place(origin) != host.lower():
            return 403, f"a page of {origin!r} may not talk to this server"
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            return 400, f"content-length must be a number, not {length!r}"
        if int(length) > self._body_bytes:
            return 413, f"the body is larger than {self._body_bytes} bytes"
        return None

    def _stranger(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        if self._token is None or path == "/" or path.startswith(OPEN):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.encode(), self._token)
        if not known or scheme.lower() != "bearer":
            return 401, "a token is needed: send it as `Authorization: Bearer …`"
        return None


class _Bounded:
    """A body that may not grow beyond its bound, whatever its length was said to be."""

    def __init__(self, receive: Receive, body_bytes: int) -> None:
        self._receive = receive
        self._left = body_bytes

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            return {"type": "http.disconnect"}
        return message


def _name(host: str) -> str:
    host = host.lower()
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def _place(origin: str) -> str | None:
    """Host and port of an origin; None: it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


async def _say(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
