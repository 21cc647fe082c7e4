"""The broker interface: durable message streams, a queue of leased orders, and unrecorded request/reply and publish.

A `Broker` describes where the broker is; a `BrokerConnection` is one connection to it, bound to one event loop. A
connection is the sum of small protocols, so that a class takes only the part that it uses. Every method of a connection
may raise BrokerError. Knows nothing of sessions and turns.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ..errors import SafepointError

__all__ = [
    "RETENTION",
    "Broker",
    "BrokerConnection",
    "BrokerError",
    "BrokerStreams",
    "Fenced",
    "Key",
    "LeaseInForce",
    "Messaging",
    "NoResponders",
    "Order",
    "OrderQueue",
    "Queue",
    "QueueLease",
    "ReadableStreams",
    "RequestHandler",
    "RequestTimeout",
    "Rotation",
    "SessionConnection",
    "StreamEntry",
    "StreamName",
    "same_lease",
]

Key: TypeAlias = tuple[str, ...]
# Which workers may take an order. ("any", agent): every worker that offers the agent. ("at", name): only the worker of
# this name. ("sub", agent): every worker that offers the agent, and because another turn waits for this one, even a
# worker whose places are all taken by turns that wait for sub-agents.
Queue: TypeAlias = tuple[Literal["any", "at", "sub"], str]
RequestHandler: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class BrokerError(SafepointError):
    """The broker could not be reached, or it refused. The message says which broker, what happened and what to do."""


class RequestTimeout(BrokerError, TimeoutError):
    """No reply came in time. The request may have been carried out all the same."""


class NoResponders(BrokerError):
    """No process serves this subject. The broker reports it immediately, without waiting for a timeout."""


class Fenced(BrokerError):
    """Another writer has appended to this key since: this writer is no longer its owner."""


class LeaseInForce(BrokerError):
    """A worker was started with another lease than the one that the other workers of its agent use.

    Attributes:
        seconds: The lease in force.
    """

    def __init__(self, queue: Queue, seconds: float, wanted: float, more: str = "") -> None:
        whose = "agent" if queue[0] != "at" else "worker"
        self.seconds = seconds
        super().__init__(
            f"the lease in force for {whose} {queue[1]!r} is {seconds:g} s, and this worker was started with "
            f"{wanted:g} s: start it with a lease of {seconds:g} s, or stop all workers of the {whose} before you "
            f"start any with {wanted:g} s{more}"
        )


def same_lease(one: float, other: float) -> bool:
    """Whether two leases are equal. A broker may round them, so tiny differences do not count."""
    return abs(one - other) < 1e-6


StreamName: TypeAlias = Literal["log", "inbox", "stops", "sessions", "workers", "dead"]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a stream keeps its messages.

    Attributes:
        newest_only: True if a new message replaces the older ones of its key.
        seconds: The age at which a message is deleted; None keeps it until it is purged.
    """

    newest_only: bool = False
    seconds: float | None = None


DAY_SECONDS = 86_400.0
RETENTION: dict[StreamName, Retention] = {
    # The events of a session; only its current owner writes them.
    "log": Retention(),
    # Messages for a session that are not in its log yet.
    "inbox": Retention(),
    # The stop that was requested, by session and turn.
    "stops": Retention(newest_only=True, seconds=7 * DAY_SECONDS),
    # The agent of a session, and the worker it is pinned to.
    "sessions": Retention(newest_only=True),
    # The announcements of live workers, each repeated every few seconds.
    "workers": Retention(newest_only=True, seconds=15.0),
    # Orders that were given up, with the reason, and messages that could not be read.
    "dead": Retention(seconds=30 * DAY_SECONDS),
}


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A message of a stream. Positions increase along the whole stream, across its keys."""

    position: int
    key: Key
    data: bytes


class Order(Protocol):
    """An order taken from a queue: no other worker gets it as long as its lease is renewed in time."""

    @property
    def session(self) -> str:
        """The session that has work to do."""
        ...

    @property
    def data(self) -> bytes:
        """The content of the order."""
        ...

    @property
    def attempt(self) -> int:
        """How often this order was delivered, this delivery included."""
        ...

    async def renew(self) -> None:
        """Extend the lease: it ends one lease from now. Raises: BrokerError."""
        ...

    async def complete(self) -> None:
        """Remove the order from its queue, confirmed by the broker. Raises: BrokerError."""
        ...

    async def give_back(self, seconds: float = 0.0) -> None:
        """Return the order to its queue, available after `seconds`. Raises: BrokerError."""
        ...


class ReadableStreams(Protocol):
    """Reads the streams: the logs of sessions, their inboxes, recorded stops and announcements."""

    async def read(self, stream: StreamName, key: Key, after: int = 0, limit: int = 1000) -> list[StreamEntry]:
        """The messages of a key after a position, in order."""
        ...

    async def last(self, stream: StreamName, key: Key) -> StreamEntry | None:
        """The newest message of a key."""
        ...

    async def last_per_key(self, stream: StreamName, under: Key = (), after: int = 0) -> list[StreamEntry]:
        """The newest message of each key, for streams that keep only the newest.

        Args:
            stream: The stream.
            under: Only keys that consist of this prefix and one more part.
            after: Only messages after this position.
        """
        ...

    async def keys(self, stream: StreamName) -> list[Key]:
        """The keys that have messages."""
        ...


class BrokerStreams(ReadableStreams, Protocol):
    """Reads and writes the streams."""

    async def append(self, stream: StreamName, key: Key, data: bytes, *, expected_last: int | None = None) -> int:
        """Append a message.

        Args:
            stream: The stream.
            key: The key within the stream.
            data: The message.
            expected_last: Append only if this is the position of the key's newest message; 0 if it must have none.
                This compare-and-set is what fences a former owner.

        Returns:
            The position of the message.

        Raises:
            Fenced: The newest message of the key is another one.
        """
        ...

    async def purge(self, stream: StreamName, key: Key, upto: int) -> None:
        """Delete the messages of a key up to and including a position."""
        ...


class Messaging(Protocol):
    """Requests and publications. They are not recorded, and reach only who is connected now."""

    async def request(self, subject: Key, data: bytes, timeout: float) -> bytes:
        """Send a request to the process that serves a subject. Raises: NoResponders; RequestTimeout."""
        ...

    async def serve(self, subject: Key, handler: RequestHandler) -> Callable[[], Awaitable[None]]:
        """Answer requests to a subject. When this returns, the broker routes them here. Returns how to end that."""
        ...

    async def publish(self, subject: Key, data: bytes) -> None:
        """Send a message to everybody who listens now. It is not kept."""
        ...

    async def listen(self, subject: Key, on_message: Callable[[bytes], object]) -> Callable[[], Awaitable[None]]:
        """Receive what is published to a subject. Returns how to end that.

        Messages may be lost: they are hints, and the listener must also read the streams now and then.
        """
        ...

    def on_reconnect(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back whenever the connection was lost and is restored: published messages were missed meanwhile.

        Returns:
            How to end that.
        """
        ...


class SessionConnection(BrokerStreams, Messaging, Protocol):
    """What the work on a session uses: streams and messaging, but no orders."""


class OrderQueue(Protocol):
    """Orders, at most one for each session: servers and workers add them, and workers take them."""

    async def enqueue(self, queue: Queue, session: str, data: bytes) -> bool:
        """Add an order. Returns False if the session has one already, waiting or held: there is at most one."""
        ...

    async def take(self, queues: Sequence[Queue], limit: int, wait: float) -> list[Order]:
        """Take orders, each held for one lease.

        The queues take turns, so that a queue with many orders does not starve the others (see `Rotation`).

        Args:
            queues: The queues to take from.
            limit: The most orders to take.
            wait: How many seconds to wait for the first order. Publishing to ("orders", *queue) ends the wait early.

        Raises:
            LeaseInForce: The orders of a queue are held for another time than `lease`.
        """
        ...

    async def pending_sessions(self) -> set[str]:
        """The sessions that have an order, waiting or held."""
        ...


class QueueLease(Protocol):
    """How long orders are held: the lease of this connection, and the one in force for each queue."""

    @property
    def lease(self) -> float:
        """The seconds for which an order is held without being renewed."""
        ...

    async def lease_in_force(self, queue: Queue) -> float:
        """The seconds for which the broker holds orders of this queue; sets it to `lease` if it was never set."""
        ...

    async def change_lease(self, queue: Queue) -> None:
        """Put `lease` in force for a queue. Workers that hold its orders with another lease may lose them."""
        ...


class BrokerConnection(SessionConnection, OrderQueue, QueueLease, Protocol):
    """One connection to a broker, used in the event loop that opened it. Whichever object opened it closes it."""

    async def close(self) -> None:
        """Close the connection."""
        ...


class Broker(Protocol):
    """Where servers and workers meet. Can be pickled for another process, unless it lives in this one."""

    async def connect(self, name: str) -> BrokerConnection:
        """Open a connection for the running event loop.

        Args:
            name: Names the client, for the operator of the broker.

        Raises:
            BrokerError: The broker cannot be reached.
        """
        ...


class Rotation:
    """Remembers when each queue was served last: the one that has waited longest comes first.

    Not thread-safe: it belongs to one connection, and so to one event loop.
    """

    def __init__(self) -> None:
        self._served: dict[Queue, int] = {}  # the count at which an order was last taken from the queue
        self._count = 0

    def served(self, queue: Queue) -> None:
        """Note that an order was taken from this queue, so that the others come first next time."""
        self._count += 1
        self._served[queue] = self._count

    def order(self, queues: Sequence[Queue]) -> list[Queue]:
        """The queues, least recently served first. Those that were never served come before, in the given order."""
        return sorted(queues, key=lambda queue: self._served.get(queue, 0))

    def shares(self, queues: Sequence[Queue], limit: int) -> Iterator[tuple[Queue, int]]:
        """Yield the queues to take from, each with the most orders to take from it.

        In a first round each queue gets an equal share of `limit`, at least one order. In a second round what remains
        may be taken from any queue. The caller stops when it has `limit` orders.
        """
        for share in (max(1, limit // max(1, len(queues))), limit):
            for queue in self.order(queues):
                yield queue, share
