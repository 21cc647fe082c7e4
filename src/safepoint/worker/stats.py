"""The counters of a worker. Knows nothing of who reads them."""

from dataclasses import dataclass

__all__ = ["Stats"]


@dataclass
class Stats:
    """Counters since the worker was started.

    Attributes:
        taken: Orders that were taken.
        redelivered: Those of them that had been delivered before.
        fenced: Sessions that were lost to another owner.
        killed: Processes that were killed because a turn did not stop.
        dead: Orders that were given up.
        failed_starts: Processes that ended before they were ready.
    """

    taken: int = 0
    redelivered: int = 0
    fenced: int = 0
    killed: int = 0
    dead: int = 0
    failed_starts: int = 0
