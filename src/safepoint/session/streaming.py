"""Owns the events of one turn as a stream that its reader holds: closing it aborts exactly that turn."""

from collections.abc import AsyncIterator
from types import TracebackType

from ..abort import AbortReason
from ..run.events import Event, StopRequested, TurnEnded, TurnQueued, TurnStarted
from ..run.stop import StopAt
from .log import Log
from .turn import SessionTurn

__all__ = ["TurnStream"]


class TurnStream:
    """`async with session.stream(["hi"]) as events: async for event in events: …`"""

    def __init__(self, turn: SessionTurn, log: Log, after: int) -> None:
        self.turn = turn
        self._events = self._follow(log, after)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def _follow(self, log: Log, after: int) -> AsyncIterator[Event]:
        if self.turn.result is not None and self.turn.result.outcome.started_at == 0.0:
            return  # it was stopped before it was accepted: nothing of it is in the log
        async for recorded in log.follow(after):
            event = recorded.event
            if turn_of(event) == self.turn.id:
                yield event
                if isinstance(event, TurnEnded):
                    return

    async def __aenter__(self) -> "TurnStream":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.turn.result is None:
            self.turn.stop(StopAt.NOW, reason=AbortReason("disconnected", "its events were no longer read"))
            await self.turn


def turn_of(event: Event) -> str:
    """The turn an event belongs to."""
    if isinstance(event, TurnQueued | TurnStarted | TurnEnded | StopRequested):
        return event.turn_id
    return event.run_id
