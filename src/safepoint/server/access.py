"""Access control before the application: host names, origins, the token, and the size of request bodies.

It is plain ASGI rather than a middleware class, so that the application still sees disconnects. Knows nothing of
sessions.

A web page of another site must not control a server on loopback. Such a page can let its own host name resolve to
127.0.0.1 (DNS rebinding), so the Host header must name this server. And if a request has an Origin header, it must be
that of this server.
"""

import hmac
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["AccessControl"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
# What can be fetched without a token: the page itself, which holds no data, and whether the server lives.
OPEN_PATHS = ("/healthz", "/static/", "/favicon.ico")


class AccessControl:
    """An ASGI application that refuses a request or passes it on to another application."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str] | None, body_bytes: int) -> None:
        """Create it.

        Args:
            app: The application that it protects.
            token: The token that every request must have; None if none is needed.
            hosts: The host names by which the server may be addressed, besides those of loopback; None allows any.
            body_bytes: The largest request body that is accepted.
        """
        self._app = app
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None else LOOPBACK | {host.lower() for host in hosts}
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._check_request(headers) or self._check_token(scope["path"], headers)
        if refusal is not None:
            return await _send_error(send, *refusal)
        return await self._app(scope, _LimitedBody(receive, self._body_bytes), send)

    def _check_request(self, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self._hosts is not None and _host_name(host) not in self._hosts:
            return 421, f"this server is not {host!r}: call it by its own name"
        origin = headers.get("origin")
        if origin is not None and _host_of_origin(origin) != host.lower():
            return 403, f"a page of {origin!r} may not talk to this server"
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            return 400, f"content-length must be a number, not {length!r}"
        if int(length) > self._body_bytes:
            return 413, f"the body is larger than {self._body_bytes} bytes"
        return None

    def _check_token(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        if self._token is None or path == "/" or path.startswith(OPEN_PATHS):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.encode(), self._token)
        if not known or scheme.lower() != "bearer":
            return 401, "a token is needed: send it as `Authorization: Bearer …`"
        return None


class _LimitedBody:
    """Receives a request body, and reports a disconnect if it grows beyond the limit, whatever its header said."""

    def __init__(self, receive: Receive, body_bytes: int) -> None:
        self._receive = receive
        self._remaining = body_bytes

    async def __call__(self) -> Message:
        message = await self._receive()
        self._remaining -= len(message.get("body", b""))
        if self._remaining < 0:
            return {"type": "http.disconnect"}
        return message


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    host = host.lower()
    return host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]


def _host_of_origin(origin: str) -> str | None:
    """The host and port of an origin; None if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


async def _send_error(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
