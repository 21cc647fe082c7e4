"""The journal of a run: the wait until events are on record, and the recorded results of parts that must not run again.

This module does not know stores. Code that has one, such as a session, gives its runs a journal that writes to it.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ..errors import UsageError
from ..events import PartRecorded

if TYPE_CHECKING:
    from .context import Context

__all__ = ["ChildProcessJournal", "EnclosedJournal", "Journal", "part_name"]


class Journal:
    """The record of one run, shared by everything inside it. This class keeps it in memory, so `flush` never waits.

    Attributes:
        results: The JSON text that each recorded part of the work returned, by `part_name(scope, key)`.
        forwarded: How many events of a sub-agent on another machine it contains, by the idempotency key of the call.
        can_record: Whether anything can be recorded in this process.
    """

    can_record: ClassVar[bool] = True

    def __init__(self, results: Mapping[str, str] | None = None) -> None:
        self.results: dict[str, str] = {} if results is None else dict(results)
        self.forwarded: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock of one part, so that a second call of the same part waits for the result of the first.

        Raises:
            UsageError: Nothing can be recorded in this process.
        """
        return self._locks.setdefault(name, asyncio.Lock())

    def record(self, ctx: "Context", scope: str, key: str, text: str) -> None:
        """Record what a part of the work returned. It survives a crash after the next `flush`.

        Args:
            ctx: The context of the work, which reports it.
            scope: The idempotency key of the work.
            key: The name of the part.
            text: The result as JSON text.
        """
        self.results[part_name(scope, key)] = text
        ctx.emit(PartRecorded(**ctx.stamp(), scope=scope, key=key, value=text))

    async def flush(self, ctx: "Context") -> None:
        """Wait until all events emitted so far survive a crash.

        A stop ends the wait without an error: the next step has to check the signal, as every leaf does before its
        body begins.

        Raises:
            Exception: The store failed. The events are not on record, and work that depends on them must not begin.
        """


class ChildProcessJournal(Journal):
    """The journal of a function in a child process, where nothing can be recorded."""

    can_record: ClassVar[bool] = False

    def lock(self, name: str) -> asyncio.Lock:
        """Refuse to record.

        Raises:
            UsageError: Always.
        """
        raise UsageError("ctx.once() cannot record anything in a child process: use isolation='thread' for this tool")


class EnclosedJournal(Journal):
    """The journal of a run that is started inside other work, such as `agent.run()` in a node: that work records it.

    Args:
        outer: The context of the other work.
    """

    def __init__(self, outer: "Context") -> None:
        self.results = outer.journal.results
        self.forwarded = outer.journal.forwarded
        self._outer = outer

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock of one part."""
        return self._outer.journal.lock(name)

    def record(self, ctx: "Context", scope: str, key: str, text: str) -> None:
        """Record what a part of the work returned. The work around the run reports it."""
        self._outer.journal.record(self._outer, scope, key, text)

    async def flush(self, ctx: "Context") -> None:
        """Wait until all records so far survive a crash."""
        await self._outer.journal.flush(ctx)


def part_name(scope: str, key: str) -> str:
    """Return the name of one part of the work; `scope` is the idempotency key of its tool call or node."""
    return f"{scope}/{key}"
