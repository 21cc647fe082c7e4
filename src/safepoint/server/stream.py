"""Owns the way of events to a browser: server-sent events, numbered, so that a reader goes on where it was.

The log is pulled as fast as the reader reads: a slow one holds no memory. Knows nothing of what the events mean.
"""

from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse, ServerSentEvent

from ..agent.talk import AgentResult
from ..run.wire import to_json
from ..session.host import Host
from .metrics import Metrics

__all__ = ["event_stream"]

PING_SECONDS = 15


def event_stream(host: Host, session_id: str, after: int, metrics: Metrics) -> EventSourceResponse:
    """Everything after this number, then what comes."""
    headers = {"x-accel-buffering": "no", "cache-control": "no-store"}
    return EventSourceResponse(_events(host, session_id, after, metrics), ping=PING_SECONDS, headers=headers)


async def _events(host: Host, session_id: str, after: int, metrics: Metrics) -> AsyncIterator[ServerSentEvent]:
    metrics.streams.inc()
    try:
        async for recorded in host.events(session_id, after):
            yield ServerSentEvent(to_json(recorded.event, AgentResult), id=str(recorded.seq), event="event")
        yield ServerSentEvent("", event="closed")
    finally:
        metrics.streams.dec()
