"""Owns running one node that is a function: its attempts, its copy of the state, and whether to believe it.

Knows nothing of routes.
"""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..abort.guard import external_cancel_count
from ..errors import SafepointError
from ..run.context import Context
from ..run.leaf import in_process, in_task, in_thread, inline
from ..run.leaf_run import LeafRun
from ..run.stop import Stop, StopAt
from .context import NodeContext
from .execution import FlowExecution
from .graph import Step
from .node_results import BodyReturned, NodeDone, NodeEnd, NodeFailed, NodeInterrupted, StepEnd
from .position import Position
from .state import clone

__all__ = ["Attempts", "NodeDisrupted", "UnknownOutput", "run_step"]


class UnknownOutput(SafepointError):
    """A node returned an output that it has not declared."""


class NodeDisrupted(SafepointError):
    """A node ended by a CancelledError that nobody had meant for it, such as that of a task it awaited."""


async def run_step(execution: FlowExecution, ctx: Context, place: Position, step: Step) -> NodeEnd:
    """Run it. What it reports after an abort is not believed, unless the node says that its result is final."""
    operation = execution.operation(ctx, step.name)
    attempts = Attempts(execution, ctx, step, operation, place.visit)
    attempts.place = place
    match await attempts.run():
        case BodyReturned(output):
            if output is None and len(step.outputs) == 1:
                output = step.outputs[0]
            if output is None or output not in step.outputs:
                return NodeFailed(_unknown(operation, output, step), operation)
            return NodeDone(output, attempts.working)
        case NodeInterrupted() | NodeFailed() as ended:
            return ended


def _unknown(operation: str, output: object, step: Step) -> UnknownOutput:
    declared = ", ".join(map(repr, step.outputs))
    return UnknownOutput(
        f"node {operation!r} returned {output!r}; its outputs are {declared}: return one of them, or declare it"
    )


class Attempts:
    """The attempts of one visit of a step, or of one item of a scatter: each on a copy of its own."""

    __slots__ = ("_ctx", "_execution", "_key", "_last", "_operation", "_step", "number", "place", "value", "working")

    def __init__(self, execution: FlowExecution, ctx: Context, step: Step, operation: str, visit: str) -> None:
        self._execution = execution
        self._ctx = ctx
        self._step = step
        self._operation = operation
        self._key = f"{execution.key}:{operation}:{visit}"
        self._last: LeafRun[NodeContext[Any]] | None = None
        self.place: Position | None = None  # it has a state: `working` is a copy of it
        self.value: Any = None  # it has an item: `working` is a copy of that
        self.working: Any = None
        self.number = 0

    async def run(self) -> StepEnd:
        """Call the function, as often as its retry allows."""
        step, ctx = self._step, self._ctx
        try:
            value = await (self._once() if step.retry is None else step.retry.run(self._once, ctx=ctx))
        except Exception as error:
            if ctx.signal.aborted:
                return NodeInterrupted(error)
            return NodeFailed(error, self._operation, self._last is not None and self._last.timed_out)
        if isinstance(value, NodeInterrupted):
            return value
        if ctx.signal.aborted and not step.final:
            return NodeInterrupted()
        self._node_ctx._keep_errors()
        return BodyReturned(value)

    async def _once(self) -> Any:
        """One attempt. A stop at a safe point is no error, which would be tried again: it is a value."""
        stop, before = self._ctx.stop, external_cancel_count()
        if self.number and stop.due(StopAt.SAFE_POINT):
            return NodeInterrupted()
        try:
            return await self._call()
        except asyncio.CancelledError as error:
            raise disruption(error, before, self._operation) from error
        except Exception as error:
            if _is_honoured(stop, error):
                return NodeInterrupted(error)
            raise

    async def _call(self) -> Any:
        step, policy, limit = self._step, self._step.policy, self._execution.abandon_after
        if limit is not None and policy.abandon_after is None:
            policy = replace(policy, abandon_after=limit)
        self.number += 1
        self.working = clone(self.value if self.place is None else self.place.state)
        name = self._operation.rpartition("/")[2]
        run = LeafRun(self._ctx, name, step.kind, policy, context=NodeContext)
        self._last = run
        self._node_ctx._prepare(self._execution, self.place, self.working, self.number, self._key)
        if step.kind == "await":
            return await (inline if policy.abandon_after is None else in_task)(run, step.call, self.working)
        if step.kind == "thread":
            return await in_thread(run, step.call, self.working)
        output, self.working, pending = await in_process(run, call_in_child, (step.fn, self.working))
        self._node_ctx._pending += pending
        return output

    @property
    def _node_ctx(self) -> NodeContext[Any]:
        ctx: Any = None if self._last is None else self._last.ctx
        return ctx  # type: ignore[no-any-return]  # a LeafRun makes the context it is told to make


def _is_honoured(stop: Stop, error: Exception) -> bool:
    """True: the node, or all tasks of its own that failed, stopped at a safe point."""
    # Python 3.11 takes a function here, and no method.
    rest = error.split(lambda each: stop.caused(each))[1] if isinstance(error, ExceptionGroup) else error
    return rest is None or stop.caused(rest)


def disruption(error: asyncio.CancelledError, before: int, operation: str) -> NodeDisrupted:
    """What to raise in its place. Raises: the error itself, if somebody asked the running task to end."""
    if external_cancel_count() > before:
        raise error
    return NodeDisrupted(
        f"{operation!r} ended by a CancelledError of something that it awaited: catch it where that is awaited"
    )


def call_in_child(ctx: NodeContext[Any], value: tuple[Callable[..., Any], Any]) -> tuple[Any, Any, list[Any]]:
    """In a process of its own a node writes to that process's copy: it is sent back with the output."""
    fn, working = value
    output = adapted(fn)(ctx, working)
    if inspect.iscoroutine(output):
        output = asyncio.run(output)
    return output, working, ctx._pending


def adapted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A node's function in the shape of Work: `(ctx, state)`. One that takes no context works unchanged."""
    try:
        takes = len(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        takes = 2

    def call(ctx: Any, state: Any) -> Any:
        return fn(state, ctx) if takes > 1 else fn(state)

    call.__wrapped__ = fn  # type: ignore[attr-defined]  # an interrupt looks for the file in which it is written
    return call
