"""Owns the walk through a flow: look at the signal, run the node, follow its output, again.

Leaves are interrupted, the walk never is: it reads what came back, writes it down and stops at its next look.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from ..abort import AbortSignal
from ..abort.guard import external_cancel_count
from ..errors import SafepointError
from ..run.context import Context
from ..run.events import NodeEnded
from ..run.leaf import in_task, in_thread
from ..run.leaf_run import LeafRun
from ..run.policy import Policy
from ..run.settle import run_cleanup
from ..run.stop import Stop, StopAt
from .composite import run_parallel, run_subflow
from .context import NodeContext
from .execution import FlowExecution
from .graph import Cleanup, End, Node, Parallel, Scatter, Step, Subflow
from .node_results import NodeDone, NodeEnd, NodeFailed, NodeInterrupted, Walked, WalkFinished
from .position import Position
from .scatter import run_scatter
from .state import clone
from .step import disruption, run_step

__all__ = ["StepLimitExceeded", "walk"]

# A clean-up whose time is up is interrupted; one that goes on is left behind after this.
LEAVE_SECONDS = 0.25


class StepLimitExceeded(SafepointError):
    """A flow took more steps than `max_steps`: a cycle that does not end, or a limit that is too low."""


async def walk(execution: FlowExecution, ctx: Context, place: Position) -> Walked:
    """From this place to an end, an interruption or an error; then the flow's clean-ups, on every path."""
    if not place.graph.cleanups:
        return await _walk(execution, ctx, place)
    walked: Walked = NodeInterrupted()
    passing: BaseException | None = None
    try:
        walked = await _walk(execution, ctx, place)
    except GeneratorExit:  # it is being thrown away: nothing can be awaited any more
        raise
    except BaseException as error:  # meant for the task: it goes on its way after the clean-ups
        passing = error
    for cleanup in place.graph.cleanups:
        call = _cleanup_call(execution, ctx, place, cleanup)
        passing = await run_cleanup(ctx, call, cleanup.within + 4 * LEAVE_SECONDS) or passing
    if passing is not None:
        raise passing
    return walked


async def _walk(execution: FlowExecution, ctx: Context, place: Position) -> Walked:
    graph = place.graph
    while place.node is not None:
        if ctx.signal.aborted or ctx.stop.due(StopAt.SAFE_POINT):
            return NodeInterrupted()
        name = place.node
        if place.step >= graph.max_steps:
            return NodeFailed(_too_many(place), execution.operation(ctx, name))
        ended = await _run(execution, ctx, place, graph.nodes[name])
        if isinstance(ended, NodeFailed):
            ended = _routed(execution, ctx, place, ended)
        if not isinstance(ended, NodeDone):
            return ended
        target = graph.routes[name][ended.output]
        execution.executed.append(execution.operation(ctx, name))
        if isinstance(target, End):
            place.arrive(target.name, ended.state)
        else:
            place.go(target, ended.state)
        if ctx.has_listener:
            ctx.emit(NodeEnded(**ctx.child(name).stamp(), output=ended.output, target=place.node))
        if execution.saver is not None and (failure := await execution.save(ctx)) is not None:
            return NodeFailed(failure, execution.operation(ctx, name))
    return WalkFinished(place.end or "done")


async def _run(execution: FlowExecution, ctx: Context, place: Position, node: Node) -> NodeEnd:
    try:
        match node:
            case Step():
                return await run_step(execution, ctx, place, node)
            case Subflow():
                return await run_subflow(execution, ctx, place, node, walk)
            case Parallel():
                return await run_parallel(execution, ctx, place, node, walk)
            case Scatter():
                return await run_scatter(execution, ctx, place, node, walk)
    except Exception as error:  # from the caller's own functions: into, out, join, items, gather
        return NodeInterrupted() if ctx.signal.aborted else NodeFailed(error, execution.operation(ctx, node.name))


def _routed(execution: FlowExecution, ctx: Context, place: Position, broken: NodeFailed) -> NodeDone | NodeFailed:
    """A failure or a timeout goes by its route, where there is one. One of the store does not: it may have lost it."""
    assert place.node is not None  # for the type checker: it is at the node that broke
    if execution.saver is not None and execution.saver.error is not None:
        return broken
    routes = place.graph.routes[place.node]
    itself = broken.operation == execution.operation(ctx, place.node)
    for output, taken in (("timeout", broken.timed_out and itself), ("failed", True)):
        if taken and output in routes:
            execution.record(ctx, broken.error, broken.operation)
            return NodeDone(output, place.state if broken.kept is None else broken.kept)
    return broken


def _too_many(place: Position) -> StepLimitExceeded:
    return StepLimitExceeded(
        f"flow {place.graph.name!r} took {place.step} steps and is at {place.node!r}: let a cycle end, or raise"
        f" max_steps={place.graph.max_steps}"
    )


def _cleanup_call(execution: FlowExecution, ctx: Context, place: Position, cleanup: Cleanup) -> Callable[[], Any]:
    policy = Policy(timeout=cleanup.within, abandon_after=LEAVE_SECONDS)
    threaded = cleanup.kind == "thread"

    async def call() -> None:
        outer, before = ctx.child("cleanup", signal=AbortSignal.never()), external_cancel_count()
        outer.stop = Stop(None, ctx.clock)  # deaf also to a stop at a safe point
        run = LeafRun(outer, cleanup.name, cleanup.kind, policy, context=NodeContext)
        working = clone(place.state)
        node_ctx: Any = run.ctx
        operation = execution.operation(ctx, f"cleanup/{cleanup.name}")
        node_ctx._prepare(execution, None, working, 1, f"{execution.key}:{operation}:{place.visit}")
        try:
            await (in_thread if threaded else in_task)(run, cleanup.call, working)
        except asyncio.CancelledError as error:
            raise disruption(error, before, operation) from error

    call.__qualname__ = cleanup.name  # by which a warning speaks of it
    return call
