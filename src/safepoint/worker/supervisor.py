"""Owns a worker's control plane: it takes orders, holds them, tells that it is there, and makes way when told.

It has an event loop and a connection of its own, in which nobody's work runs: a blocked worker still acknowledges.
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

from ..errors import SafepointError
from ..version import __version__
from .broker import KEPT, Broker, BrokerConnection, BrokerError, LeaseInForce, Order, Queue
from .executors import Executor, InlineExecutor, ProcessExecutor
from .lease_agreement import agree_on_lease
from .order_lease import OrderLease, put_up_again
from .process_pool import CannotStart, ProcessPool
from .protocol import (
    Assignment,
    CloseCall,
    Placement,
    ReleaseWhenIdle,
    WorkerInfo,
    attempt_of,
    from_json,
    queue_of,
    to_json,
)
from .stats import Stats
from .wait_helpers import set_within
from .worker_loop import WorkerLoop

__all__ = ["Settings", "Supervisor"]

log = logging.getLogger("safepoint")
TAKE_SECONDS = 1.0
BEAT_SECONDS = 3.0
LOOK_SECONDS = 0.1
# Whoever has not said for so long that it is there may not have been seen: the broker forgets what was said.
UNSEEN_SECONDS = (KEPT["workers"].seconds or 0.0) - BEAT_SECONDS
# After so many attempts more than allowed an order is dropped: not even its end could be written.
HOPELESS = 5


@dataclass(frozen=True)
class Settings:
    """How a worker works."""

    broker: Broker
    name: str
    agents: tuple[str, ...]
    targets: tuple[str, ...] = ()
    concurrency: int = 8
    grace: float = 5.0
    attempts: int = 10
    idle_for: float = 1.0
    since: float = field(default_factory=time.time)


class Supervisor:
    """The control plane of one worker. `workshop`: where the work runs; None: each order has a process."""

    def __init__(self, settings: Settings, workshop: WorkerLoop | None, stats: Stats) -> None:
        self._settings = settings
        self._workshop = workshop
        self._stats = stats
        self._holds: dict[str, OrderLease] = {}
        self._hurried: WeakSet[OrderLease] = WeakSet()
        self._pool = ProcessPool(settings.name, self._new_process)
        self._free = asyncio.Event()
        self._going = asyncio.Event()
        self._gone = asyncio.Event()
        self._how: tuple[float, bool, str] = (0.0, True, "")
        self._failure: SafepointError | None = None  # why it goes by itself
        self._announced = 0.0
        self._only_sub_agents = False  # every place is taken, and some are lent
        self._connection: BrokerConnection

    async def run(self, started: Callable[[], object]) -> None:
        """Until it is told to go.

        Raises:
            BrokerError: there is no broker.
            LeaseInForce: the other workers of an agent use another lease.
            CannotStart: its processes end before they are ready; its orders were given back.
        """
        settings = self._settings
        self._connection = await settings.broker.connect(f"{settings.name} (control)")
        try:
            await self._come()
            async with asyncio.TaskGroup() as group:
                started()
                group.create_task(self._be_there())
                group.create_task(self._look_for_the_forgotten())
                group.create_task(self._take_no_more())
                await self._take(group)
                await self._make_way(group)
                self._gone.set()
                self._pool.dismiss()
            await self._unannounce()
        finally:
            await self._connection.close()
        if self._failure is not None:
            raise self._failure

    async def _come(self) -> None:
        """Say that this worker is there, and with which lease. Raises: LeaseInForce, if it may not be there with it."""
        try:
            await self._announce()
            await agree_on_lease(self._connection, self._settings.name, self._queues)
        except BrokerError:
            await self._unannounce()
            raise

    def go(self, within: float, give_back: bool, reason: str) -> None:
        """Take nothing any more, and end. What is not done is given back, or ended for good."""
        self._how = (within, give_back, reason)
        self._going.set()
        self._free.set()

    @property
    def _queues(self) -> list[Queue]:
        return [("at", self._settings.name), *(("any", agent) for agent in self._settings.agents), *self._sub_queues]

    @property
    def _sub_queues(self) -> list[Queue]:
        return [("sub", agent) for agent in self._settings.agents]

    def _open_to(self) -> tuple[list[Queue], int]:
        """From which queues orders may be taken now, and how many.

        An order that waits for a sub-agent lends its place, and only sub-agents may have it. So whatever waits for
        sub-agents here, one of them can be worked on; and how much works at the same time stays the same.
        """
        places = self._settings.concurrency
        if len(self._holds) < places:
            return self._queues, places - len(self._holds)
        working = sum(not order_lease.waits for order_lease in self._holds.values())
        return self._sub_queues, places - working

    def _give_up_working(self, error: SafepointError) -> None:
        """Go by itself. Whoever started the worker is told why when it has gone."""
        log.error("worker %s gives its orders back and leaves: %s", self._settings.name, error)
        self._failure = error
        self.go(self._settings.grace, give_back=True, reason=str(error))

    async def _take(self, group: asyncio.TaskGroup) -> None:
        while not self._going.is_set():
            if not self._pool.works:
                try:
                    await self._pool.recover(group, self._going)
                except CannotStart as error:
                    self._give_up_working(error)
                continue
            self._free.clear()
            queues, room = self._open_to()
            self._only_sub_agents = queues == self._sub_queues
            if self._only_sub_agents:
                self._hurry(group)
            if room <= 0:
                await self._free.wait()
                continue
            try:
                orders = await self._connection.take(queues, room, TAKE_SECONDS)
            except LeaseInForce as error:  # it was away for so long that others have changed the lease
                self._give_up_working(error)
                continue
            except BrokerError as error:
                log.warning("worker %s: no orders: %s", self._settings.name, error)
                await set_within(TAKE_SECONDS, self._going)
                continue
            for order in orders:
                await self._begin(order, group)

    def _hurry(self, group: asyncio.TaskGroup) -> None:
        """There is no place left: whoever has nothing to do makes way as soon as it can."""
        for order_lease in self._holds.values():
            if order_lease not in self._hurried:
                self._hurried.add(order_lease)
                group.create_task(order_lease.executor.ask(ReleaseWhenIdle()))

    async def _take_no_more(self) -> None:
        await self._going.wait()
        await self._look_again()

    async def _look_again(self) -> None:
        """Do not wait for orders any longer with what was known before."""
        with suppress(BrokerError):
            await self._connection.publish(("orders", "at", self._settings.name), b"")

    async def _begin(self, order: Order, group: asyncio.TaskGroup) -> None:
        self._stats.taken += 1
        self._stats.redelivered += order.attempt > 1
        try:
            if self._going.is_set():
                await order.give_back()
            elif order.session in self._holds:  # the one before it has not ended here; if it does not, do not hurry
                await order.give_back(0.1 if order.attempt < 3 else self._connection.lease)
            elif not self._pool.works:  # it came in the moment in which that was noticed
                await put_up_again(self._connection, order, queue_of(from_json(Placement, order.data)))
            elif await self._may_be_tried(order):
                place: Placement = from_json(Placement, order.data)
                self._holds[order.session] = order_lease = self._made(order, place, group)
                group.create_task(self._order_lease(order.session, order_lease))
        except BrokerError as error:
            log.warning("session %s: its order cannot be taken: %s", order.session, error)
            with suppress(BrokerError):
                await order.give_back(min(0.1 * 2**order.attempt, 5.0))
        except OSError as error:  # there is no room for one more process: the order can do nothing about that
            log.warning("session %s: its order cannot be worked on here: %s", order.session, error)
            with suppress(BrokerError):
                await put_up_again(self._connection, order, queue_of(from_json(Placement, order.data)))

    async def _may_be_tried(self, order: Order) -> bool:
        """False: it was tried so often that it is gone."""
        attempt, attempts = attempt_of(order), self._settings.attempts
        if attempt > attempts:
            await self._give_up(order.session, attempt)
        if attempt > attempts + HOPELESS:
            await order.done()
            return False
        return True

    async def _give_up(self, session: str, attempt: int) -> None:
        if attempt == self._settings.attempts + 1:
            self._stats.dead += 1
            why = f"{attempt - 1} attempts have not brought it to an end"
            log.error("session %s: %s: what runs there is ended and not run again", session, why)
            told = {"session": session, "attempts": attempt - 1, "why": why}
            await self._connection.append("dead", (session,), json.dumps(told).encode())

    def _made(self, order: Order, place: Placement, group: asyncio.TaskGroup) -> OrderLease:
        settings, attempt = self._settings, attempt_of(order)
        resume = attempt <= settings.attempts
        # An order of a pinned session comes also to a worker that was started without the session's agent.
        offered = place.agent in settings.agents
        about = Assignment(order.session, place.agent, settings.name, attempt, resume, settings.idle_for, offered)
        executor = self._executor(group)
        stats, free = self._stats, self._free.set
        return OrderLease(self._connection, order, queue_of(place), about, executor, settings.grace, stats, free)

    async def _order_lease(self, session: str, order_lease: OrderLease) -> None:
        """Until it has ended, however that comes: one order does not take the others with it."""
        try:
            await order_lease.run()
        except BrokerError as error:
            log.warning("session %s: the work on it broke off: %s", session, error)
        except Exception:
            log.exception("session %s: the work on it broke off", session)
        finally:
            del self._holds[session]
            if isinstance(order_lease.executor, ProcessExecutor):
                self._pool.give_back(order_lease.executor)
            self._free.set()
            if self._only_sub_agents:  # now there may be a place for other orders
                await self._look_again()

    def _executor(self, group: asyncio.TaskGroup) -> Executor:
        if self._workshop is not None:
            return InlineExecutor(self._workshop)
        return self._pool.take(group)

    def _new_process(self) -> ProcessExecutor:
        return ProcessExecutor(self._settings.broker, self._settings.targets, self._settings.name)

    async def _make_way(self, group: asyncio.TaskGroup) -> None:
        """Let every order go, in time; what does not let go is ended by force where that is possible."""
        within, give_back, reason = self._how
        limit, told = time.monotonic() + within + self._settings.grace, set[OrderLease]()
        while self._holds:
            self._free.clear()
            for order_lease in self._holds.values():
                if time.monotonic() > limit:
                    order_lease.executor.kill()
                elif order_lease in told:
                    continue
                elif give_back:
                    order_lease.executor.leave(within)
                    told.add(order_lease)
                else:
                    group.create_task(self._end(order_lease, reason))
                    told.add(order_lease)
            await set_within(LOOK_SECONDS, self._free)

    async def _end(self, order_lease: OrderLease, reason: str) -> None:
        """Close its session for good, as soon as it is open."""
        while order_lease in self._holds.values():
            reply = await order_lease.executor.ask(CloseCall(reason))
            if reply is not None and reply.ok:
                return
            await asyncio.sleep(LOOK_SECONDS)  # real time: the session is being opened

    # Being there

    @property
    def info(self) -> WorkerInfo:
        """What this worker says of itself."""
        settings = self._settings
        return WorkerInfo(
            name=settings.name,
            agents=settings.agents,
            live=len(self._holds),
            concurrency=settings.concurrency,
            isolation="process" if self._workshop is None else "task",
            version=__version__,
            pid=os.getpid(),
            machine=platform.node(),
            since=settings.since,
            draining=self._going.is_set(),
            lease=self._connection.lease,
            **asdict(self._stats),
        )

    async def _announce(self) -> None:
        await self._connection.append("workers", (self._settings.name,), to_json(self.info))
        self._announced = time.monotonic()

    async def _unannounce(self) -> None:
        with suppress(BrokerError):
            await self._connection.trim("workers", (self._settings.name,), 2**62)

    async def _be_there(self) -> None:
        """Say again and again that this worker is there."""
        while not await set_within(BEAT_SECONDS, self._gone):
            unseen = time.monotonic() - self._announced > UNSEEN_SECONDS
            try:
                await self._announce()
                if unseen and not self._going.is_set():  # who came meanwhile could not see us, nor our lease
                    await agree_on_lease(self._connection, self._settings.name, self._queues)
            except LeaseInForce as error:
                self._give_up_working(error)
            except BrokerError as error:
                log.debug("worker %s cannot say that it is there: %s", self._settings.name, error)

    async def _look_for_the_forgotten(self) -> None:
        """Sessions with something in their inbox and no order: whoever should have put one up has died."""
        while not await set_within(self._connection.lease * random.uniform(0.5, 1.5), self._gone):
            with suppress(BrokerError):
                waiting = {key[0] for key in await self._connection.keys("inbox")}
                for session in waiting - await self._connection.ordered() if waiting else ():
                    entry = await self._connection.last("sessions", (session,))
                    if entry is not None:
                        place: Placement = from_json(Placement, entry.data)
                        await self._connection.order(queue_of(place), session, entry.data)
