"""The web application: the API, the page, and the access control before them. Knows nothing of how it is served."""

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
from .api import Api, Limits
from .metrics import Metrics
from .schemas import document

__all__ = ["App", "create_app"]

STATIC = Path(__file__).parent / "static"
# Text of models is shown as markdown. Even if the sanitizer let a script through, the browser would not run it.
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class App:
    """The ASGI application for one host; see `create_app()`.

    Attributes:
        host: The host.
        metrics: The counters of this server.
    """

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
            Route("/metrics", self._metrics_text),
            Route("/openapi.json", self._openapi),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        inner = _with_headers(Starlette(routes=routes, lifespan=self._lifespan))
        self._access = AccessControl(inner, token=token, hosts=hosts, body_bytes=limits.body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await self._access(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Recover and close the host, in servers that implement the lifespan protocol of ASGI."""
        await self.host.recover()
        yield
        self.drain()
        await self.host.close(within=self._within, reason="the server shuts down")

    def drain(self) -> None:
        """Accept no new work. What runs goes on."""
        self._api.draining = True

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-store"})

    async def _health(self, request: Request) -> Response:
        status = "draining" if self._api.draining else "ok"
        return JSONResponse({"status": status}, 503 if self._api.draining else 200)

    async def _metrics_text(self, request: Request) -> Response:
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
    """Create the server as an ASGI application.

    When the server starts, the host recovers interrupted turns, and when the server stops, the host is closed. Both
    follow from the lifespan protocol of ASGI. A mounted application does not receive it: there the caller must call
    `host.recover()` and `host.close()`.

    Args:
        host: The host whose sessions it serves.
        token: The token that every request must have, as `Authorization: Bearer …`. None needs no token, which is safe
            on loopback only.
        hosts: The host names by which the server may be addressed, besides those of loopback; None allows any.
        limits: The limits of the server.
        within: The seconds in which turns may reach a safe point when the server stops; then they are stopped at once.
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
