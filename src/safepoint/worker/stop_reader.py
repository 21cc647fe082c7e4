"""Reads the record of stops, above all in the process that runs a session: one request for everybody who waits.

A process that was frozen while a stop was recorded and acknowledged must not begin a tool call, or complete a turn,
before it has read that stop. So the reader knows when its event loop has stalled.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from ..abort import AbortController, AbortError, AbortReason
from ..abort.event_loop import resolve
from ..events import StopRequested
from ..session.log import decode_record
from ..session.session_state import SessionState
from ..session.store import LogRecord
from ..wire import event_to_json
from .broker import BrokerError, ReadableStreams
from .protocol import StopCall, Unreadable, from_json
from .store import BrokerStore

__all__ = ["StallDetector", "StopReader", "recorded_stops", "write_stops"]

log = logging.getLogger("safepoint")
RETRY_SECONDS = 0.1
# A loop that stalls during every read is overloaded and not frozen: after this many reads it uses what it has read.
READS = 3
BEAT_SECONDS = 0.1
STALL_SECONDS = 2 * BEAT_SECONDS


class StallDetector:
    """Notices that an event loop, or the whole process, has stood still: a timer that should fire regularly fires late.

    A process is frozen by a debugger, a paused container, a closed laptop or a machine that was not scheduled. Replies
    that it reads afterwards may have been sent long before. It watches the event loop in which it is created, and
    reports no stall before `start()`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = float("inf")  # when the next beat should come
        self._last_stall = float("-inf")
        self._callbacks: list[Callable[[], object]] = []
        self._stopped = False

    def start(self) -> None:
        """Watch from now on, until `stop()`."""
        self._due = time.monotonic() + BEAT_SECONDS
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        if self._stopped:
            return
        late = self.stalled_for > 0.0
        if late:
            self._last_stall = time.monotonic()
        self.start()
        if late:
            for callback in list(self._callbacks):
                callback()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped = True
        self._due = float("inf")

    @property
    def stalled_for(self) -> float:
        """The seconds for which the loop has been blocked; 0.0 if it is not. May be read from any thread."""
        late = time.monotonic() - self._due
        return late if late > STALL_SECONDS else 0.0

    def stalled_since(self, moment: float) -> bool:
        """Whether the loop was blocked at any time after a moment of the monotonic clock, or still is."""
        return self._last_stall >= moment or self.stalled_for > 0.0

    def on_stall(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back in the loop as soon as it moves again after a stall. Returns how to end that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)


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


async def recorded_stops(streams: ReadableStreams, session: str, after: int = 0) -> list[tuple[int, StopCall]]:
    """The recorded stops of a session after a position, each with its own. An unreadable one counts as a stop too."""
    found = []
    for entry in await streams.last_per_key("stops", (session,), after):
        try:
            call = from_json(StopCall, entry.data)
        except Unreadable as error:
            log.warning("session %s: turn %s is stopped: %s", session, entry.key[-1], error)
            call = StopCall(
                entry.key[-1],
                "NOW",
                None,
                AbortReason("user", "it was stopped by a request that cannot be read").to_dict(),
            )
        found.append((entry.position, call))
    return found


async def write_stops(store: BrokerStore, session: str, stopped: Mapping[str, StopCall]) -> bool:
    """Write stops that were recorded while a session had no owner to its log, before it is opened.

    An open turn with such an event is ended as stopped when the session is opened, instead of being resumed.

    Args:
        store: The store of the new owner.
        session: The session.
        stopped: The stops, by the ids of their turns.

    Returns:
        False if the turn that would be resumed was stopped.
    """
    state, last, end = SessionState(), 0, await store.acquire(session)
    while last < end and (page := await store.read(session, last)):
        for record in page:
            state.apply(decode_record(record).event)
        last = page[-1].seq
    stopped = {state.successor(turn_id): call for turn_id, call in stopped.items()}
    records = [
        LogRecord(last + number, event_to_json(_stop_event(session, turn.id, stopped[turn.id])))
        for number, turn in enumerate((t for t in state.open_turns if t.id in stopped and t.stop is None), 1)
    ]
    await store.append(session, records, durable=True)
    begun = any(turn.started for turn in state.open_turns)  # that turn would be resumed
    return begun or state.interrupted not in stopped


def _stop_event(session: str, turn_id: str, call: StopCall) -> StopRequested:
    return StopRequested(
        run_id=turn_id,
        path=(session,),
        at=time.time(),
        turn_id=turn_id,
        at_point=call.at or "NOW",
        abandon=call.abandon,
        reason=call.abort_reason.message,
        reason_kind=call.abort_reason.kind,
    )
