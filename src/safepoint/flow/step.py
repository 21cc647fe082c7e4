"""Owns running a node that is a function: its attempts, its copies of the state, and whether its result counts.

Knows nothing of routes.
"""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..abort.guard import external_cancel_count
from ..errors import SafepointError
from ..run.context import Context
from ..run.leaf import launch
from ..run.leaf_run import LeafRun
from ..run.once import running_repeatable
from ..run.stop import Stop, StopAt
from .context import NodeAttempt, NodeContext, add_collected_errors, collected_errors, commit_errors
from .execution import FlowExecution, NodeError
from .graph import Step
from .node_results import BodyReturned, NodeDone, NodeEnd, NodeFailed, NodeInterrupted, StepEnd
from .position import Position
from .state import clone

__all__ = ["Attempts", "NodeDisrupted", "UnknownOutput", "as_work", "disruption_error", "run_step"]


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
            around = running_repeatable.get()
            running_repeatable.set(run.ctx)
            try:
                return await launch(run, step.call, run.ctx, self.working)
            finally:
                running_repeatable.set(around)
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


def as_work(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a node's function in the shape of Work, `(ctx, state)`, even if it does not take a context."""
    try:
        parameters = len(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        parameters = 2

    def call(ctx: Context, state: object) -> Any:  # a value or an awaitable, as `fn` returns it
        return fn(state, ctx) if parameters > 1 else fn(state)

    call.__wrapped__ = fn  # type: ignore[attr-defined]  # an interrupt looks up the file of the function
    return call
