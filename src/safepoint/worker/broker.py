"""Owns what servers and workers need of a broker: kept messages, a leased queue of orders, and words that fly by.

A `Broker` says where; a `BrokerConnection` is one connection to it, in one event loop. Knows nothing of sessions and
turns.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ..errors import SafepointError

__all__ = [
    "KEPT",
    "Answers",
    "Broker",
    "BrokerConnection",
    "BrokerError",
    "Fenced",
    "Key",
    "LeaseInForce",
    "NoResponders",
    "Order",
    "Queue",
    "RequestTimeout",
    "StreamEntry",
    "StreamName",
    "same_lease",
]

Key: TypeAlias = tuple[str, ...]
# Whose order it is: any worker with this agent takes it, or the one worker of this name. "sub": the agent works for a
# turn that waits for it, so that any worker with the agent takes it, also one whose places are taken by such turns.
Queue: TypeAlias = tuple[Literal["any", "at", "sub"], str]
Answers: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class BrokerError(SafepointError):
    """The broker could not be reached, or refused: the message says which, what happened, and what to do."""


class RequestTimeout(BrokerError, TimeoutError):
    """No answer came in time. What was asked may have happened all the same."""


class NoResponders(BrokerError):
    """Nobody listens there. Said by the broker at once, not after a timeout."""


class Fenced(BrokerError):
    """Somebody else has written here since: this writer is not the owner any more."""


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
    """Whether two leases are the same; on their way through a broker they are rounded."""
    return abs(one - other) < 1e-6


StreamName: TypeAlias = Literal["log", "inbox", "stops", "sessions", "workers", "dead"]


@dataclass(frozen=True, slots=True)
class Retention:
    """How a shelf keeps: all messages of a key or only the newest, and for how long. None: for ever."""

    newest_only: bool = False
    seconds: float | None = None


DAY = 86_400.0
KEPT: dict[StreamName, Retention] = {
    "log": Retention(),  # what has happened in a session; written by its owner alone
    "inbox": Retention(),  # what was asked of a session and is not in its log yet
    "stops": Retention(newest_only=True, seconds=7 * DAY),  # who was told to stop, by session and turn
    "sessions": Retention(newest_only=True),  # which agent a session has, and where it must run
    "workers": Retention(newest_only=True, seconds=15.0),  # who is there; each says so again and again
    "dead": Retention(seconds=30 * DAY),  # orders that were given up, with the reason
}


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A kept message. `position` grows along the whole shelf."""

    position: int
    key: Key
    data: bytes


class Order(Protocol):
    """An order that is held: nobody else gets it while it is renewed."""

    @property
    def session(self) -> str:
        """The session that has work."""
        ...

    @property
    def data(self) -> bytes:
        """What the order says."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first who takes it, then 2, …"""
        ...

    async def renew(self) -> None:
        """Hold it for one more lease. Raises: BrokerError."""
        ...

    async def done(self) -> None:
        """There is nothing left to do: it is gone when this returns. Raises: BrokerError."""
        ...

    async def give_back(self, seconds: float = 0.0) -> None:
        """Somebody else may take it, at once or after so many seconds. Raises: BrokerError."""
        ...


class BrokerConnection(Protocol):
    """One connection. Its methods belong to the event loop in which it was made. Raises: BrokerError."""

    @property
    def lease(self) -> float:
        """How long an order is held without being renewed, in seconds."""
        ...

    async def append(self, stream: StreamName, key: Key, data: bytes, *, after: int | None = None) -> int:
        """Keep a message; its position. `after`: only if that is the newest position of this key, 0 for none.

        Raises: Fenced.
        """
        ...

    async def read(self, stream: StreamName, key: Key, after: int = 0, limit: int = 1000) -> list[StreamEntry]:
        """The messages of this key after this position, in order."""
        ...

    async def last(self, stream: StreamName, key: Key) -> StreamEntry | None:
        """The newest message of this key."""
        ...

    async def lasts(self, stream: StreamName, under: Key = (), after: int = 0) -> list[StreamEntry]:
        """The messages after this position, of each key that begins so and is one longer; where the newest is kept."""
        ...

    async def trim(self, stream: StreamName, key: Key, upto: int) -> None:
        """Forget the messages of this key up to this position."""
        ...

    async def keys(self, stream: StreamName) -> list[Key]:
        """The keys of which there are messages."""
        ...

    async def order(self, queue: Queue, session: str, data: bytes) -> bool:
        """Put an order up. False: there is one for this session already, waiting or held."""
        ...

    async def take(self, queues: Sequence[Queue], limit: int, wait: float) -> list[Order]:
        """Hold some orders, each for a lease; waits at most so long for the first, or for a word to ("orders", …).

        The queues take turns: one with many orders waiting does not keep those of another one waiting (`Rotation`).

        Raises: LeaseInForce, if the orders of a queue are held for another time than `lease`.
        """
        ...

    async def lease_in_force(self, queue: Queue) -> float:
        """How long the broker leaves orders of this queue to whoever takes them; `lease`, if nobody has set it yet."""
        ...

    async def change_lease(self, queue: Queue) -> None:
        """Put `lease` in force for this queue. Whoever holds orders with another one may lose them."""
        ...

    async def ordered(self) -> set[str]:
        """The sessions for which there is an order, waiting or held."""
        ...

    async def request(self, subject: Key, data: bytes, timeout: float) -> bytes:
        """Ask whoever serves there. Raises: Nobody; TooLate."""
        ...

    async def serve(self, subject: Key, answer: Answers) -> Callable[[], Awaitable[None]]:
        """Answer what is asked there. Returns how to end that."""
        ...

    async def publish(self, subject: Key, data: bytes) -> None:
        """Say something to whoever listens now."""
        ...

    async def listen(self, subject: Key, hear: Callable[[bytes], object]) -> Callable[[], Awaitable[None]]:
        """Hear what is said there. Returns how to end that. Something may be missed: look at what is kept."""
        ...

    def on_return(self, call: Callable[[], object]) -> Callable[[], None]:
        """Be told when the connection was lost and is there again: what was said in between was missed."""
        ...

    async def close(self) -> None:
        """Let go of the connection."""
        ...


class Broker(Protocol):
    """Where servers and workers meet. Can be sent to another process, unless it lives in this one."""

    async def connect(self, name: str) -> BrokerConnection:
        """A connection, for the event loop that runs. `name`: who we are. Raises: BrokerError."""
        ...
