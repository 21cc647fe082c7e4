"""Owns the stream of the events of one turn. Closing the stream stops exactly that turn."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType

from ..abort import AbortReason
from ..events import Event, SessionClosed, SessionOpened, TurnEnded, TurnStarted
from ..run.stop import StopAt
from .log import LoggedEvent
from .turn import SessionTurn

__all__ = ["TurnStream"]

# Events of the session itself, which belong to no turn.
SESSION_EVENTS = (SessionOpened, SessionClosed)


class TurnStream:
    """The events of one turn: `async with session.stream(["hi"]) as events: async for event in events: …`.

    Args:
        turn: The turn.
        events: The events of its session, from before the turn was accepted.

    Attributes:
        turn: The turn.
    """

    def __init__(self, turn: SessionTurn, events: AsyncGenerator[LoggedEvent, None]) -> None:
        self.turn = turn
        self._source = events
        self._events = self._follow()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def _follow(self) -> AsyncGenerator[Event, None]:
        if self.turn.result is not None and not self.turn.end_seq:
            return  # it was stopped before it was accepted, so it is not in the log
        with self.turn.awaited("reading its events"):
            async for event in self._events_of_turn():
                yield event

    async def _events_of_turn(self) -> AsyncGenerator[Event, None]:
        running = False
        async with aclosing(self._source) as logged_events:
            async for logged in logged_events:
                event = logged.event
                turn_id = getattr(event, "turn_id", None)
                # While it runs, an event that belongs to no turn of this session was passed on by one of its tools.
                if turn_id == self.turn.id or (running and turn_id is None and not isinstance(event, SESSION_EVENTS)):
                    yield event
                running = running or (turn_id == self.turn.id and isinstance(event, TurnStarted))
                if turn_id == self.turn.id and isinstance(event, TurnEnded):
                    return

    async def __aenter__(self) -> "TurnStream":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.turn.result is None:
            self.turn.stop(StopAt.NOW, reason=AbortReason("disconnected", "its events were no longer read"))
        await self._events.aclose()
        await self._source.aclose()
        await self.turn.until_ended()
