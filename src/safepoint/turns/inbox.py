"""Owns the items that wait for a turn: a queue that any thread may use without a lock. Knows nothing of turns.

Why no lock is needed. `push` may come from a signal handler, in the middle of any other method of the same thread: a
lock could deadlock there. Instead, each operation is a single step of the deque, which is atomic, and each race is
decided by who removes an entry:

- `put` races with `close`. `put` appends the entry and then reads `closed` again; `close` sets `closed`, and the loop
  takes what is in the deque afterwards. If the close came in between, either `put` removes its own entry and reports
  "closed", or the loop has taken it already and it counts as accepted. Reading `closed` only before the append would
  leave an entry in a queue that is never read again.
- Two `put` calls race for the last free place. Both append, both see that there are too many, and each removes its own
  entry: one item too few may be accepted, never one too many.
- `take`, `remove` and `put` race for one entry. Entries are compared by identity, so equal items are different entries
  and exactly one caller gets each.
- `wait_for_space` races with `take`. The waiter is registered first and looks for space second; `take` removes items
  first and looks for waiters second. In either order one of them sees the other.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

from ..abort.event_loop import post, resolve

__all__ = ["Inbox", "Put", "QueuedItem"]

T = TypeVar("T")
Put: TypeAlias = Literal["accepted", "closed", "full"]


class QueuedItem(Generic[T]):
    """One pushed item. Equal items are different entries."""

    __slots__ = ("item",)

    def __init__(self, item: T) -> None:
        self.item = item


class Inbox(Generic[T]):
    """A first-in, first-out queue.

    Args:
        on_change: Called after an item was added and after the queue was closed, in the thread that did it.
        max_items: How many items may wait. `None` means that there is no limit.

    Attributes:
        closed: Whether the queue refuses further items.
    """

    def __init__(self, on_change: Callable[[], object], max_items: int | None = None) -> None:
        self._entries: deque[QueuedItem[T]] = deque()
        self._on_change = on_change
        self._max_items = max_items
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether another item would be refused."""
        return self._max_items is not None and len(self._entries) >= self._max_items

    def put(self, item: T) -> Put:
        """Add an item at the end, unless the queue is closed or full."""
        if self.closed:
            return "closed"
        if self.full:
            return "full"
        entry = QueuedItem(item)
        self._entries.append(entry)
        # Append first, check second: see the docstring of the module.
        if self.closed and self._withdraw(entry):
            return "closed"
        if self._max_items is not None and len(self._entries) > self._max_items and self._withdraw(entry):
            return "full"
        self._on_change()
        return "accepted"

    def _withdraw(self, entry: QueuedItem[T]) -> bool:
        """Remove an entry. False if the loop has taken it already, which means that it was accepted in time."""
        try:
            self._entries.remove(entry)
        except ValueError:
            return False
        return True

    def put_front(self, items: Iterable[T]) -> None:
        """Put items back before all others, in their order, even into a closed queue."""
        self._entries.extendleft(QueuedItem(item) for item in reversed(list(items)))

    def take(self, limit: int | None = None) -> list[T]:
        """Remove and return the waiting items in order: all of them, or at most `limit`."""
        taken: list[T] = []
        while limit is None or len(taken) < limit:
            try:
                taken.append(self._entries.popleft().item)
            except IndexError:
                break
        self._wake_waiters()
        return taken

    def peek(self) -> list[T]:
        """Return the waiting items in order, without removing them."""
        return [entry.item for entry in self._entries]

    async def wait_for_space(self) -> None:
        """Wait until there may be space for an item, or the queue is closed. The longest waiter is woken first."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            self._wake_waiters()  # space may have become free since the caller looked
            await waiter
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            self._wake_waiters()  # this waiter may have been woken already: the next one takes its place
            raise

    def _wake_waiters(self) -> None:
        """Wake as many waiters as there are free places, or all of them if the queue is closed."""
        if not self._waiters:
            return
        free = len(self._waiters)
        if self._max_items is not None and not self.closed:
            free = min(free, self._max_items - len(self._entries))
        for _ in range(free):
            try:
                waiter = self._waiters.popleft()
            except IndexError:  # another thread took the last one
                break
            post(waiter.get_loop(), resolve, waiter, None)

    def remove(self, item: T) -> bool:
        """Remove the first entry with this very item, or else with an equal one. False if none is waiting."""
        waiting = list(self._entries)
        found = [entry for entry in waiting if entry.item is item] or [e for e in waiting if e.item == item]
        removed = any(self._withdraw(entry) for entry in found[:1])
        self._wake_waiters()
        return removed

    def close(self) -> None:
        """Refuse further items. Those inside can still be taken."""
        self.closed = True
        self._wake_waiters()
        self._on_change()
