"""Counts how many tool calls of an order wait for a sub-agent on a worker, so that the order's place can be lent.

A worker has a limited number of places. If turns that wait for sub-agents took all of them, and the sub-agents waited
for a place, there would be a deadlock. So a turn that waits lends its place, and only sub-agents may take it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["SubAgentWaits", "waiting_for_a_sub_agent"]


class SubAgentWaits:
    """The number of calls of one order that wait for a sub-agent. Belongs to the event loop of the work."""

    def __init__(self, on_change: Callable[[bool], object]) -> None:
        """Start at zero.

        Args:
            on_change: Called with True when the first call begins to wait, and with False after the last one.
        """
        self._on_change = on_change
        self._count = 0

    def observe(self) -> None:
        """Count the calls that are made in this context, and in the tasks that are started from it, from now on."""
        WAITS.set(self)

    def add(self, difference: int) -> None:
        """Change the number of waiting calls."""
        before, self._count = self._count, self._count + difference
        if bool(before) != bool(self._count):
            self._on_change(bool(self._count))


# The counter of the order to which the running code belongs; None outside of a worker.
WAITS: ContextVar[SubAgentWaits | None] = ContextVar("safepoint_waits", default=None)


@contextmanager
def waiting_for_a_sub_agent() -> Iterator[None]:
    """Count the running call as waiting for a sub-agent inside the block. Does nothing outside of a worker."""
    waits = WAITS.get()
    if waits is None:
        yield
        return
    waits.add(1)
    try:
        yield
    finally:
        waits.add(-1)
