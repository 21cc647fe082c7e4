"""Owns one order in a worker's hands: its lease, what is asked of it, and what becomes of it when the work has ended.

Runs in the supervisor's event loop, which never runs anybody's work. The record of stops is read at every renewal and
whenever the connection comes back. Knows nothing of what the work is.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from .broker import BrokerConnection, BrokerError, Order, Queue
from .executors import Executor
from .protocol import (
    WORK_MARKER,
    Assignment,
    Call,
    Ending,
    OwnerEnded,
    Reply,
    StopCall,
    attempt_of,
    from_json,
    to_json,
    with_tried,
)
from .stats import Stats
from .stop_sender import recorded_stops
from .wait_helpers import set_within

__all__ = ["OrderLease", "put_up_again"]

log = logging.getLogger("safepoint")
ACK_TRIES = 5
RENEWALS, RETRIES = 3, 10  # in the time of a lease


class OrderLease:
    """An order, held.

    grace    how long a turn that was told to stop at once may take before its process is ended
    changed  is called when the work begins or ceases to wait for a sub-agent
    """

    def __init__(
        self,
        connection: BrokerConnection,
        order: Order,
        queue: Queue,
        assignment: Assignment,
        executor: Executor,
        grace: float,
        stats: Stats,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._connection = connection
        self._order = order
        self._queue = queue
        self._grace = grace
        self._stats = stats
        self._changed = changed
        self.waits = False  # for a sub-agent: its place may be lent
        self._assignment = assignment
        self._session = assignment.session
        self._running: str | None = None
        self._due: dict[str, float] = {}  # turns that have to end, and until when
        self._passed_on = 0  # up to here the record of stops was passed on
        self._renewed = time.monotonic()
        self._look = asyncio.Event()
        self._read = asyncio.Event()
        self._over = False
        self._gave_up = False
        self._killed = False
        self.executor = executor

    async def run(self) -> Ending:
        """Hold it until the work has ended, and settle it."""
        self.executor.begin(self._assignment, self._heard, self._waiting)
        self.executor.renewed(self._renewed + self._connection.lease)
        forget = self._connection.on_return(self._returned)
        end = await self._connection.serve(("ctl", self._session), self._answer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep())
                group.create_task(self._pass_on_stops())
                ending = await self.executor.run()  # only now: whoever stops a turn and finds nobody is read of before
                self._over = True
                self._returned()
        finally:
            forget()
            await end()
        await self._settle(ending)
        return ending

    def _returned(self) -> None:
        self._look.set()
        self._read.set()

    def _heard(self, turn_id: str | None) -> None:
        if turn_id is None and self._running is not None:
            self._due.pop(self._running, None)
        self._running = turn_id

    def _waiting(self, waits: bool) -> None:
        self.waits = waits
        self._changed()

    # What is asked

    async def _answer(self, data: bytes) -> bytes:
        try:
            call: Call = from_json(Call, data)
        except BrokerError as error:
            return to_json(Reply.of(error))
        reply = await self.executor.ask(call)
        if isinstance(call, StopCall):
            self._must_end(call, reply)
            told = "the process that runs it does not answer"
            reply = reply or Reply(status="unknown", busy=1.0, turn_id=call.turn_id, message=told, heard=False)
        return to_json(reply or Reply(False, "the process that runs it does not answer", error="broken"))

    def _must_end(self, call: StopCall, reply: Reply | None) -> None:
        """Somebody stopped a turn: if it, or the one that goes on with it, does not end in time, its process will."""
        if reply is not None and reply.status == "already_finished":
            return
        if call.at in (None, "NOW") or call.within is not None:
            turn_id = reply.turn_id if reply is not None and reply.turn_id else call.turn_id
            limit = time.monotonic() + (call.within or 0.0) + self._grace
            self._due[turn_id] = min(limit, self._due.get(turn_id, limit))
            self._look.set()

    # The lease

    @property
    def _lost(self) -> bool:
        """True: the lease is over. Somebody else may have the order: nothing may be said of it any more."""
        return time.monotonic() - self._renewed > self._connection.lease

    async def _keep(self) -> None:
        """Renew the lease, and end what does not end, until the work is over."""
        next_renewal = 0.0
        while not self._over:
            if time.monotonic() >= next_renewal or self._look.is_set():
                self._look.clear()
                share = RENEWALS if await self._renew() else RETRIES
                next_renewal = time.monotonic() + self._connection.lease / share
            self._end_what_is_due()
            await set_within(min([next_renewal, *self._due.values()]) - time.monotonic(), self._look)

    async def _renew(self) -> bool:
        """Who comes too late has lost it, also if the broker takes the word of the one before."""
        asked, renewed = time.monotonic(), False
        if not self._lost:
            try:
                await self._order.renew()
                renewed = True
            except BrokerError as error:
                log.debug("session %s: the lease cannot be renewed: %s", self._session, error)
        if renewed and not self._lost:
            self._renewed = asked
            self.executor.renewed(asked + self._connection.lease)
        elif self._lost and not self._gave_up:
            self._gave_up = True
            log.warning("session %s: its lease is lost: the work on it ends", self._session)
            self.executor.cut("the lease is lost")
        return renewed

    async def _pass_on_stops(self) -> None:
        """Read the record of stops, as often as the lease is renewed. It takes its time: the lease does not wait."""
        lease = self._connection.lease
        while not self._over:
            self._read.clear()
            try:
                async with asyncio.timeout(lease):
                    await self._read_stops()
            except (BrokerError, TimeoutError) as error:
                log.debug("session %s: its stops cannot be read: %s", self._session, error)
            await set_within(lease / RENEWALS, self._read)

    async def _read_stops(self) -> None:
        for position, call in await recorded_stops(self._connection, self._session, self._passed_on):
            reply = await self.executor.ask(call)
            self._must_end(call, reply)
            if reply is None:
                break  # it is told again
            self._passed_on = position

    def _end_what_is_due(self) -> None:
        now = time.monotonic()
        for turn_id, limit in list(self._due.items()):
            if limit <= now:
                del self._due[turn_id]
                # Only the turn that runs can be what blocks: another one is not hit.
                if turn_id == self._running and self.executor.kill():
                    self._killed = True
                    self._stats.killed += 1
                    log.warning("turn %s did not end within %g s: its process was ended", turn_id, self._grace)

    # The end

    async def _settle(self, ending: Ending) -> None:
        """What becomes of the order."""
        if self._lost and ending != "fenced":
            log.info("session %s: its lease was over before its end: the order comes again", self._session)
            return
        try:
            match ending:
                case "idle":
                    await self._done()
                case "left":
                    # A hand-over is no failed attempt: the next one gets a new order, and should we die before it is
                    # up, whoever looks for inboxes without an order finds the note.
                    await self._connection.append("inbox", (self._session,), WORK_MARKER)
                    await self._done()
                case "failed" | "died":
                    # What was ended by force is sealed at once; what crashes is not tried again in a hurry.
                    if ending == "died":  # whoever goes on can say so, instead of that it may still run
                        ended = OwnerEnded(self._assignment.owner)
                        await self._connection.append("inbox", (self._session,), to_json(ended))
                    pause = 0.0 if self._killed else min(0.1 * 2**self._order.attempt, 5.0)
                    await self._order.give_back(pause)
                case "unstarted":
                    self._stats.failed_starts += 1
                    await put_up_again(self._connection, self._order, self._queue)
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
                if number == ACK_TRIES - 1 or self._lost:
                    raise
        # Who sent something in this very moment was told that there is an order.
        if await self._connection.read("inbox", (self._session,), 0, 1):
            await self._connection.order(self._queue, self._session, with_tried(self._order.data, 0))


async def put_up_again(connection: BrokerConnection, order: Order, queue: Queue) -> None:
    """Put up a new order in place of one for which nothing was tried. The broker would count it as one more attempt.

    The note in the inbox is for the case that this process dies in between: whoever looks for messages without an order
    finds it.
    """
    await connection.append("inbox", (order.session,), WORK_MARKER)
    await order.done()
    await connection.order(queue, order.session, with_tried(order.data, attempt_of(order) - 1))
