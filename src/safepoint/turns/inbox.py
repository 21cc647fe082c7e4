"""Owns the items that wait for a turn: in order, from any thread, each in exactly one hand. Knows nothing of turns.

There is no lock. Whoever takes an entry out of the deque owns it; that is one atomic operation.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

__all__ = ["Inbox", "Put", "QueuedItem"]

T = TypeVar("T")
Put: TypeAlias = Literal["accepted", "closed", "full"]


class QueuedItem(Generic[T]):
    """One pushed item. Equal items are different entries."""

    __slots__ = ("item",)

    def __init__(self, item: T) -> None:
        self.item = item


class Inbox(Generic[T]):
    """First in, first out. `woken` is called, in whatever thread, when there is something new to see."""

    def __init__(self, woken: Callable[[], object], max_items: int | None = None) -> None:
        self._entries: deque[QueuedItem[T]] = deque()
        self._woken = woken
        self._max_items = max_items
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """True: there is no room for another item."""
        return self._max_items is not None and len(self._entries) >= self._max_items

    def put(self, item: T) -> Put:
        """Add an item at the end, unless it came too late or there is no room."""
        if self.closed:
            return "closed"
        if self.full:
            return "full"
        entry = QueuedItem(item)
        self._entries.append(entry)
        if self.closed and self._take_back(entry):
            return "closed"  # it was closed meanwhile, and nobody had taken it
        if self._max_items is not None and len(self._entries) > self._max_items and self._take_back(entry):
            return "full"
        self._woken()
        return "accepted"

    def _take_back(self, entry: QueuedItem[T]) -> bool:
        try:
            self._entries.remove(entry)
        except ValueError:
            return False  # it is in the loop's hand: it came in time
        return True

    def put_front(self, items: Iterable[T]) -> None:
        """Give items back, in their order, before all others. Also when it is closed."""
        self._entries.extendleft(QueuedItem(item) for item in reversed(list(items)))

    def take(self, limit: int | None = None) -> list[T]:
        """What waits, in order: all of it, or so many at most."""
        taken: list[T] = []
        while limit is None or len(taken) < limit:
            try:
                taken.append(self._entries.popleft().item)
            except IndexError:
                break
        self._make_room()
        return taken

    def peek(self) -> list[T]:
        """What waits, in order. It goes on waiting."""
        return [entry.item for entry in self._entries]

    async def room(self) -> None:
        """Wait until there may be room, or it is closed. Who has waited longest is told first."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            self._make_room()  # there may be some since the caller looked
            await waiter
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            self._make_room()  # what it was told of is for the next
            raise

    def _make_room(self) -> None:
        """Tell as many of those who wait as there is room for."""
        free = len(self._waiters)
        if self._max_items is not None and not self.closed:
            free = min(free, self._max_items - len(self._entries))
        for _ in range(free):
            try:
                waiter = self._waiters.popleft()
                waiter.get_loop().call_soon_threadsafe(_resolve, waiter)
            except (IndexError, RuntimeError):  # another thread was quicker; or that loop is closed
                pass

    def remove(self, item: T) -> bool:
        """Take out the first entry with this very item, or an equal one. False: it does not wait here (any more)."""
        waiting = list(self._entries)
        found = [entry for entry in waiting if entry.item is item] or [e for e in waiting if e.item == item]
        removed = any(self._take_back(entry) for entry in found[:1])
        self._make_room()
        return removed

    def close(self) -> None:
        """Let nothing in any more. What is inside stays readable."""
        self.closed = True
        self._make_room()
        self._woken()


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
