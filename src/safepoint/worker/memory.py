"""The broker that lives in this process, for tests and for a single process. Works from any thread and event loop.

It behaves like the broker over the network, except that nothing outlives the process.
"""

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..abort.clock import check_seconds
from ..abort.event_loop import post
from .broker import (
    RETENTION,
    BrokerError,
    Fenced,
    Key,
    LeaseInForce,
    NoResponders,
    Order,
    Queue,
    RequestHandler,
    RequestTimeout,
    Rotation,
    StreamEntry,
    StreamName,
    same_lease,
)

__all__ = ["MemoryBroker", "MemoryConnection"]

T = TypeVar("T")


@dataclass
class _QueuedOrder:
    """An order, waiting or held. `free_at`: when it can be taken, on the monotonic clock."""

    queue: Queue
    session: str
    data: bytes
    attempt: int = 0
    free_at: float = 0.0


@dataclass(eq=False)
class _Listener:
    """A callback, and the event loop in which it is called."""

    loop: asyncio.AbstractEventLoop
    call: Callable[[bytes], object]

    def post(self, data: bytes) -> None:
        """Call it there. Does nothing once that loop is closed."""
        post(self.loop, self.call, data)


@dataclass
class _Hub:
    """The state that all connections share, under one lock."""

    leases: dict[Queue, float] = field(default_factory=dict)  # those in force
    lock: threading.RLock = field(default_factory=threading.RLock)
    positions: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    # With each message, the time at which it was appended.
    streams: dict[StreamName, dict[Key, list[tuple[StreamEntry, float]]]] = field(
        default_factory=lambda: {stream: {} for stream in RETENTION}
    )
    orders: dict[str, _QueuedOrder] = field(default_factory=dict)
    waiting: set[_Listener] = field(default_factory=set)
    listening: dict[Key, list[_Listener]] = field(default_factory=dict)
    serving: dict[Key, list[tuple[asyncio.AbstractEventLoop, RequestHandler]]] = field(default_factory=dict)


class MemoryBroker:
    """A broker for this process."""

    def __init__(self, lease: float = 10.0) -> None:
        """Create an empty broker.

        Args:
            lease: The seconds for which an order is held without being renewed.
        """
        self._lease = check_seconds("lease", lease)
        self._hub = _Hub()

    def with_lease(self, lease: float) -> "MemoryBroker":
        """The same broker with its content, for workers that are started with another lease."""
        other = MemoryBroker(lease)
        other._hub = self._hub
        return other

    async def connect(self, name: str) -> "MemoryConnection":
        """Open a connection for the running event loop."""
        return MemoryConnection(self._hub, self._lease)


class MemoryConnection:
    """A connection to a `MemoryBroker`, for one event loop."""

    def __init__(self, hub: _Hub, lease: float) -> None:
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._end_callbacks: list[Callable[[], None]] = []
        self._closed = False
        self._rotation = Rotation()
        self._checked_queues: set[Queue] = set()
        self.lease = lease

    def _check(self) -> None:
        if self._closed:
            raise BrokerError("this connection is closed")

    async def append(self, stream: StreamName, key: Key, data: bytes, *, expected_last: int | None = None) -> int:
        """Append a message."""
        self._check()
        with self._hub.lock:
            kept = self._kept(stream).setdefault(key, [])
            newest = kept[-1][0].position if kept else 0
            if expected_last is not None and expected_last != newest:
                raise Fenced(f"{stream} {'/'.join(key)}: the newest message is {newest}, not {expected_last}")
            if RETENTION[stream].newest_only:
                kept.clear()
            entry = StreamEntry(next(self._hub.positions), key, data)
            kept.append((entry, time.monotonic()))
            return entry.position

    def _kept(self, stream: StreamName) -> dict[Key, list[tuple[StreamEntry, float]]]:
        keys, seconds = self._hub.streams[stream], RETENTION[stream].seconds
        if seconds is not None:
            old = time.monotonic() - seconds
            for key in [key for key, kept in keys.items() if all(at < old for _, at in kept)]:
                del keys[key]
        return keys

    async def read(self, stream: StreamName, key: Key, after: int = 0, limit: int = 1000) -> list[StreamEntry]:
        """The messages of a key after a position."""
        self._check()
        with self._hub.lock:
            kept = self._kept(stream).get(key, [])
            return [entry for entry, _ in kept if entry.position > after][:limit]

    async def last(self, stream: StreamName, key: Key) -> StreamEntry | None:
        """The newest message of a key."""
        self._check()
        with self._hub.lock:
            kept = self._kept(stream).get(key)
            return kept[-1][0] if kept else None

    async def last_per_key(self, stream: StreamName, under: Key = (), after: int = 0) -> list[StreamEntry]:
        """The newest message of each key under a prefix."""
        self._check()
        with self._hub.lock:
            found = [kept for key, kept in self._kept(stream).items() if key[:-1] == under and kept]
            newest = [kept[-1][0] for kept in found if kept[-1][0].position > after]
            return sorted(newest, key=lambda entry: entry.position)

    async def purge(self, stream: StreamName, key: Key, upto: int) -> None:
        """Delete the messages of a key up to a position."""
        self._check()
        with self._hub.lock:
            kept = [one for one in self._kept(stream).pop(key, []) if one[0].position > upto]
            if kept:
                self._kept(stream)[key] = kept

    async def keys(self, stream: StreamName) -> list[Key]:
        """The keys that have messages."""
        self._check()
        with self._hub.lock:
            return [key for key, kept in self._kept(stream).items() if kept]

    async def enqueue(self, queue: Queue, session: str, data: bytes) -> bool:
        """Add an order, unless the session has one."""
        self._check()
        with self._hub.lock:
            if session in self._hub.orders:
                return False
            self._hub.orders[session] = _QueuedOrder(queue, session, data)
        self._wake_takers()
        return True

    def _wake_takers(self) -> None:
        with self._hub.lock:
            waiting = list(self._hub.waiting)
        for one in waiting:
            one.post(b"")

    async def take(self, queues: Sequence[Queue], limit: int, wait: float) -> list[Order]:
        """Take orders."""
        until, woken, hinted = time.monotonic() + wait, asyncio.Event(), False
        waiter = _Listener(self._loop, lambda data: woken.set())
        self._hub.waiting.add(waiter)
        try:
            while True:
                self._check()
                await self._check_leases(queues)
                woken.clear()
                found, next_free = self._take_free(queues, limit)
                remaining = until - time.monotonic()
                if found or remaining <= 0 or hinted:
                    return found
                try:
                    async with asyncio.timeout(min(remaining, max(next_free - time.monotonic(), 0.0))):
                        hinted = await woken.wait()
                except TimeoutError:
                    pass
        finally:
            self._hub.waiting.discard(waiter)

    async def _check_leases(self, queues: Sequence[Queue]) -> None:
        for queue in queues:
            if queue not in self._checked_queues:
                seconds = await self.lease_in_force(queue)
                if not same_lease(seconds, self.lease):
                    raise LeaseInForce(queue, seconds, self.lease)
                self._checked_queues.add(queue)

    async def lease_in_force(self, queue: Queue) -> float:
        """The lease of the connection that used the queue first, or that changed it since."""
        self._check()
        with self._hub.lock:
            return self._hub.leases.setdefault(queue, self.lease)

    async def change_lease(self, queue: Queue) -> None:
        """Put the lease of this connection in force for a queue."""
        self._check()
        with self._hub.lock:
            self._hub.leases[queue] = self.lease

    def _take_free(self, queues: Sequence[Queue], limit: int) -> tuple[list[Order], float]:
        """Take orders that are not held. Returns them, and when the next order can be taken."""
        now, found = time.monotonic(), list[Order]()
        with self._hub.lock:
            for queue, share in self._rotation.shares(queues, limit):
                free = [one for one in self._hub.orders.values() if one.queue == queue and one.free_at <= now]
                for queued in free[: min(share, limit - len(found))]:
                    queued.attempt += 1
                    queued.free_at = now + self._hub.leases[queue]
                    found.append(_MemoryOrder(self, queued, queued.attempt))
                    self._rotation.served(queue)
            next_free = min((one.free_at for one in self._hub.orders.values() if one.queue in queues), default=math.inf)
        return found, next_free

    async def pending_sessions(self) -> set[str]:
        """The sessions that have an order."""
        self._check()
        with self._hub.lock:
            return set(self._hub.orders)

    async def request(self, subject: Key, data: bytes, timeout: float) -> bytes:
        """Send a request to the first handler of a subject."""
        self._check()
        with self._hub.lock:
            serving = list(self._hub.serving.get(subject, ()))
        if not serving:
            raise NoResponders(f"no process serves {'/'.join(subject)}")
        loop, handler = serving[0]
        handling = _handle(handler, data)
        try:
            answered = asyncio.run_coroutine_threadsafe(handling, loop)
        except RuntimeError as error:  # its loop is closed
            handling.close()
            raise NoResponders(f"the process that served {'/'.join(subject)} has ended") from error
        replied = asyncio.Event()
        requester = _Listener(self._loop, lambda data: replied.set())
        answered.add_done_callback(lambda done: requester.post(b""))
        try:
            async with asyncio.timeout(timeout):
                await replied.wait()
        except TimeoutError:
            raise RequestTimeout(f"{'/'.join(subject)} did not answer within {timeout:g} s") from None
        if answered.cancelled():
            raise NoResponders(f"the process that served {'/'.join(subject)} has ended")
        return answered.result()

    async def serve(self, subject: Key, handler: RequestHandler) -> Callable[[], Awaitable[None]]:
        """Answer requests to a subject."""
        self._check()
        return self._register(self._hub.serving, subject, (self._loop, handler))

    async def publish(self, subject: Key, data: bytes) -> None:
        """Call everybody who listens to a subject."""
        self._check()
        if subject[0] == "orders":
            self._wake_takers()
        with self._hub.lock:
            listeners = list(self._hub.listening.get(subject, ()))
        for listener in listeners:
            listener.post(data)

    async def listen(self, subject: Key, on_message: Callable[[bytes], object]) -> Callable[[], Awaitable[None]]:
        """Receive what is published to a subject."""
        self._check()
        return self._register(self._hub.listening, subject, _Listener(self._loop, on_message))

    def _register(self, table: dict[Key, list[T]], subject: Key, entry: T) -> Callable[[], Awaitable[None]]:
        with self._hub.lock:
            table.setdefault(subject, []).append(entry)

        def end() -> None:
            with self._hub.lock:
                entries = table.get(subject, [])
                if entry in entries:
                    entries.remove(entry)
                if not entries:
                    table.pop(subject, None)

        async def ended() -> None:
            end()

        self._end_callbacks.append(end)
        return ended

    def on_reconnect(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Do nothing: this connection is never lost."""
        return lambda: None

    async def close(self) -> None:
        """End everything that this connection serves and listens to."""
        self._closed = True
        for end in self._end_callbacks:
            end()


class _MemoryOrder:
    """An order that was taken."""

    def __init__(self, connection: MemoryConnection, queued: _QueuedOrder, attempt: int) -> None:
        self._connection = connection
        self._queued = queued
        self.session = queued.session
        self.data = queued.data
        self.attempt = attempt

    def _hold_until(self, when: float) -> None:
        self._connection._check()
        with self._connection._hub.lock:
            if self._is_held:
                self._queued.free_at = when

    @property
    def _is_held(self) -> bool:
        return self._connection._hub.orders.get(self.session) is self._queued and self._queued.attempt == self.attempt

    async def renew(self) -> None:
        """Extend the lease."""
        self._hold_until(time.monotonic() + self._connection._hub.leases[self._queued.queue])

    async def complete(self) -> None:
        """Remove the order."""
        self._connection._check()
        with self._connection._hub.lock:
            if self._is_held:
                del self._connection._hub.orders[self.session]

    async def give_back(self, seconds: float = 0.0) -> None:
        """Return the order to its queue."""
        self._hold_until(time.monotonic() + seconds)
        self._connection._wake_takers()


async def _handle(handler: RequestHandler, data: bytes) -> bytes:
    return await handler(data)
