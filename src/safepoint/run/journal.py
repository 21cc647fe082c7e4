"""Owns what a run has on record: the wait for it, and the results of parts of the work that must not run again.

Knows nothing of stores: whoever has one, such as a session, gives its runs a journal that writes to it.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .context import Context

__all__ = ["ChildProcessJournal", "Journal"]


class Journal:
    """The record of one run, shared by everything inside of it. This one is in memory: nothing is waited for.

    Attributes:
        results: The JSON text that each recorded part of the work returned, by `part_name(scope, key)`.
        forwarded: How many events of a sub-agent on another machine are in it, by the idempotency key of the call.
    """

    def __init__(self, results: Mapping[str, str] | None = None) -> None:
        self.results: dict[str, str] = dict(results or {})
        self.forwarded: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, name: str) -> asyncio.Lock:
        """The lock of one part: of two that ask for the same part at once, the second waits for the first's result.

        Raises:
            UsageError: Nothing can be recorded from here.
        """
        return self._locks.setdefault(name, asyncio.Lock())

    async def flush(self, ctx: "Context") -> None:
        """Wait until everything that was emitted so far survives a crash.

        The wait ends at a stop, with nothing raised: what comes next has to look at the signal, as every leaf does
        before its body begins.

        Raises:
            Exception: What the store raised. Then it is not on record, and what depends on it must not begin.
        """


class ChildProcessJournal(Journal):
    """The journal of a function in a process of its own, from which nothing can be recorded."""

    def lock(self, name: str) -> asyncio.Lock:
        """Raises: UsageError."""
        raise UsageError("ctx.once() records nothing from a process of its own: use isolation='thread' for this tool")


def part_name(scope: str, key: str) -> str:
    """The name of one part of the work: `scope` is the idempotency key of the call or node that it is a part of."""
    return f"{scope}/{key}"
