"""Owns how the work on an order says that it waits for a sub-agent elsewhere, so that its place can be lent.

A worker has a number of places. If all of them were taken by turns that wait for sub-agents, and the sub-agents waited
for a place, nothing would ever move again. So a turn that waits lends its place, and only sub-agents may have it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["SubAgentWaits", "waiting_for_a_sub_agent"]


class SubAgentWaits:
    """How many calls of one order wait for a sub-agent. `changed` is told True with the first and False after the last.

    Belongs to the event loop of the work.
    """

    def __init__(self, changed: Callable[[bool], object]) -> None:
        self._changed = changed
        self._count = 0

    def observe(self) -> None:
        """From now on count the calls that are made in this context and in the tasks that are started from it."""
        WAITS.set(self)

    def add(self, one: int) -> None:
        """One call more, or one less."""
        before, self._count = self._count, self._count + one
        if bool(before) != bool(self._count):
            self._changed(bool(self._count))


# The order to which the running code belongs; None outside of a worker.
WAITS: ContextVar[SubAgentWaits | None] = ContextVar("safepoint_waits", default=None)


@contextmanager
def waiting_for_a_sub_agent() -> Iterator[None]:
    """Inside of the block the running work waits for a sub-agent. Does nothing outside of a worker."""
    waits = WAITS.get()
    if waits is None:
        yield
        return
    waits.add(1)
    try:
        yield
    finally:
        waits.add(-1)
