"""Owns one order in a worker's hands: its lease, what is asked of it, and what becomes of it when the work has ended.

Runs in the supervisor's event loop, which never runs anybody's work. The record of stops is read at every renewal and
whenever the connection comes back. Knows nothing of what the work is.
"""

import asyncio
import logging
import time

from .broker import BrokerError, Link, Order, Queue
from .orders import Assignment, Call, Ending, Reply, StopCall, from_json, to_json
from .seats import Seat
from .stats import Stats

__all__ = ["Hold"]

log = logging.getLogger("safepoint")
ACK_TRIES = 5


class Hold:
    """An order, held. `grace`: how long a turn that was told to stop at once may take before its process is ended."""

    def __init__(
        self, link: Link, order: Order, queue: Queue, assignment: Assignment, seat: Seat, grace: float, stats: Stats
    ) -> None:
        self._link = link
        self._order = order
        self._queue = queue
        self._grace = grace
        self._stats = stats
        self._assignment = assignment
        self._session = assignment.session
        self._running: str | None = None
        self._due: dict[str, float] = {}  # turns that have to end, and until when
        self._seen: dict[str, int] = {}  # which records of stops were passed on
        self._look = asyncio.Event()
        self._over = False
        self._gave_up = False
        self._killed = False
        self.seat = seat

    async def run(self) -> Ending:
        """Hold it until the work has ended, and settle it."""
        self.seat.begin(self._assignment, self._heard)
        forget = self._link.on_return(self._look.set)
        end = await self._link.serve(("ctl", self._session), self._answer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep())
                ending = await self.seat.run()
                self._over = True
                self._look.set()
        finally:
            forget()
            await end()
        await self._settle(ending)
        return ending

    def _heard(self, turn_id: str | None) -> None:
        if turn_id is None and self._running is not None:
            self._due.pop(self._running, None)
        self._running = turn_id

    # What is asked

    async def _answer(self, data: bytes) -> bytes:
        try:
            call: Call = from_json(Call, data)
        except BrokerError as error:
            return to_json(Reply.of(error))
        reply = await self.seat.ask(call)
        if isinstance(call, StopCall):
            self._must_end(call)
            reply = reply or Reply(
                status="unknown", busy=1.0, turn_id=call.turn_id, message="the process that runs it does not answer"
            )
        return to_json(reply or Reply(False, "the process that runs it does not answer", error="broken"))

    def _must_end(self, call: StopCall) -> None:
        """Somebody stopped a turn: if it does not end in time, its process will."""
        if call.at in (None, "NOW") or call.within is not None:
            limit = time.monotonic() + (call.within or 0.0) + self._grace
            self._due[call.turn_id] = min(limit, self._due.get(call.turn_id, limit))
            self._look.set()

    # The lease

    async def _keep(self) -> None:
        """Renew the lease, read the record of stops, and end what does not end, until the work is over."""
        lease = self._link.lease
        renewed, next_renewal = time.monotonic(), 0.0
        while not self._over:
            now = time.monotonic()
            if now >= next_renewal or self._look.is_set():
                self._look.clear()
                try:
                    await self._order.renew()
                    renewed = time.monotonic()
                    await self._read_stops()
                except BrokerError as error:
                    log.debug("session %s: the lease cannot be renewed: %s", self._session, error)
                next_renewal = time.monotonic() + lease / 3
                if time.monotonic() - renewed > lease and not self._gave_up:
                    self._gave_up = True
                    log.warning("session %s: its lease is lost: the work on it ends", self._session)
                    self.seat.cut("the lease is lost")
            self._end_what_is_due()
            await self._until(min([next_renewal, *self._due.values()]))

    async def _until(self, when: float) -> None:
        try:
            async with asyncio.timeout(max(when - time.monotonic(), 0.001)):
                await self._look.wait()
        except TimeoutError:
            pass

    async def _read_stops(self) -> None:
        for entry in await self._link.lasts("stops", (self._session,)):
            if self._seen.get(entry.key[-1]) != entry.position:
                call: StopCall = from_json(StopCall, entry.data)
                reply = await self.seat.ask(call)
                if reply is not None:
                    self._seen[entry.key[-1]] = entry.position
                self._must_end(call)

    def _end_what_is_due(self) -> None:
        now = time.monotonic()
        for turn_id, limit in list(self._due.items()):
            if limit <= now:
                del self._due[turn_id]
                # Only the turn that runs can be what blocks: another one is not hit.
                if turn_id == self._running and self.seat.kill():
                    self._killed = True
                    self._stats.killed += 1
                    log.warning("turn %s did not end within %g s: its process was ended", turn_id, self._grace)

    # The end

    async def _settle(self, ending: Ending) -> None:
        """What becomes of the order."""
        try:
            match ending:
                case "idle":
                    await self._done()
                case "left":
                    await self._order.give_back()
                case "failed" | "died":
                    # What was ended by force is sealed at once; what crashes is not tried again in a hurry.
                    pause = 0.0 if self._killed else min(0.1 * 2**self._order.attempt, 5.0)
                    await self._order.give_back(pause)
                case "fenced":
                    self._stats.fenced += 1  # it is not ours: whoever has it settles it
        except BrokerError as error:
            log.info("session %s: its order could not be settled (%s): it comes again", self._session, error)

    async def _done(self) -> None:
        for number in range(ACK_TRIES):
            try:
                await self._order.done()
                break
            except BrokerError:
                if number == ACK_TRIES - 1:
                    raise
        # Who sent something in this very moment was told that there is an order.
        if await self._link.read("inbox", (self._session,), 0, 1):
            await self._link.order(self._queue, self._session, self._order.data)
