"""The control plane of a worker: takes orders, holds their leases, announces the worker, and shuts it down.

It has an event loop and a broker connection of its own, in which no session runs. So a worker whose tools block the
other event loop still renews its leases and acknowledges stops.
"""

import asyncio
import json
import logging
import os
import platform
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from weakref import WeakSet

from ..abort.event_loop import set_within
from ..errors import SafepointError
from ..version import __version__
from .broker import RETENTION, Broker, BrokerConnection, BrokerError, LeaseInForce, Order, Queue
from .executors import PAUSES, CannotStart, Executor, InlineExecutor, ProcessExecutor, ProcessPool
from .lease import OrderLease, TakenOrder, agree_on_lease, requeue
from .protocol import (
    Assignment,
    CloseCall,
    Placement,
    ReleaseWhenIdle,
    Stats,
    WorkerInfo,
    attempt_of,
    from_json,
    queue_of,
    to_json,
)
from .worker_loop import WorkerLoop

__all__ = ["Settings", "Supervisor", "WorkerTimings"]

log = logging.getLogger("safepoint")
# How long one request for orders waits for the first of them.
TAKE_SECONDS = 1.0
ANNOUNCE_SECONDS = 3.0
# How often a shutdown checks whether its time is up.
CHECK_SECONDS = 0.1
# The broker deletes old announcements. After this long without a new one, other workers may not have seen this one.
UNSEEN_SECONDS = (RETENTION["workers"].seconds or 0.0) - ANNOUNCE_SECONDS
# How many attempts more than allowed are made to write the end of an order that is given up. Then it is dropped.
GIVE_UP_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimings:
    """How often a worker announces itself, and how long it pauses when its processes do not start, in seconds.

    Attributes:
        announce_every: The time between two announcements.
        unseen_after: After this long without an announcement, the worker agrees with the others on the lease again.
            The broker deletes announcements after a while, so workers that were started meanwhile did not see this one.
        start_pauses: The pause before each new attempt to start a process. After the last one the worker gives up.
    """

    announce_every: float = ANNOUNCE_SECONDS
    unseen_after: float = UNSEEN_SECONDS
    start_pauses: tuple[float, ...] = PAUSES


@dataclass(frozen=True)
class Settings:
    """The settings of a worker, as documented for `Worker`.

    Attributes:
        broker: Where orders come from.
        name: The name of the worker.
        agents: The names of its agents.
        targets: Where its processes load the agents from; empty if it has no processes.
        concurrency: How many orders it works on at the same time.
        grace: How long a turn may take to end after an immediate stop before its process is killed.
        attempts: How many attempts are made at an order before it is given up.
        idle_for: How long a session stays open without work.
        timings: How often it announces itself, and how long it pauses.
        since: When the worker was started, as a Unix time.
    """

    broker: Broker
    name: str
    agents: tuple[str, ...]
    targets: tuple[str, ...] = ()
    concurrency: int = 8
    grace: float = 5.0
    attempts: int = 10
    idle_for: float = 1.0
    timings: WorkerTimings = WorkerTimings()
    since: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class _Shutdown:
    """How a worker ends what it works on; see `Supervisor.shut_down()`."""

    within: float = 0.0
    give_back: bool = True
    reason: str = ""


class Supervisor:
    """The control plane of one worker.

    Places. A worker holds at most `concurrency` orders whose work is active. An order whose turn waits for a sub-agent
    on a worker lends its place, and only orders of sub-agents may take it: otherwise turns that wait could fill all
    places while the sub-agents that they wait for find none. If every place is taken, sessions that are open but idle
    are closed early.

    Lost orders. Every message in an inbox has an order, which is added right after the message. If the sender dies in
    between, or a worker dies between completing an order and adding its replacement, the message has none. Every
    supervisor looks for such inboxes now and then, and adds the missing orders.

    Hopeless orders. An order that was tried too often is given up, but not dropped at once: one more worker takes it,
    without resuming anything, only to write the end of its open turns.
    """

    def __init__(self, settings: Settings, worker_loop: WorkerLoop | None, stats: Stats) -> None:
        """Create it; `run()` does everything.

        Args:
            settings: The settings of the worker.
            worker_loop: Where the work runs; None to run each order in a child process.
            stats: The counters of the worker.
        """
        self._settings = settings
        self._worker_loop = worker_loop
        self._stats = stats
        self._leases: dict[str, OrderLease] = {}  # by session
        self._released: WeakSet[OrderLease] = WeakSet()  # those whose sessions were requested to close when idle
        self._pool = ProcessPool(settings.name, self._new_process, pauses=settings.timings.start_pauses)
        self._place_changed = asyncio.Event()
        self._leaving = asyncio.Event()
        self._stopped = asyncio.Event()
        self._shutdown = _Shutdown()
        self._failure: SafepointError | None = None  # why it shuts down by itself
        self._announced = 0.0
        self._only_sub_agents = False  # True while all places are taken and only lent ones are available
        self._connection: BrokerConnection

    async def run(self, on_started: Callable[[], object]) -> None:
        """Work until `shut_down()` is called or the worker cannot go on.

        Args:
            on_started: Called when the worker begins to take orders.

        Raises:
            BrokerError: The broker cannot be reached.
            LeaseInForce: The other workers of an agent use another lease.
            CannotStart: The processes of the worker end before they are ready. Its orders were returned.
        """
        settings = self._settings
        self._connection = await settings.broker.connect(f"{settings.name} (control)")
        try:
            await self._join()
            async with asyncio.TaskGroup() as group:
                on_started()
                group.create_task(self._keep_announcing())
                group.create_task(self._restore_lost_orders())
                group.create_task(self._end_take_when_leaving())
                await self._take_orders(group)
                await self._end_leases(group)
                self._stopped.set()
                self._pool.close()
            await self._withdraw_announcement()
        finally:
            await self._connection.close()
        if self._failure is not None:
            raise self._failure

    async def _join(self) -> None:
        """Announce this worker, then agree on the lease. Raises: LeaseInForce if others use another one."""
        try:
            await self._announce()
            await agree_on_lease(self._connection, self._settings.name, self._queues)
        except BrokerError:
            await self._withdraw_announcement()
            raise

    def shut_down(self, within: float, give_back: bool, reason: str) -> None:
        """Take no more orders, end those that are held, and return from `run()`.

        Args:
            within: The seconds in which running turns may reach a safe point; then they are stopped at once.
            give_back: True to leave open turns to other workers; False to end them here, as aborted.
            reason: The reason with which they are aborted.
        """
        self._shutdown = _Shutdown(within, give_back, reason)
        self._leaving.set()
        self._place_changed.set()

    @property
    def _queues(self) -> list[Queue]:
        return [("at", self._settings.name), *(("any", agent) for agent in self._settings.agents), *self._sub_queues]

    @property
    def _sub_queues(self) -> list[Queue]:
        return [("sub", agent) for agent in self._settings.agents]

    def _available(self) -> tuple[list[Queue], int]:
        """The queues from which orders may be taken now, and how many of them."""
        places = self._settings.concurrency
        if len(self._leases) < places:
            return self._queues, places - len(self._leases)
        working = sum(not order_lease.waits for order_lease in self._leases.values())
        return self._sub_queues, places - working

    def _fail(self, error: SafepointError) -> None:
        """Shut down because of an error, which `run()` raises at its end."""
        log.error("worker %s gives its orders back and leaves: %s", self._settings.name, error)
        self._failure = error
        self.shut_down(self._settings.grace, give_back=True, reason=str(error))

    async def _take_orders(self, group: asyncio.TaskGroup) -> None:
        while not self._leaving.is_set():
            if not self._pool.works:
                try:
                    await self._pool.recover(group, self._leaving)
                except CannotStart as error:
                    self._fail(error)
                continue
            self._place_changed.clear()
            queues, places = self._available()
            self._only_sub_agents = queues == self._sub_queues
            if self._only_sub_agents:
                self._release_idle_sessions(group)
            if places <= 0:
                await self._place_changed.wait()
                continue
            try:
                orders = await self._connection.take(queues, places, TAKE_SECONDS)
            except LeaseInForce as error:  # others have changed the lease while this worker was cut off
                self._fail(error)
                continue
            except BrokerError as error:
                log.warning("worker %s: no orders: %s", self._settings.name, error)
                await set_within(TAKE_SECONDS, self._leaving)
                continue
            for order in orders:
                await self._begin(order, group)

    def _release_idle_sessions(self, group: asyncio.TaskGroup) -> None:
        """Have sessions closed as soon as they are idle, because all places are taken."""
        for order_lease in self._leases.values():
            if order_lease not in self._released:
                self._released.add(order_lease)
                group.create_task(order_lease.executor.request(ReleaseWhenIdle()))

    async def _end_take_when_leaving(self) -> None:
        await self._leaving.wait()
        await self._end_take()

    async def _end_take(self) -> None:
        """End a `take()` that is waiting, so that the next one uses the current places."""
        with suppress(BrokerError):
            await self._connection.publish(("orders", "at", self._settings.name), b"")

    async def _begin(self, order: Order, group: asyncio.TaskGroup) -> None:
        self._stats.taken += 1
        self._stats.redelivered += order.attempt > 1
        try:
            if self._leaving.is_set():
                await order.give_back()
            elif order.session in self._leases:  # the last work on it is ending here, or hangs: then retry less often
                await order.give_back(0.1 if order.attempt < 3 else self._connection.lease)
            elif not self._pool.works:  # the order was taken just before a process failed to start
                await requeue(self._connection, order, queue_of(from_json(Placement, order.data)))
            elif await self._may_be_tried(order):
                placement = from_json(Placement, order.data)
                self._leases[order.session] = order_lease = self._new_lease(order, placement, group)
                group.create_task(self._run_lease(order.session, order_lease))
        except BrokerError as error:
            log.warning("session %s: its order cannot be taken: %s", order.session, error)
            with suppress(BrokerError):
                await order.give_back(min(0.1 * 2**order.attempt, 5.0))
        except OSError as error:  # the system cannot start one more process, which is no fault of the order
            log.warning("session %s: its order cannot be worked on here: %s", order.session, error)
            with suppress(BrokerError):
                await requeue(self._connection, order, queue_of(from_json(Placement, order.data)))

    async def _may_be_tried(self, order: Order) -> bool:
        """Whether to work on an order. One that was tried too often is given up, and after some more tries dropped."""
        attempt, attempts = attempt_of(order), self._settings.attempts
        if attempt > attempts:
            await self._give_up(order.session, attempt)
        if attempt > attempts + GIVE_UP_ATTEMPTS:
            await order.complete()
            return False
        return True

    async def _give_up(self, session: str, attempt: int) -> None:
        if attempt == self._settings.attempts + 1:
            self._stats.dead += 1
            why = f"{attempt - 1} attempts have not brought it to an end"
            log.error("session %s: %s: what runs there is ended and not run again", session, why)
            letter = {"session": session, "attempts": attempt - 1, "why": why}
            await self._connection.append("dead", (session,), json.dumps(letter).encode())

    def _new_lease(self, order: Order, placement: Placement, group: asyncio.TaskGroup) -> OrderLease:
        settings, attempt = self._settings, attempt_of(order)
        resume = attempt <= settings.attempts
        # The order of a session that is pinned to this worker comes here even if the worker lacks its agent.
        offered = placement.agent in settings.agents
        assignment = Assignment(
            order.session, placement.agent, settings.name, attempt, resume, settings.idle_for, offered
        )
        taken = TakenOrder(order, queue_of(placement), assignment)
        executor = self._executor(group)
        return OrderLease(self._connection, taken, executor, settings.grace, self._stats, self._place_changed.set)

    async def _run_lease(self, session: str, order_lease: OrderLease) -> None:
        """Hold an order until its end. An error of one order must not end the others."""
        try:
            await order_lease.run()
        except BrokerError as error:
            log.warning("session %s: an error has ended the work on it: %s", session, error)
        except Exception:
            log.exception("session %s: an error has ended the work on it", session)
        finally:
            del self._leases[session]
            if isinstance(order_lease.executor, ProcessExecutor):
                self._pool.give_back(order_lease.executor)
            self._place_changed.set()
            if self._only_sub_agents:  # now other orders may be taken as well
                await self._end_take()

    def _executor(self, group: asyncio.TaskGroup) -> Executor:
        if self._worker_loop is not None:
            return InlineExecutor(self._worker_loop)
        return self._pool.take(group)

    def _new_process(self) -> ProcessExecutor:
        return ProcessExecutor(self._settings.broker, self._settings.targets, self._settings.name)

    async def _end_leases(self, group: asyncio.TaskGroup) -> None:
        """End all orders in time. Work that has not ended by then is killed where that is possible."""
        shutdown = self._shutdown
        limit, notified = time.monotonic() + shutdown.within + self._settings.grace, set[OrderLease]()
        while self._leases:
            self._place_changed.clear()
            for order_lease in self._leases.values():
                if time.monotonic() > limit:
                    order_lease.executor.kill()
                elif order_lease in notified:
                    continue
                elif shutdown.give_back:
                    order_lease.executor.hand_over(shutdown.within)
                    notified.add(order_lease)
                else:
                    group.create_task(self._close_session(order_lease, shutdown.reason))
                    notified.add(order_lease)
            await set_within(CHECK_SECONDS, self._place_changed)

    async def _close_session(self, order_lease: OrderLease, reason: str) -> None:
        """Close the session of an order for good, as soon as it is open."""
        while order_lease in self._leases.values():
            reply = await order_lease.executor.request(CloseCall(reason))
            if reply is not None and reply.ok:
                return
            await asyncio.sleep(CHECK_SECONDS)  # real time: the session is being opened

    # The announcement

    @property
    def info(self) -> WorkerInfo:
        """The announcement of this worker."""
        settings = self._settings
        return WorkerInfo(
            name=settings.name,
            agents=settings.agents,
            live=len(self._leases),
            concurrency=settings.concurrency,
            isolation="process" if self._worker_loop is None else "task",
            version=__version__,
            pid=os.getpid(),
            machine=platform.node(),
            since=settings.since,
            draining=self._leaving.is_set(),
            lease=self._connection.lease,
            **asdict(self._stats),
        )

    async def _announce(self) -> None:
        await self._connection.append("workers", (self._settings.name,), to_json(self.info))
        self._announced = time.monotonic()

    async def _withdraw_announcement(self) -> None:
        with suppress(BrokerError):
            await self._connection.purge("workers", (self._settings.name,), 2**62)

    async def _keep_announcing(self) -> None:
        timings = self._settings.timings
        while not await set_within(timings.announce_every, self._stopped):
            unseen = time.monotonic() - self._announced > timings.unseen_after
            try:
                await self._announce()
                # A worker that was started while this one was cut off did not see its lease: agree once more.
                if unseen and not self._leaving.is_set():
                    await agree_on_lease(self._connection, self._settings.name, self._queues)
            except LeaseInForce as error:
                self._fail(error)
            except BrokerError as error:
                log.debug("worker %s cannot announce itself: %s", self._settings.name, error)

    async def _restore_lost_orders(self) -> None:
        """Add an order for each session that has something in its inbox and no order."""
        # The interval is random, so that the workers do not all look at the same moment.
        while not await set_within(self._connection.lease * random.uniform(0.5, 1.5), self._stopped):
            with suppress(BrokerError):
                waiting = {key[0] for key in await self._connection.keys("inbox")}
                for session in waiting - await self._connection.pending_sessions() if waiting else ():
                    entry = await self._connection.last("sessions", (session,))
                    if entry is not None:
                        placement = from_json(Placement, entry.data)
                        await self._connection.enqueue(queue_of(placement), session, entry.data)
