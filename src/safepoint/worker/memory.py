"""Owns the broker that lives in this process: for tests, and for one machine. Any thread, any event loop.

The same face as the one over the network, without durability: what it keeps ends with the process.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..abort.clock import check_seconds
from .broker import (
    KEPT,
    Answers,
    BrokerError,
    Fenced,
    Key,
    LeaseInForce,
    NoResponders,
    Order,
    Queue,
    RequestTimeout,
    StreamEntry,
    StreamName,
    same_lease,
)
from .queue_rotation import Rotation

__all__ = ["MemoryBroker", "MemoryConnection"]

X = TypeVar("X")
FAR = float("inf")


@dataclass
class _QueuedOrder:
    """An order on the board."""

    queue: Queue
    session: str
    data: bytes
    attempt: int = 0
    free_at: float = 0.0


@dataclass(eq=False)
class _Listener:
    """Somebody who listens: what to call, and in which event loop."""

    loop: asyncio.AbstractEventLoop
    call: Callable[[bytes], object]


@dataclass
class _Hub:
    """What all links share, under one lock."""

    leases: dict[Queue, float] = field(default_factory=dict)  # in force
    lock: threading.RLock = field(default_factory=threading.RLock)
    positions: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    shelves: dict[StreamName, dict[Key, list[tuple[StreamEntry, float]]]] = field(
        default_factory=lambda: {s: {} for s in KEPT}
    )
    orders: dict[str, _QueuedOrder] = field(default_factory=dict)
    waiting: set[_Listener] = field(default_factory=set)
    listening: dict[Key, list[_Listener]] = field(default_factory=dict)
    serving: dict[Key, list[tuple[asyncio.AbstractEventLoop, Answers]]] = field(default_factory=dict)


class MemoryBroker:
    """A broker for this process. `lease`: how long an order is held without being renewed, in seconds."""

    def __init__(self, lease: float = 10.0) -> None:
        self._lease = check_seconds("lease", lease)
        self._hub = _Hub()

    def with_lease(self, lease: float) -> "MemoryBroker":
        """The same broker, for workers that are started with another lease."""
        other = MemoryBroker(lease)
        other._hub = self._hub
        return other

    async def connect(self, name: str) -> "MemoryConnection":
        """A connection."""
        return MemoryConnection(self._hub, self._lease)


class MemoryConnection:
    """One user of the broker, in one event loop."""

    def __init__(self, hub: _Hub, lease: float) -> None:
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._ending: list[Callable[[], None]] = []
        self._closed = False
        self._rotation = Rotation()
        self._attended: set[Queue] = set()
        self.lease = lease

    def _check(self) -> None:
        if self._closed:
            raise BrokerError("this link is closed")

    async def append(self, stream: StreamName, key: Key, data: bytes, *, after: int | None = None) -> int:
        """Keep a message."""
        self._check()
        with self._hub.lock:
            kept = self._kept(stream).setdefault(key, [])
            newest = kept[-1][0].position if kept else 0
            if after is not None and after != newest:
                raise Fenced(f"{stream} {'/'.join(key)}: the newest message is {newest}, not {after}")
            if KEPT[stream].newest_only:
                kept.clear()
            entry = StreamEntry(next(self._hub.positions), key, data)
            kept.append((entry, time.monotonic()))
            return entry.position

    def _kept(self, stream: StreamName) -> dict[Key, list[tuple[StreamEntry, float]]]:
        keys, seconds = self._hub.shelves[stream], KEPT[stream].seconds
        if seconds is not None:
            old = time.monotonic() - seconds
            for key in [key for key, kept in keys.items() if all(at < old for _, at in kept)]:
                del keys[key]
        return keys

    async def read(self, stream: StreamName, key: Key, after: int = 0, limit: int = 1000) -> list[StreamEntry]:
        """The messages of this key."""
        self._check()
        with self._hub.lock:
            kept = self._kept(stream).get(key, [])
            return [entry for entry, _ in kept if entry.position > after][:limit]

    async def last(self, stream: StreamName, key: Key) -> StreamEntry | None:
        """The newest message of this key."""
        self._check()
        with self._hub.lock:
            kept = self._kept(stream).get(key)
            return kept[-1][0] if kept else None

    async def lasts(self, stream: StreamName, under: Key = (), after: int = 0) -> list[StreamEntry]:
        """The newest message of each key below."""
        self._check()
        with self._hub.lock:
            below = [kept for key, kept in self._kept(stream).items() if key[:-1] == under and kept]
            newest = [kept[-1][0] for kept in below if kept[-1][0].position > after]
            return sorted(newest, key=lambda entry: entry.position)

    async def trim(self, stream: StreamName, key: Key, upto: int) -> None:
        """Forget the messages up to this position."""
        self._check()
        with self._hub.lock:
            kept = [one for one in self._kept(stream).pop(key, []) if one[0].position > upto]
            if kept:
                self._kept(stream)[key] = kept

    async def keys(self, stream: StreamName) -> list[Key]:
        """The keys of which there are messages."""
        self._check()
        with self._hub.lock:
            return [key for key, kept in self._kept(stream).items() if kept]

    async def order(self, queue: Queue, session: str, data: bytes) -> bool:
        """Put an order up."""
        self._check()
        with self._hub.lock:
            if session in self._hub.orders:
                return False
            self._hub.orders[session] = _QueuedOrder(queue, session, data)
        self._tell_waiting()
        return True

    def _tell_waiting(self) -> None:
        with self._hub.lock:
            waiting = list(self._hub.waiting)
        for one in waiting:
            _post(one, b"")

    async def take(self, queues: Sequence[Queue], limit: int, wait: float) -> list[Order]:
        """Hold some orders."""
        until, news, hinted = time.monotonic() + wait, asyncio.Event(), False
        waiter = _Listener(self._loop, lambda data: news.set())
        self._hub.waiting.add(waiter)
        try:
            while True:
                self._check()
                await self._attend(queues)
                news.clear()
                found, next_free = self._free(queues, limit)
                left = until - time.monotonic()
                if found or left <= 0 or hinted:
                    return found
                try:
                    async with asyncio.timeout(min(left, max(next_free - time.monotonic(), 0.0))):
                        hinted = await news.wait()
                except TimeoutError:
                    pass
        finally:
            self._hub.waiting.discard(waiter)

    async def _attend(self, queues: Sequence[Queue]) -> None:
        for queue in queues:
            if queue not in self._attended:
                seconds = await self.lease_in_force(queue)
                if not same_lease(seconds, self.lease):
                    raise LeaseInForce(queue, seconds, self.lease)
                self._attended.add(queue)

    async def lease_in_force(self, queue: Queue) -> float:
        """The lease of whoever has used the queue first, or has changed it since."""
        self._check()
        with self._hub.lock:
            return self._hub.leases.setdefault(queue, self.lease)

    async def change_lease(self, queue: Queue) -> None:
        """Put the lease of this link in force."""
        self._check()
        with self._hub.lock:
            self._hub.leases[queue] = self.lease

    def _free(self, queues: Sequence[Queue], limit: int) -> tuple[list[Order], float]:
        """The orders that nobody holds, taken; and when the next one will be free."""
        now, found = time.monotonic(), list[Order]()
        with self._hub.lock:
            for queue, share in self._rotation.shares(queues, limit):
                free = [one for one in self._hub.orders.values() if one.queue == queue and one.free_at <= now]
                for placed in free[: min(share, limit - len(found))]:
                    placed.attempt += 1
                    placed.free_at = now + self._hub.leases[queue]
                    found.append(_MemoryOrder(self, placed, placed.attempt))
                    self._rotation.served(queue)
            next_free = min((one.free_at for one in self._hub.orders.values() if one.queue in queues), default=FAR)
        return found, next_free

    async def ordered(self) -> set[str]:
        """The sessions for which there is an order."""
        self._check()
        with self._hub.lock:
            return set(self._hub.orders)

    async def request(self, subject: Key, data: bytes, timeout: float) -> bytes:
        """Ask whoever serves there."""
        self._check()
        with self._hub.lock:
            serving = list(self._hub.serving.get(subject, ()))
        if not serving:
            raise NoResponders(f"nobody serves {'/'.join(subject)}")
        loop, answer = serving[0]
        answering = _answered(answer, data)
        try:
            answered = asyncio.run_coroutine_threadsafe(answering, loop)
        except RuntimeError as error:  # its loop is closed
            answering.close()
            raise NoResponders(f"{'/'.join(subject)} went away") from error
        news = asyncio.Event()
        asker = _Listener(self._loop, lambda data: news.set())
        answered.add_done_callback(lambda done: _post(asker, b""))
        try:
            async with asyncio.timeout(timeout):
                await news.wait()
        except TimeoutError:
            raise RequestTimeout(f"{'/'.join(subject)} did not answer within {timeout:g} s") from None
        if answered.cancelled():
            raise NoResponders(f"{'/'.join(subject)} went away")
        return answered.result()

    async def serve(self, subject: Key, answer: Answers) -> Callable[[], Awaitable[None]]:
        """Answer what is asked there."""
        self._check()
        return self._until_ended(self._hub.serving, subject, (self._loop, answer))

    async def publish(self, subject: Key, data: bytes) -> None:
        """Say something."""
        self._check()
        if subject[0] == "orders":
            self._tell_waiting()
        with self._hub.lock:
            listeners = list(self._hub.listening.get(subject, ()))
        for listener in listeners:
            _post(listener, data)

    async def listen(self, subject: Key, hear: Callable[[bytes], object]) -> Callable[[], Awaitable[None]]:
        """Hear what is said there."""
        self._check()
        return self._until_ended(self._hub.listening, subject, _Listener(self._loop, hear))

    def _until_ended(self, table: dict[Key, list[X]], subject: Key, entry: X) -> Callable[[], Awaitable[None]]:
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

        self._ending.append(end)
        return ended

    def on_return(self, call: Callable[[], object]) -> Callable[[], None]:
        """This connection is never lost."""
        return lambda: None

    async def close(self) -> None:
        """Serve and hear nothing any more."""
        self._closed = True
        for end in self._ending:
            end()


class _MemoryOrder:
    """An order in somebody's hands."""

    def __init__(self, connection: MemoryConnection, placed: _QueuedOrder, attempt: int) -> None:
        self._connection = connection
        self._placed = placed
        self.session = placed.session
        self.data = placed.data
        self.attempt = attempt

    def _hold_until(self, when: float) -> None:
        self._connection._check()
        with self._connection._hub.lock:
            if self._is_mine:
                self._placed.free_at = when

    @property
    def _is_mine(self) -> bool:
        return self._connection._hub.orders.get(self.session) is self._placed and self._placed.attempt == self.attempt

    async def renew(self) -> None:
        """Hold it for one more lease."""
        self._hold_until(time.monotonic() + self._connection._hub.leases[self._placed.queue])

    async def done(self) -> None:
        """There is nothing left to do."""
        self._connection._check()
        with self._connection._hub.lock:
            if self._is_mine:
                del self._connection._hub.orders[self.session]

    async def give_back(self, seconds: float = 0.0) -> None:
        """Somebody else may take it."""
        self._hold_until(time.monotonic() + seconds)
        self._connection._tell_waiting()


async def _answered(answer: Answers, data: bytes) -> bytes:
    return await answer(data)


def _post(listener: _Listener, data: bytes) -> None:
    try:
        listener.loop.call_soon_threadsafe(listener.call, data)
    except RuntimeError:
        pass  # its loop is closed: nobody is there any more
