"""Owns what all parts of one execution of a flow share: services, what ran, what was collected, where it is saved.

Knows nothing of the order in which nodes run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ..run.context import Context

__all__ = ["Journey", "NodeError", "Saver"]

# A scatter may have a hundred thousand items: in there, a checkpoint is written at most this often.
ITEM_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeError:
    """What a node collected. It does not stop the flow; it travels with the state."""

    code: str
    message: str
    operation: str
    recoverable: bool
    timestamp: float


class Saver:
    """Writes the checkpoint down. Of several who ask at once, the last writing serves all that came before it."""

    def __init__(self, write: Callable[[], Awaitable[object]]) -> None:
        self._write = write
        self._turn = asyncio.Lock()
        self._asked = 0
        self._written = 0
        self._last = float("-inf")

    async def save(self) -> None:
        """Returns when what is true now is written."""
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._written < mine:
                including = self._asked
                await self._write()
                self._written = including

    async def save_item(self, now: float) -> None:
        """The same for an item of a scatter, which need not be written at once."""
        if now - self._last >= ITEM_SECONDS:
            self._last = now
            await self.save()


@dataclass(slots=True)
class Journey:
    """One execution, over all its interruptions. `depth`: how deep in the tree of operations the flow begins."""

    key: str
    depth: int = 1
    services: Any = None
    abandon_after: float | None = None
    executed: list[str] = field(default_factory=list)
    errors: list[NodeError] = field(default_factory=list)
    saver: Saver | None = None

    def operation(self, ctx: Context, name: str) -> str:
        """The path of a node, from the root of the flow."""
        return "/".join((*ctx.path[self.depth :], name))

    def record(self, ctx: Context, error: BaseException, operation: str) -> None:
        """Write down a failure that the flow has a route for."""
        self.errors.append(
            NodeError(
                code=type(error).__name__,
                message=str(error),
                operation=operation,
                recoverable=True,
                timestamp=ctx.clock.time(),
            )
        )
