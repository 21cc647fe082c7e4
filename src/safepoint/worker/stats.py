"""Owns what a worker counts. Knows nothing of who reads it."""

from dataclasses import dataclass

__all__ = ["Stats"]


@dataclass
class Stats:
    """Since the worker began."""

    taken: int = 0  # orders
    redelivered: int = 0  # of those, orders that somebody had held before
    fenced: int = 0  # sessions that were lost to another owner
    killed: int = 0  # processes that were ended because a turn did not stop
    dead: int = 0  # orders that were given up
    failed_starts: int = 0  # processes that ended before they were ready
