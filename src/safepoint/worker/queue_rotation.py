"""Owns in which order the queues of a worker are served, so that a long queue does not starve the others. Pure."""

from collections.abc import Iterator, Sequence

from .broker import Queue

__all__ = ["Rotation"]


class Rotation:
    """Remembers which queue was served when: the one that has waited longest is asked first.

    Not thread-safe: it belongs to one link, and so to one event loop.
    """

    def __init__(self) -> None:
        self._served: dict[Queue, int] = {}  # a growing number: the last time an order was taken from this queue
        self._count = 0

    def served(self, queue: Queue) -> None:
        """Note that an order was taken from this queue: the others come first next time."""
        self._count += 1
        self._served[queue] = self._count

    def order(self, queues: Sequence[Queue]) -> list[Queue]:
        """The queues, least recently served first; before them, as they are given, those that were never served."""
        return sorted(queues, key=lambda queue: self._served.get(queue, 0))

    def shares(self, queues: Sequence[Queue], limit: int) -> Iterator[tuple[Queue, int]]:
        """Say from which queue to take how many orders at most, until `limit` are found.

        First each queue gets an equal share of the places, at least one; what is left after that goes to whoever has
        more. The caller stops when it has `limit` orders, and never takes more than that.
        """
        for share in (max(1, limit // max(1, len(queues))), limit):
            for queue in self.order(queues):
                yield queue, share
