"""Owns the way of events to a browser: server-sent events, numbered, so that a reader goes on where it was.

The log is pulled as fast as the reader reads: a slow one holds no memory, and one that has stopped reading is let go.
Knows nothing of what the events mean.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..abort import AbortController, AbortError
from ..agent.conversation import AgentResult
from ..run.wire import event_to_json
from ..session.host import Host
from ..session.store import StoreError
from .metrics import Metrics

__all__ = ["Streams"]

PING_SECONDS = 15
STUCK_SECONDS = 60.0
# A uvicorn that ends waits for its responses. So long a stream may take to end by itself before it is cut off.
END_SECONDS = 1.0
HEADERS = {"x-accel-buffering": "no", "cache-control": "no-store"}


class Streams:
    """The streams that are open."""

    def __init__(self, host: Host, metrics: Metrics) -> None:
        self._host = host
        self._gauge = metrics.streams
        self.open = 0

    def response(self, session_id: str, after: int) -> Response:
        """Everything after this number, then what comes."""
        return _Stream(self, session_id, after)

    async def send(self, session_id: str, after: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Until the reader leaves or the session is closed. Counted here, which also ends if nothing was ever read."""
        self.open += 1
        self._gauge.inc()
        server_ends: Any = _ServerEnds()
        options: Any = {"ping": PING_SECONDS, "send_timeout": STUCK_SECONDS, "headers": HEADERS}
        ending: Any = {"shutdown_event": server_ends, "shutdown_grace_period": END_SECONDS}
        try:
            async with aclosing(self._events(session_id, after, server_ends)) as events:
                await EventSourceResponse(events, **options, **ending)(scope, receive, send)
        except SendTimeoutError:
            pass  # it may come back, and go on where it was
        finally:
            self.open -= 1
            self._gauge.dec()

    async def _events(
        self, session_id: str, after: int, server_ends: "_ServerEnds"
    ) -> AsyncGenerator[ServerSentEvent, None]:
        try:
            async with aclosing(server_ends.signal.stream(self._host.events(session_id, after))) as events:
                async for recorded in events:
                    yield ServerSentEvent(
                        event_to_json(recorded.event, AgentResult), id=str(recorded.seq), event="event"
                    )
        except (AbortError, StoreError):
            return  # the stream breaks off; whoever comes back goes on where it was, or is told why
        yield ServerSentEvent("", event="closed")


class _ServerEnds:
    """What sse-starlette sets, as if it were an event of anyio, when the uvicorn around it begins to end."""

    def __init__(self) -> None:
        self._controller = AbortController()
        self.signal = self._controller.signal

    def set(self) -> None:
        self._controller.abort("the server shuts down")


class _Stream(Response):
    def __init__(self, streams: Streams, session_id: str, after: int) -> None:
        super().__init__()
        self._streams = streams
        self._about = session_id, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._streams.send(*self._about, scope, receive, send)
