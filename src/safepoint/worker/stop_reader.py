"""Reads the record of stops in the process that runs a session: one request at a time, shared by everybody who waits.

A process that was frozen while a stop was recorded and acknowledged must not begin a tool call, or complete a turn,
before it has read that stop. Knows nothing of turns.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from ..abort import AbortController, AbortError
from ..abort.event_loop import resolve
from .broker import BrokerError, ReadableStreams
from .protocol import StopCall
from .stall_detector import StallDetector
from .stop_sender import recorded_stops

__all__ = ["StopReader"]

log = logging.getLogger("safepoint")
RETRY_SECONDS = 0.1
# A loop that stalls during every read is overloaded and not frozen: after this many reads it uses what it has read.
READS = 3


class StopReader:
    """The record of stops of one session, as far as it was read and applied.

    Attributes:
        position: The position of the last stop that was applied.
    """

    def __init__(
        self,
        streams: ReadableStreams,
        session: str,
        apply: Callable[[StopCall], object],
        stall_detector: StallDetector,
    ) -> None:
        """Create it; `keep_reading()` does the reading.

        Args:
            streams: The streams of the broker.
            session: The id of the session.
            apply: Called with each stop, in order. When it returns, the signal of the turn is aborted.
            stall_detector: Watches this event loop.
        """
        self._streams = streams
        self._session = session
        self._apply = apply
        self._stall_detector = stall_detector
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._closing = AbortController()
        self.position = 0

    def request_read(self) -> None:
        """Read the record soon, without waiting for it."""
        self._wanted.set()

    async def catch_up(self) -> None:
        """Wait until every stop that was recorded before this call is applied.

        Calls in the same round of the event loop share one request. A call that comes while a request is on its way
        waits for the next request, because the broker may have answered the first one before the stop was recorded.
        While the broker does not answer, the wait goes on; the signal of the caller's turn ends it. After `close()` it
        returns at once.
        """
        if self._closing.signal.aborted:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._wanted.set()
        await waiter

    async def keep_reading(self) -> None:
        """Read the record whenever it is requested, until `close()`."""
        served: list[asyncio.Future[None]] = []
        try:
            while True:
                await self._closing.signal.run(self._wanted.wait())
                self._wanted.clear()
                served, self._waiting = self._waiting, []
                await self._read()
                for waiter in served:
                    resolve(waiter, None)
        except AbortError:
            pass  # closed
        finally:
            for waiter in (*served, *self._waiting):
                resolve(waiter, None)

    async def _read(self) -> None:
        """Read and apply what is new.

        A reply may have been sent before this process was frozen, and be read after it: then it lacks the stops that
        were recorded meanwhile. So the record is read again if the event loop has stalled since the request was sent.
        """
        for _ in range(READS):
            began = time.monotonic()
            for position, call in await self._new_stops():
                self._apply(call)
                self.position = position
            if not self._stall_detector.stalled_since(began):
                break

    async def _new_stops(self) -> list[tuple[int, StopCall]]:
        while True:
            try:
                return await self._closing.signal.run(recorded_stops(self._streams, self._session, self.position))
            except BrokerError as error:
                log.debug("session %s: its stops cannot be read: %s", self._session, error)
            await self._closing.signal.sleep(RETRY_SECONDS)

    def close(self) -> None:
        """Read nothing more: every turn has ended, or was stopped."""
        self._closing.abort("nothing runs here any more")
