"""Owns running a node that is a function: its attempts, its copies of the state, and whether its result counts.

Also the context that the function gets besides the state. Knows nothing of routes.
"""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

from ..abort.guard import external_cancel_count
from ..errors import SafepointError
from ..run.context import ChildOptions, Context
from ..run.leaf import launch
from ..run.leaf_run import LeafRun
from ..run.once import RepeatableContext
from ..run.stop import Stop, StopAt
from .execution import BodyReturned, FlowExecution, NodeDone, NodeEnd, NodeError, NodeFailed, NodeInterrupted, StepEnd
from .graph import Step, as_work
from .position import Position
from .state import clone

__all__ = [
    "Attempts",
    "NodeAttempt",
    "NodeContext",
    "NodeDisrupted",
    "UnknownOutput",
    "add_collected_errors",
    "collected_errors",
    "commit_errors",
    "disruption_error",
    "run_step",
]

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


class UnknownOutput(SafepointError):
    """A node returned an output that it has not declared."""


class NodeDisrupted(SafepointError):
    """A node ended by a CancelledError that was not meant for it, such as that of a task it awaited."""


async def run_step(execution: FlowExecution, ctx: Context, position: Position, step: Step) -> NodeEnd:
    """Run a node. What it returns after an abort does not count, unless the node says that its result is final."""
    operation = execution.operation(ctx, step.name)
    attempts = Attempts(execution, ctx, step, operation, position.visit)
    attempts.position = position
    match await attempts.run():
        case BodyReturned(output):
            if output is None and len(step.outputs) == 1:
                output = step.outputs[0]
            if not isinstance(output, str) or output not in step.outputs:
                return NodeFailed(_unknown_output(operation, output, step), operation)
            return NodeDone(output, attempts.working)
        case NodeInterrupted() | NodeFailed() as ended:
            return ended


def _unknown_output(operation: str, output: object, step: Step) -> UnknownOutput:
    declared = ", ".join(map(repr, step.outputs))
    return UnknownOutput(
        f"node {operation!r} returned {output!r}; its outputs are {declared}: return one of them, or declare it"
    )


class Attempts:
    """The attempts of one visit of a step, or of one item of a scatter, each on a copy of its own.

    Attributes:
        position: The position whose state the step works on. None for an item.
        value: The item, if there is no position.
        working: The copy that the last attempt worked on.
        number: How many attempts have begun.
    """

    __slots__ = ("_ctx", "_execution", "_key", "_last", "_operation", "_step", "number", "position", "value", "working")

    def __init__(self, execution: FlowExecution, ctx: Context, step: Step, operation: str, visit: str) -> None:
        self._execution = execution
        self._ctx = ctx
        self._step = step
        self._operation = operation
        self._key = execution.node_key(operation, visit)
        self._last: LeafRun[NodeContext[object]] | None = None
        self.position: Position | None = None
        self.value: object = None
        self.working: object = None
        self.number = 0

    async def run(self) -> StepEnd:
        """Call the function, as often as the step's retry policy allows."""
        step, ctx = self._step, self._ctx
        try:
            value = await (self._attempt() if step.retry is None else step.retry.run(self._attempt, ctx=ctx))
        except Exception as error:
            if ctx.signal.aborted:
                return NodeInterrupted(error)
            return NodeFailed(error, self._operation, self._last is not None and self._last.timed_out)
        if isinstance(value, NodeInterrupted):
            return value
        if ctx.signal.aborted and not step.final:
            return NodeInterrupted()
        if self._last is not None:
            commit_errors(self._last.ctx)
        return BodyReturned(value)

    async def _attempt(self) -> object:
        """Make one attempt. A stop at a safe point is returned as a value: an error would be tried again."""
        stop, cancels_before = self._ctx.stop, external_cancel_count()
        if self.number and stop.due(StopAt.SAFE_POINT):
            return NodeInterrupted()
        try:
            return await self._call()
        except asyncio.CancelledError as error:
            raise disruption_error(error, cancels_before, self._operation) from error
        except Exception as error:
            if _stopped_at_safe_point(stop, error):
                return NodeInterrupted(error)
            raise

    async def _call(self) -> object:
        step, policy, abandon_after = self._step, self._step.policy, self._execution.abandon_after
        if abandon_after is not None and policy.abandon_after is None:
            policy = replace(policy, abandon_after=abandon_after)
        self.number += 1
        self.working = clone(self.value if self.position is None else self.position.state)
        name = self._operation.rpartition("/")[2]
        attempt = NodeAttempt(self._execution, self.position, self.working, self.number, self._key)
        make_context = partial(NodeContext, attempt=attempt)
        run = self._last = LeafRun(self._ctx, name, step.kind, policy, context=make_context)
        if step.kind != "process":
            return await launch(run, step.call, run.ctx, self.working)
        output, self.working, errors = await launch(run, call_in_child, run.ctx, (step.fn, self.working))
        add_collected_errors(run.ctx, errors)
        return output


def _stopped_at_safe_point(stop: Stop, error: Exception) -> bool:
    """Whether the node stopped at a safe point: itself, or all tasks of its own that failed."""
    # On Python 3.11 `split` takes a function, but not a bound method.
    rest = error.split(lambda each: stop.caused(each))[1] if isinstance(error, ExceptionGroup) else error
    return rest is None or stop.caused(rest)


def disruption_error(error: asyncio.CancelledError, count_before: int, operation: str) -> NodeDisrupted:
    """Return the error to raise instead of a CancelledError that was not meant for this task.

    Args:
        error: What the node raised.
        count_before: `external_cancel_count()` before the node began.
        operation: The path of the node.

    Raises:
        asyncio.CancelledError: The error itself, if the running task was cancelled from outside.
    """
    if external_cancel_count() > count_before:
        raise error
    return NodeDisrupted(
        f"{operation!r} ended by a CancelledError of something that it awaited: catch it where that is awaited"
    )


def call_in_child(
    ctx: NodeContext[object], value: tuple[Callable[..., object], object]
) -> tuple[object, object, list[NodeError]]:
    """Call the function of a node in a process of its own.

    The node changes that process's copy of the state, so the copy is returned with the output.
    """
    fn, working = value
    output = as_work(fn)(ctx, working)
    if inspect.iscoroutine(output):
        output = asyncio.run(output)
    return output, working, collected_errors(ctx)
