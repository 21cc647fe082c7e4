"""Owns what all parts of one execution of a flow share: services, what ran, what was collected, where it is saved.

Knows nothing of the order in which nodes run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ..abort import AbortSignal, Guard
from ..errors import shorten, text_of
from ..run.context import Context

__all__ = ["FlowExecution", "NodeError", "SaveProgress"]

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


class SaveProgress:
    """Writes the checkpoint down. Of several who ask at once, the last writing serves all that came before it.

    `error`: why the last one failed. A flow does not go on as if it had been written, whatever its routes say.
    """

    def __init__(self, write: Callable[[], Awaitable[object]]) -> None:
        self.error: Exception | None = None
        self._write = write
        self._turn = asyncio.Lock()
        self._asked = 0
        self._written = 0
        self._last = float("-inf")

    async def save(self, signal: AbortSignal) -> None:
        """Returns when what is true now is written. Raises: AbortError; what the store raised."""
        self._asked += 1
        mine = self._asked
        with Guard(signal):
            async with self._turn:
                if self._written < mine:
                    including = self._asked
                    await self._try()
                    self._written = including

    def is_due(self, now: float) -> bool:
        """For an item of a scatter, which need not be written at once: True, every so often."""
        if now - self._last < ITEM_SECONDS:
            return False
        self._last = now
        return True

    async def _try(self) -> None:
        try:
            await self._write()
        except Exception as error:
            self.error = error
            raise
        self.error = None


@dataclass(slots=True)
class FlowExecution:
    """One execution, over all its interruptions.

    depth     how deep in the tree of operations the flow begins
    once      what parts of nodes have returned, by the key of the node and of the part: it travels in the checkpoint
    revision  how many checkpoints were made of it: of two, the one with the higher number is newer
    in_item   inside an item of a scatter, where a checkpoint is written only every so often
    """

    key: str
    depth: int = 1
    services: Any = None
    abandon_after: float | None = None
    executed: list[str] = field(default_factory=list)
    errors: list[NodeError] = field(default_factory=list)
    once: dict[str, str] = field(default_factory=dict)
    revision: int = 0
    saver: SaveProgress | None = None
    in_item: bool = False

    def operation(self, ctx: Context, name: str) -> str:
        """The path of a node, from the root of the flow."""
        return "/".join((*ctx.path[self.depth :], name))

    async def save(self, ctx: Context) -> Exception | None:
        """Write the checkpoint, where there is a store. Gives back why that failed: an abort is no failure."""
        if self.saver is None or (self.in_item and not self.saver.is_due(ctx.clock.monotonic())):
            return None
        try:
            await self.saver.save(ctx.signal)
        except Exception as error:
            return None if ctx.signal.aborted else error
        return None

    def record(self, ctx: Context, error: BaseException, operation: str) -> None:
        """Write down a failure that the flow has a route for."""
        self.errors.append(
            NodeError(
                code=type(error).__name__,
                message=shorten(text_of(error)),
                operation=operation,
                recoverable=True,
                timestamp=ctx.clock.time(),
            )
        )
