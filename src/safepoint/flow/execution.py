"""Owns what all parts of one execution of a flow share: services, what ran, collected errors, the checkpoint writer.

Also the ways in which a node and a graph can end, as closed unions. Knows nothing of the order in which nodes run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..abort import AbortSignal, Guard
from ..errors import shorten, text_of
from ..run.context import Context

__all__ = [
    "BodyReturned",
    "CoalescingWriter",
    "FlowExecution",
    "GraphEnd",
    "GraphFinished",
    "NodeDone",
    "NodeEnd",
    "NodeError",
    "NodeFailed",
    "NodeInterrupted",
    "StepEnd",
]


@dataclass(frozen=True, slots=True)
class BodyReturned:
    """The function of a node has returned, and its result counts."""

    value: object


@dataclass(frozen=True, slots=True)
class NodeDone:
    """The node has ended well: by this output, with this state."""

    output: str
    state: object


@dataclass(frozen=True, slots=True)
class GraphFinished:
    """The graph has reached an end."""

    end: str


@dataclass(frozen=True, slots=True)
class NodeInterrupted:
    """The node was stopped. The position says where, and holds what is kept.

    Attributes:
        error: What the node raised after the stop, if it raised anything.
    """

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The node failed.

    Attributes:
        error: What it raised.
        operation: Its path, from the root of the flow.
        timed_out: Whether its own time limit was exceeded.
        kept: A state with the parts that did succeed, or None.
    """

    error: Exception
    operation: str
    timed_out: bool = False
    kept: object = None


StepEnd: TypeAlias = BodyReturned | NodeInterrupted | NodeFailed
NodeEnd: TypeAlias = NodeDone | NodeInterrupted | NodeFailed
GraphEnd: TypeAlias = GraphFinished | NodeInterrupted | NodeFailed


# Inside a scatter, which may have a hundred thousand items, a checkpoint is written at most this often.
ITEM_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeError:
    """An error that a node collected. It does not stop the flow, and travels with the state.

    Attributes:
        code: What kind of error it is, for programs.
        message: What happened, for people.
        operation: The path of the node.
        recoverable: Whether the node could go on.
        timestamp: When it was collected, in seconds since 1970.
    """

    code: str
    message: str
    operation: str
    recoverable: bool
    timestamp: float


class CoalescingWriter:
    """Writes the checkpoint; concurrent requests share a write.

    Parallel branches ask for a checkpoint at about the same time, and each write holds the whole position tree. So one
    write serves every request that was made before it began. A request that is made while a write is in progress is
    not served by it, because the write may have read the position before the change that the request is about: it
    waits for the next write. `save` therefore takes a number before it waits for the lock, and reads the newest number
    after it has the lock and before it writes.

    Attributes:
        error: Why the last write failed, or None. While it is set no route may handle the failure of a node: the flow
            would go on with progress that is nowhere recorded.
    """

    def __init__(self, write: Callable[[], Awaitable[object]]) -> None:
        self.error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._write = write
        self._lock = asyncio.Lock()
        self._requested = 0
        self._written = 0
        self._last_item = float("-inf")

    async def save(self, signal: AbortSignal) -> None:
        """Return when everything that is true at the time of the call is written.

        Raises:
            AbortError: The signal was aborted first.
            Exception: What the store raised.
        """
        if asyncio.get_running_loop() is not self._loop:  # an agent in a node that runs a loop of its own in a thread
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.save(signal), self._loop))
            return
        self._requested += 1
        number = self._requested
        with Guard(signal):
            async with self._lock:
                if self._written < number:
                    including = self._requested
                    await self._write_now()
                    self._written = including

    def is_due(self, now: float) -> bool:
        """Whether an item of a scatter should ask for a write: True at most once per `ITEM_SECONDS`."""
        if now - self._last_item < ITEM_SECONDS:
            return False
        self._last_item = now
        return True

    async def _write_now(self) -> None:
        try:
            await self._write()
        except Exception as error:
            self.error = error
            raise
        self.error = None


@dataclass(slots=True)
class FlowExecution:
    """One execution of a flow, over all its interruptions.

    Attributes:
        key: The id of the run, from which the idempotency keys of the nodes are made.
        depth: How deep in the tree of operations the flow begins.
        services: What the caller gave to the nodes. Its type is that of `NodeContext.services`.
        abandon_after: For nodes whose policy has none: see `Policy`.
        executed: The paths of the nodes that have ended, in order.
        errors: What the nodes collected.
        once: The results of `ctx.once`, and the conversations of agents, by the key of the node and of the part. They
            travel in the checkpoint until the node has ended.
        shares_once: Whether `once` also has the parts of the work around the flow, which are not in its checkpoint.
        revision: How many checkpoints were made of this run. Of two checkpoints, the higher number is newer.
        writer: Writes the checkpoint, if there is a store.
        in_item: Whether this is the execution inside a scatter, where a checkpoint is written only now and then.
    """

    key: str
    depth: int = 1
    services: Any = None
    abandon_after: float | None = None
    executed: list[str] = field(default_factory=list)
    errors: list[NodeError] = field(default_factory=list)
    once: dict[str, str] = field(default_factory=dict)
    shares_once: bool = False
    revision: int = 0
    writer: CoalescingWriter | None = None
    in_item: bool = False

    def operation(self, ctx: Context, name: str) -> str:
        """Return the path of a node, from the root of the flow."""
        return "/".join((*ctx.path[self.depth :], name))

    def node_key(self, operation: str, visit: str) -> str:
        """Return the idempotency key of one visit of a node."""
        return f"{self.key}:{operation}:{visit}"

    def own_parts(self) -> dict[str, str]:
        """Return the results of the parts of this flow alone. Nodes in threads may add to `once` meanwhile."""
        return {
            name: text
            for name, text in self.once.copy().items()
            if not self.shares_once or name.startswith(f"{self.key}:")
        }

    def forget_parts(self, operation: str, visit: str) -> None:
        """Forget the results of the parts of a node that has ended: this visit never runs again."""
        prefix = f"{self.node_key(operation, visit)}/"
        for name in [name for name in self.once.copy() if name.startswith(prefix)]:
            self.once.pop(name, None)

    async def save(self, ctx: Context) -> Exception | None:
        """Write the checkpoint, if there is a store.

        Returns:
            Why that failed, or None. An abort is no failure: the flow stops at its next check anyway.
        """
        if self.writer is None or (self.in_item and not self.writer.is_due(ctx.clock.monotonic())):
            return None
        try:
            await self.writer.save(ctx.signal)
        except Exception as error:
            return None if ctx.signal.aborted else error
        return None

    def record(self, ctx: Context, error: BaseException, operation: str) -> None:
        """Add a failure that the flow handles by a route to the collected errors."""
        self.errors.append(
            NodeError(
                code=type(error).__name__,
                message=shorten(text_of(error)),
                operation=operation,
                recoverable=True,
                timestamp=ctx.clock.time(),
            )
        )
