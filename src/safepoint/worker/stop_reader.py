"""Owns how the process that runs a session looks at the record of stops: one request at a time, shared by all who ask.

Whoever was frozen while a stop was recorded and acknowledged must not begin a tool, or complete a turn, before it has
seen that. Knows nothing of turns.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from ..abort import AbortController, AbortError
from .broker import BrokerConnection, BrokerError
from .protocol import StopCall
from .stall_detector import StallDetector
from .stop_sender import recorded_stops

__all__ = ["StopReader"]

log = logging.getLogger("safepoint")
AGAIN_SECONDS = 0.1
# A loop that is late at every look is overloaded and not frozen: it goes on with what it has read.
LOOKS = 3


class StopReader:
    """The record of stops of one session, as far as it was read and applied.

    Attributes:
        position: Up to here the record is applied.
    """

    def __init__(
        self, connection: BrokerConnection, session: str, apply: Callable[[StopCall], object], pulse: StallDetector
    ) -> None:
        """Make one; `keep_reading()` is what reads.

        Args:
            link: The connection to the broker.
            session: The id of the session.
            apply: Told of each stop, in order. When it returns, the turn's signal says so.
            pulse: The beat of this event loop.
        """
        self._connection = connection
        self._session = session
        self._apply = apply
        self._pulse = pulse
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._closing = AbortController()
        self.position = 0

    def want(self) -> None:
        """Look soon. Nobody waits for it."""
        self._wanted.set()

    async def look(self) -> None:
        """Wait until every stop that was recorded before this call is applied.

        Those who ask in one round of the event loop share one request; who comes while it is on its way waits for the
        next one. While the broker does not answer the wait goes on: whoever waits ends it with the signal of its turn.
        After `close()` it returns at once.
        """
        if self._closing.signal.aborted:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._wanted.set()
        await waiter

    async def keep_reading(self) -> None:
        """Read whenever somebody wants it, until `close()`."""
        asked: list[asyncio.Future[None]] = []
        try:
            while True:
                await self._closing.signal.run(self._wanted.wait())
                self._wanted.clear()
                asked, self._waiting = self._waiting, []
                await self._read()
                _tell(asked)
        except AbortError:
            pass  # closed
        finally:
            _tell([*asked, *self._waiting])

    async def _read(self) -> None:
        """Read what is new. An answer that was given before the process stood still says nothing of what came since."""
        for _ in range(LOOKS):
            began = time.monotonic()
            for position, call in await self._answered():
                self._apply(call)
                self.position = position
            if not self._pulse.was_late_since(began):
                break

    async def _answered(self) -> list[tuple[int, StopCall]]:
        while True:
            try:
                return await self._closing.signal.run(recorded_stops(self._connection, self._session, self.position))
            except BrokerError as error:
                log.debug("session %s: its stops cannot be read: %s", self._session, error)
            await self._closing.signal.sleep(AGAIN_SECONDS)

    def close(self) -> None:
        """Read nothing more: every turn has ended, or was stopped."""
        self._closing.abort("nothing runs here any more")


def _tell(waiting: list[asyncio.Future[None]]) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)
