"""Owns the context of a node: what it gets beside the state. Knows nothing of routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from ..run.context import Context
from ..run.journal import ChildProcessJournal
from ..run.once import once
from .execution import FlowExecution, NodeError
from .position import Position
from .state import clone

__all__ = ["NodeContext", "add_collected_errors", "collected_errors", "commit_errors", "fill_node_context"]

Services = TypeVar("Services")
T = TypeVar("T")


class NodeContext(Context, Generic[Services]):
    """The context of one attempt of one node.

    Attributes:
        services: What the caller gave to `execute`.
        attempt: 1 for the first attempt.
        idempotency_key: The same in every attempt of this visit, and after a resume: for effects that must happen
            once.
    """

    __slots__ = (
        "_collected",
        "_execution",
        "_inner_count",
        "_position",
        "_working",
        "attempt",
        "idempotency_key",
        "services",
    )

    services: Services
    attempt: int
    idempotency_key: str
    _collected: list[NodeError]
    _execution: FlowExecution
    _inner_count: int
    _position: Position | None
    _working: object

    def inner_key(self, name: str) -> str:
        """Return a key for a flow that this node calls: a new one each time, the same ones if the node is repeated."""
        self._inner_count += 1
        return f"{self.idempotency_key}/{name}#{self._inner_count}"

    @overload
    async def once(self, key: str, fn: Callable[[], Awaitable[T]]) -> T: ...

    @overload
    async def once(self, key: str, fn: Callable[[], T]) -> T: ...

    async def once(self, key: str, fn: Callable[[], object]) -> object:
        """Run a part of this node once, even if the node runs again: what `fn` returned is recorded under `key`.

        With a store it is in the checkpoint before this returns. It is the same for all attempts of one visit.

        Args:
            key: The name of the part, the same each time the node runs.
            fn: A function without parameters, sync (it runs in a thread) or async. It returns plain JSON data.

        Returns:
            What `fn` returned, in this run of the node or in an earlier one.

        Raises:
            AbortError: The run was stopped before the part had a result.
            UsageError: The result is not plain JSON data.
        """
        return await once(self, self.idempotency_key, key, fn)

    def collect_error(self, code: str, message: str, recoverable: bool = True) -> None:
        """Record an error that the flow can continue after. After an abort it is ignored.

        Args:
            code: What kind of error it is, for programs.
            message: What happened, for people.
            recoverable: Whether the node could go on.
        """
        if not self.signal.aborted:
            self._collected.append(
                NodeError(
                    code=code,
                    message=message,
                    operation="/".join(self.path[self._execution.depth :]),
                    recoverable=recoverable,
                    timestamp=self.clock.time(),
                )
            )

    async def safe_point(self) -> None:
        """Keep what the node has written to the state so far, and stop here if a stop waits for a safe point.

        If the node is stopped or fails later, it begins again with the state as it is now.

        Raises:
            AbortError: The run was stopped.
        """
        self.signal.raise_if_aborted()
        self.raise_if_abandoned("safe_point()")
        if self._position is not None:
            self._position.state = clone(self._working)
        commit_errors(self)
        failure = await self._execution.save(self)
        if failure is not None:
            raise failure
        await super().safe_point()

    def __reduce__(self) -> "tuple[Callable[..., NodeContext[Any]], tuple[object, ...]]":
        restore, arguments = super().__reduce__()
        execution = self._execution
        identity = _NodeIdentity(execution.key, execution.depth, self.services, self.attempt, self.idempotency_key)
        return _restored, (restore, arguments, identity)


def fill_node_context(
    ctx: NodeContext[Any], execution: FlowExecution, position: Position | None, working: object, attempt: int, key: str
) -> None:
    """Set what a new NodeContext has beside the fields of a Context.

    Args:
        ctx: The context.
        execution: The execution of the flow.
        position: Where a safe point keeps the state. None if there is no state, as for an item of a scatter.
        working: The copy of the state that the node works on.
        attempt: The number of the attempt.
        key: The idempotency key of the visit.
    """
    ctx.services, ctx.attempt, ctx.idempotency_key = execution.services, attempt, key
    ctx._execution, ctx._position, ctx._working = execution, position, working
    ctx._inner_count, ctx._collected = 0, []


def collected_errors(ctx: NodeContext[Any]) -> list[NodeError]:
    """Return the errors that the node has collected and that are not part of the execution yet."""
    return ctx._collected


def add_collected_errors(ctx: NodeContext[Any], errors: list[NodeError]) -> None:
    """Add errors that the node has collected in another process."""
    ctx._collected += errors


def commit_errors(ctx: NodeContext[Any]) -> None:
    """Make the collected errors part of the execution. Those of a failed attempt never get there."""
    if ctx._collected:
        ctx._execution.errors += ctx._collected
        ctx._collected = []


@dataclass(frozen=True, slots=True)
class _NodeIdentity:
    """What a node needs to know of itself in another process."""

    key: str
    depth: int
    services: object
    attempt: int
    idempotency_key: str


def _restored(
    restore: Callable[..., Context], arguments: tuple[object, ...], node: _NodeIdentity
) -> "NodeContext[Any]":
    """Make the context of a node in another process, with no state to keep at a safe point and no checkpoint."""
    ctx: NodeContext[Any] = restore(*arguments).child("", context_class=NodeContext)
    ctx.path = ctx.path[:-1]
    ctx.journal = ChildProcessJournal()
    execution = FlowExecution(node.key, node.depth, node.services)
    fill_node_context(ctx, execution, None, None, node.attempt, node.idempotency_key)
    return ctx
