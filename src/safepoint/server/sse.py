"""Sends events to browsers as server-sent events. They are numbered, so that a reader can resume where it stopped.

The log is read only as fast as the reader reads: a slow reader costs no memory, and one that no longer reads is
disconnected. Knows nothing of what the events mean.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..abort import AbortController, AbortError, AbortSignal
from ..agent.conversation import AgentResult
from ..session.host import SessionViews
from ..session.store import StoreError
from ..wire import event_to_json
from .metrics import Metrics

__all__ = ["Streams"]

PING_SECONDS = 15
# After this long without progress a reader is disconnected.
STUCK_SECONDS = 60.0
# When uvicorn shuts down, it waits for its responses: how long a stream may take to end by itself before it is cut off.
END_SECONDS = 1.0
HEADERS = {"x-accel-buffering": "no", "cache-control": "no-store"}


class Streams:
    """The open event streams of a server."""

    def __init__(self, views: SessionViews, metrics: Metrics) -> None:
        self._views = views
        self._gauge = metrics.streams
        self.open = 0

    def response(self, session_id: str, after: int) -> Response:
        """The events after a number, then new ones as they come."""
        return _Stream(self, session_id, after)

    async def send(self, session_id: str, after: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader leaves or the session is closed.

        Streams are counted here and not in the generator of events, which never runs if nothing is read.
        """
        self.open += 1
        self._gauge.inc()
        shutdown = _ShutdownEvent()
        # The library wants an `anyio.Event` and only ever calls its `set()`.
        shutdown_event: Any = shutdown
        try:
            async with aclosing(self._events(session_id, after, shutdown.signal)) as events:
                response = EventSourceResponse(
                    events,
                    headers=HEADERS,
                    ping=PING_SECONDS,
                    send_timeout=STUCK_SECONDS,
                    shutdown_event=shutdown_event,
                    shutdown_grace_period=END_SECONDS,
                )
                await response(scope, receive, send)
        except SendTimeoutError:
            pass  # the reader may reconnect, and resume where it stopped
        finally:
            self.open -= 1
            self._gauge.dec()

    async def _events(
        self, session_id: str, after: int, shutdown: AbortSignal
    ) -> AsyncGenerator[ServerSentEvent, None]:
        try:
            async with aclosing(shutdown.stream(self._views.events(session_id, after))) as events:
                async for recorded in events:
                    yield ServerSentEvent(
                        event_to_json(recorded.event, AgentResult), id=str(recorded.seq), event="event"
                    )
        except (AbortError, StoreError):
            return  # the stream breaks off; a reader that reconnects resumes where it stopped, or gets the error
        yield ServerSentEvent("", event="closed")


class _ShutdownEvent:
    """Aborts its signal when it is set, which sse-starlette does when the surrounding uvicorn begins to shut down."""

    def __init__(self) -> None:
        self._controller = AbortController()
        self.signal = self._controller.signal

    def set(self) -> None:
        self._controller.abort("the server shuts down")


class _Stream(Response):
    def __init__(self, streams: Streams, session_id: str, after: int) -> None:
        super().__init__()
        self._streams = streams
        self._position = session_id, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._streams.send(*self._position, scope, receive, send)
