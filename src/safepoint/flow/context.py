"""Owns the context of a node: what it gets besides the state. Knows nothing of routes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from ..run.context import ChildOptions, Context
from ..run.once import RepeatableContext
from .execution import FlowExecution, NodeError
from .position import Position
from .state import clone

__all__ = ["NodeAttempt", "NodeContext", "add_collected_errors", "collected_errors", "commit_errors"]

Services = TypeVar("Services")


@dataclass(frozen=True, slots=True)
class NodeAttempt:
    """One attempt of one node.

    Attributes:
        execution: The execution of the flow.
        position: Where a safe point keeps the state. None if there is no state, as for an item of a scatter.
        working: The copy of the state that the node works on.
        number: The number of the attempt; 1 for the first.
        key: The idempotency key of the visit.
    """

    execution: FlowExecution
    position: Position | None
    working: object
    number: int
    key: str


class NodeContext(RepeatableContext, Generic[Services]):
    """The context of one attempt of one node.

    Args:
        outer: The context of the flow.
        name: The name of the node.
        attempt: The attempt.
        **options: What differs from `outer`: see `ChildContext`.

    Attributes:
        services: What the caller gave to `execute`.
        attempt: 1 for the first attempt.
        idempotency_key: The same in every attempt of this visit, and after a resume: for effects that must happen
            once.
    """

    __slots__ = ("_attempt", "_collected", "attempt", "services")

    def __init__(
        self, outer: Context, name: str | None, *, attempt: NodeAttempt, **options: Unpack[ChildOptions]
    ) -> None:
        super().__init__(outer, name, idempotency_key=attempt.key, **options)
        self.services: Services = attempt.execution.services
        self.attempt = attempt.number
        self.records_agents = self.journal.can_record
        self._attempt = attempt
        self._collected: list[NodeError] = []

    @property
    def is_retry(self) -> bool:
        """Whether an earlier attempt has failed."""
        return self.attempt > 1

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
                    operation="/".join(self.path[self._attempt.execution.depth :]),
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
        if self._attempt.position is not None:
            self._attempt.position.state = clone(self._attempt.working)
        commit_errors(self)
        failure = await self._attempt.execution.save(self)
        if failure is not None:
            raise failure
        await super().safe_point()

    def __reduce__(self) -> "tuple[Callable[..., NodeContext[Any]], tuple[object, ...]]":
        restore, arguments = super().__reduce__()
        execution = self._attempt.execution
        identity = _NodeIdentity(execution.key, execution.depth, self.services, self.attempt, self.idempotency_key)
        return _restored, (restore, arguments, identity)


def collected_errors(ctx: NodeContext[Any]) -> list[NodeError]:
    """Return the errors that the node has collected and that are not part of the execution yet."""
    return ctx._collected


def add_collected_errors(ctx: NodeContext[Any], errors: list[NodeError]) -> None:
    """Add errors that the node has collected in another process."""
    ctx._collected += errors


def commit_errors(ctx: NodeContext[Any]) -> None:
    """Make the collected errors part of the execution. Those of a failed attempt never get there."""
    if ctx._collected:
        ctx._attempt.execution.errors += ctx._collected
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
    execution = FlowExecution(node.key, node.depth, node.services)
    attempt = NodeAttempt(execution, None, None, node.attempt, node.idempotency_key)
    return NodeContext(restore(*arguments), None, attempt=attempt)
