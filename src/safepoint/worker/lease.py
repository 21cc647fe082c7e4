"""The lease of one order while a worker holds it, and the agreement of all workers on how long leases are.

`OrderLease` renews the lease, forwards calls and stops to the work, and settles the order at the end. Runs in the
supervisor's event loop, in which no session runs. Knows nothing of what the work is.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..abort.event_loop import set_within
from .broker import (
    RETENTION,
    BrokerConnection,
    BrokerError,
    LeaseInForce,
    Order,
    Queue,
    QueueLease,
    ReadableStreams,
    same_lease,
)
from .executors import Executor
from .protocol import (
    WORK_MARKER,
    Assignment,
    Ending,
    OwnerEnded,
    Reply,
    Stats,
    StopCall,
    Unreadable,
    WorkerInfo,
    attempt_of,
    call_from_json,
    from_json,
    to_json,
    with_tried,
)
from .stop_reader import recorded_stops

__all__ = ["OrderLease", "TakenOrder", "agree_on_lease", "requeue"]

log = logging.getLogger("safepoint")
COMPLETE_TRIES = 5
# How often the lease is renewed in the time of one lease, and how often a renewal is tried again after a failure.
RENEWALS_PER_LEASE, RETRIES_PER_LEASE = 3, 10
# How long to wait for a worker that was started at the same moment with another lease, and that will be refused.
OTHERS_SECONDS = 2.0
RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class TakenOrder:
    """An order that a worker has taken.

    Attributes:
        order: The order.
        queue: The queue that it comes from, and that a new order for the same work goes to.
        assignment: The order as the executor receives it.
    """

    order: Order
    queue: Queue
    assignment: Assignment


class OrderLease:
    """One order while it is held.

    A stop reaches the work in two ways. Directly: the sender's request to the subject ("ctl", session) is answered
    here. Through the record: the sender also writes the stop to the stream of stops, which is read when work begins, at
    every renewal, and after a reconnect. Neither way is enough alone. A request is lost if it is sent before the
    subject is served, while the connection is down, or while this process is frozen; the record is durable but read
    only now and then. A stop that arrives both ways is applied once (see `OrderRunner.stop`).

    Attributes:
        waits: True while the work waits for a sub-agent elsewhere, so that its place may be lent.
        executor: Where the work runs.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        taken: TakenOrder,
        executor: Executor,
        grace: float,
        stats: Stats,
        on_waiting: Callable[[], object] = lambda: None,
    ) -> None:
        """Create it; `run()` does everything.

        Args:
            connection: The connection of the supervisor.
            taken: The order.
            executor: Where its work runs.
            grace: How long a turn may take to end after an immediate stop before its process is killed.
            stats: The counters of the worker.
            on_waiting: Called when `waits` changes.
        """
        self._connection = connection
        self._order = taken.order
        self._queue = taken.queue
        self._assignment = taken.assignment
        self._session = taken.assignment.session
        self._grace = grace
        self._stats = stats
        self._on_waiting = on_waiting
        self._running: str | None = None
        self._kill_at: dict[str, float] = {}  # stopped turns, and when their process is killed if they have not ended
        self._forwarded = 0  # the position up to which recorded stops were forwarded to the work
        self._renewed = time.monotonic()  # the lease is counted from here
        self._renew_now = asyncio.Event()
        self._read_stops_now = asyncio.Event()
        self._work_ended = False
        self._revoked = False
        self._killed = False
        self.waits = False
        self.executor = executor

    async def run(self) -> Ending:
        """Hold the order until its work has ended, then settle it."""
        self.executor.begin(self._assignment, self._on_turn, self._on_waiting_changed)
        self.executor.lease_renewed(self._renewed + self._connection.lease)
        forget = self._connection.on_reconnect(self._check_now)
        end_serving = await self._connection.serve(("ctl", self._session), self._handle_request)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease())
                group.create_task(self._forward_recorded_stops())
                # Start the work only after the control subject is served. A stop sent before that finds no responder;
                # its sender makes sure that the stop is recorded, and the work reads the record when it starts. A stop
                # sent after that reaches _handle_request(). Swapping the two steps opens a gap: a stop recorded after
                # the work has read the record and sent before the subject is served finds no responder, so its sender
                # reports that the turn will not begin, while the turn is already running.
                ending = await self.executor.run()
                self._work_ended = True
                self._check_now()
        finally:
            forget()
            await end_serving()
        await self._settle(ending)
        return ending

    def _check_now(self) -> None:
        """Renew the lease and read the recorded stops without waiting for the next interval."""
        self._renew_now.set()
        self._read_stops_now.set()

    def _on_turn(self, turn_id: str | None) -> None:
        if turn_id is None and self._running is not None:
            self._kill_at.pop(self._running, None)
        self._running = turn_id

    def _on_waiting_changed(self, waits: bool) -> None:
        self.waits = waits
        self._on_waiting()

    # Calls

    async def _handle_request(self, data: bytes) -> bytes:
        try:
            call = call_from_json(data)
        except BrokerError as error:
            return to_json(Reply.from_error(error))
        reply = await self.executor.request(call)
        if isinstance(call, StopCall):
            self._schedule_kill(call, reply)
            message = "the process that runs it does not answer"
            reply = reply or Reply(status="unknown", busy=1.0, turn_id=call.turn_id, message=message, heard=False)
        return to_json(reply or Reply(False, "the process that runs it does not answer", error="broken"))

    def _schedule_kill(self, call: StopCall, reply: Reply | None) -> None:
        """Note when to kill the process of a stopped turn, or of its successor, if the turn has not ended by then."""
        if reply is not None and reply.status == "already_finished":
            return
        if call.at in (None, "NOW") or call.within is not None:
            turn_id = reply.turn_id if reply is not None and reply.turn_id else call.turn_id
            limit = time.monotonic() + (call.within or 0.0) + self._grace
            self._kill_at[turn_id] = min(limit, self._kill_at.get(turn_id, limit))
            self._renew_now.set()

    # The lease

    @property
    def _lost(self) -> bool:
        """True if the lease is over: another worker may have the order, so this one must leave it alone."""
        return time.monotonic() - self._renewed > self._connection.lease

    async def _keep_lease(self) -> None:
        """Renew the lease, and kill what is overdue, until the work has ended."""
        next_renewal = 0.0
        while not self._work_ended:
            if time.monotonic() >= next_renewal or self._renew_now.is_set():
                self._renew_now.clear()
                rate = RENEWALS_PER_LEASE if await self._renew() else RETRIES_PER_LEASE
                next_renewal = time.monotonic() + self._connection.lease / rate
            self._kill_overdue()
            await set_within(min([next_renewal, *self._kill_at.values()]) - time.monotonic(), self._renew_now)

    async def _renew(self) -> bool:
        """Renew the lease once. Returns whether the broker has accepted it.

        The new lease counts from the moment in which the renewal was sent, not from the reply, so that it never ends
        later here than at the broker. For the same reason a renewal whose reply comes after the old lease was over
        counts as lost, even though the broker has accepted it: the order may have been delivered to another worker
        first, and the broker does not tell apart the two holders of one delivery.
        """
        requested, renewed = time.monotonic(), False
        if not self._lost:
            try:
                await self._order.renew()
                renewed = True
            except BrokerError as error:
                log.debug("session %s: the lease cannot be renewed: %s", self._session, error)
        if renewed and not self._lost:
            self._renewed = requested
            self.executor.lease_renewed(requested + self._connection.lease)
        elif self._lost and not self._revoked:
            self._revoked = True
            log.warning("session %s: its lease is lost: the work on it ends", self._session)
            self.executor.revoke("the lease is lost")
        return renewed

    async def _forward_recorded_stops(self) -> None:
        """Read the record of stops as often as the lease is renewed.

        It is a task of its own because reading may take long, and the renewal of the lease must not wait for it.
        """
        lease = self._connection.lease
        while not self._work_ended:
            self._read_stops_now.clear()
            try:
                async with asyncio.timeout(lease):
                    await self._read_stops()
            except (BrokerError, TimeoutError) as error:
                log.debug("session %s: its stops cannot be read: %s", self._session, error)
            await set_within(lease / RENEWALS_PER_LEASE, self._read_stops_now)

    async def _read_stops(self) -> None:
        for position, call in await recorded_stops(self._connection, self._session, self._forwarded):
            reply = await self.executor.request(call)
            self._schedule_kill(call, reply)
            if reply is None:
                break  # this one and those after it are read again next time
            self._forwarded = position

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for turn_id, limit in list(self._kill_at.items()):
            if limit <= now:
                del self._kill_at[turn_id]
                # Only the running turn can block the process. A turn that waits must not cost another one its process.
                if turn_id == self._running and self.executor.kill():
                    self._killed = True
                    self._stats.killed += 1
                    log.warning("turn %s did not end within %g s: its process was ended", turn_id, self._grace)

    # The end

    async def _settle(self, ending: Ending) -> None:
        """Complete the order, return it, or replace it by a new one, depending on how the work ended."""
        if self._lost and ending != "fenced":
            log.info("session %s: its lease was over before its end: the order is delivered again", self._session)
            return
        try:
            match ending:
                case "idle":
                    await self._complete()
                case "left":
                    # A hand-over is no failed attempt, so the next owner gets a new order instead of a redelivery. The
                    # marker comes first: should this process die before the new order exists, the search for inboxes
                    # without an order finds the session.
                    await self._connection.append("inbox", (self._session,), WORK_MARKER)
                    await self._complete()
                case "failed" | "died":
                    if ending == "died":  # so that the next owner knows that this one cannot run any more
                        ended = OwnerEnded(self._assignment.owner)
                        await self._connection.append("inbox", (self._session,), to_json(ended))
                    # After a kill the next owner writes the end of the turn at once; after a crash there is a pause.
                    pause = 0.0 if self._killed else min(0.1 * 2**self._order.attempt, 5.0)
                    await self._order.give_back(pause)
                case "unstarted":
                    self._stats.failed_starts += 1
                    await requeue(self._connection, self._order, self._queue)
                case "fenced":
                    self._stats.fenced += 1  # the order belongs to the new owner, who settles it
        except BrokerError as error:
            log.info("session %s: its order could not be settled (%s): it is delivered again", self._session, error)

    async def _complete(self) -> None:
        for number in range(COMPLETE_TRIES):
            try:
                await self._order.complete()
                break
            except BrokerError:
                if number == COMPLETE_TRIES - 1 or self._lost:
                    raise
        # There is at most one order for a session: a message that was sent just before the order was completed has
        # relied on it. Look at the inbox after the completion, not before, or that message stays without an order.
        if await self._connection.read("inbox", (self._session,), 0, 1):
            await self._connection.enqueue(self._queue, self._session, with_tried(self._order.data, 0))


async def requeue(connection: BrokerConnection, order: Order, queue: Queue) -> None:
    """Replace an order for which nothing was tried by a new one, so that the delivery does not count as an attempt.

    The marker in the inbox comes first: should this process die before the new order exists, the search for inboxes
    without an order finds the session.
    """
    await connection.append("inbox", (order.session,), WORK_MARKER)
    await order.complete()
    await connection.enqueue(queue, order.session, with_tried(order.data, attempt_of(order) - 1))


class LeaseConnection(QueueLease, ReadableStreams, Protocol):
    """What the agreement uses of a connection: it reads the announcements of workers, and sets the lease."""


async def agree_on_lease(connection: LeaseConnection, name: str, queues: Sequence[Queue]) -> None:
    """Ensure that `connection.lease` is in force for these queues.

    The broker applies one lease to the whole queue. A worker that renews every three seconds would lose healthy orders
    if another one set the lease to two. So a worker that was started with another lease than the one in force is
    refused, unless no other worker uses that one.

    Call it after this worker has announced itself with its lease, not before: of two workers that start at the same
    moment, at least one then sees the announcement of the other, so two leases are never in use.

    Args:
        connection: The connection of the worker.
        name: The name of the worker. An announcement under the same name is an earlier one of its own.
        queues: The queues that it takes orders from.

    Raises:
        LeaseInForce: Other workers use another lease.
        BrokerError: The broker does not answer.
    """
    until = time.monotonic() + OTHERS_SECONDS
    while True:
        others = await _other_workers(connection, name)
        refused = [error for queue in queues if (error := await _apply_lease(connection, queue, others)) is not None]
        if not refused:
            return
        if time.monotonic() > until or not same_lease(refused[0].seconds, connection.lease):
            raise refused[0]
        await asyncio.sleep(RETRY_SECONDS)  # real time: the other worker is refused, and withdraws its announcement


async def _other_workers(streams: ReadableStreams, name: str) -> list[WorkerInfo]:
    found: list[WorkerInfo] = []
    for entry in await streams.last_per_key("workers"):
        try:
            found.append(from_json(WorkerInfo, entry.data))
        except Unreadable:
            continue  # from a version so different that nothing is known about its lease
    return [other for other in found if other.name != name]


async def _apply_lease(connection: QueueLease, queue: Queue, others: Sequence[WorkerInfo]) -> LeaseInForce | None:
    """Set the lease of a queue if that is possible. Returns why it is not."""
    users = [other for other in others if queue[0] != "at" and queue[1] in other.agents]
    seconds = await connection.lease_in_force(queue)
    if same_lease(seconds, connection.lease):
        foreign = [other.name for other in users if other.lease and not same_lease(other.lease, connection.lease)]
        return _refusal(queue, seconds, connection.lease, foreign) if foreign else None
    if users:
        return _refusal(queue, seconds, connection.lease, [other.name for other in users])
    await connection.change_lease(queue)
    return None


def _refusal(queue: Queue, seconds: float, wanted: float, users: Sequence[str]) -> LeaseInForce:
    listed = f"; a worker that was killed is listed for another {RETENTION['workers'].seconds:g} s" if users else ""
    return LeaseInForce(queue, seconds, wanted, f" (used by {', '.join(users)}{listed})")
