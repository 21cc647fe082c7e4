"""The order in which a worker takes from its queues, so that a long queue does not starve the others."""

from collections.abc import Iterator, Sequence

from .broker import Queue

__all__ = ["Rotation"]


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
