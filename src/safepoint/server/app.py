"""Owns the web application: the API, the page and the door before them. Knows nothing of how it is served."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..abort.clock import check_seconds
from ..session.host import Host
from .access import AccessControl
from .api import Api
from .limits import Limits
from .metrics import Metrics
from .openapi import document

__all__ = ["App", "create_app"]

STATIC = Path(__file__).parent / "static"
# Model text is shown as markdown: even if the sanitizer let something through, the browser would not run it.
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class App:
    """An ASGI application over one host."""

    def __init__(
        self, host: Host, token: str | None, hosts: Iterable[str] | None, limits: Limits, within: float
    ) -> None:
        self.host = host
        self._within = check_seconds("within", within)
        self.metrics = Metrics()
        self._api = Api(host, limits, self.metrics)
        routes = [
            *self._api.routes(),
            Route("/", self._page),
            Route("/healthz", self._health),
            Route("/metrics", self._numbers),
            Route("/openapi.json", self._openapi),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        inner = _with_headers(Starlette(routes=routes, lifespan=self._lifespan))
        self._door = AccessControl(inner, token=token, hosts=hosts, body_bytes=limits.body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        await self._door(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """From the start of the server to its end, in servers that speak ASGI's lifespan protocol."""
        await self.host.recover()
        yield
        self.drain()
        await self.host.close(within=self._within, reason="the server shuts down")

    def drain(self) -> None:
        """Take no new work; what runs goes on."""
        self._api.draining = True

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-store"})

    async def _health(self, request: Request) -> Response:
        status = "draining" if self._api.draining else "ok"
        return JSONResponse({"status": status}, 503 if self._api.draining else 200)

    async def _numbers(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(document())


def create_app(
    host: Host,
    *,
    token: str | None = None,
    hosts: Iterable[str] | None = (),
    limits: Limits | None = None,
    within: float = 5.0,
) -> App:
    """The server as an ASGI application.

    When the server begins, the host goes on with what was left behind, and when the server ends the host is closed.
    Both are heard by ASGI's lifespan protocol, which a mounted application does not get: there its owner does both.

    token  needed from everybody, as `Authorization: Bearer …`; None: nobody is asked, which is for loopback only
    hosts  the names by which it may be called, beside those of loopback; None: any
    within  seconds in which turns may reach a safe point when the server ends, before they are stopped at once
    """
    return App(host, token, hosts, limits or Limits(), within)


def _with_headers(app: ASGIApp) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, sending)

    return wrapped
