"""Owns the loop that runs a flow: check the signal, run the node, follow the route of its output, again.

The loop itself is never interrupted, only what it awaits: the function of a node, a write to the store. So at each
turn of the loop exactly one of two things is true, and both can be resumed. Either a node has ended well, and
`Position.advance` has moved on with its state; or it has not, and the position is still at that node with the state
before it. If an abort could interrupt the loop between a node's end and `advance`, a completed node would run twice.

The order inside a turn matters as well:

1. The signal and the stop are checked before the node, never between its end and its record. A stop that arrives while
   a node completes therefore stops the flow *after* it, and the cursor names the next node.
2. The position advances, then the event is emitted, then the checkpoint is written, then the next node begins. A crash
   before the write repeats the node with the same idempotency key. If the next node began before the write, a crash
   could repeat two nodes, and a node would see effects of its successor.
3. A failed write ends the flow as a failure that no route may handle (`_follow_failure_route`): the route would run
   nodes although the progress before them may be lost.

Clean-ups run once, after the loop, on every path: completion, stop, failure, and an exception that is meant for the
task, such as a cancellation. That exception is held back until they have run. They are shielded from stops and limited
in time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from ..abort.guard import external_cancel_count
from ..errors import SafepointError
from ..events import NodeEnded
from ..run.context import Context
from ..run.leaf import launch
from ..run.leaf_run import LeafRun
from ..run.policy import Policy
from ..run.settle import run_cleanup
from ..run.stop import StopAt
from .composite import run_parallel, run_subflow
from .execution import FlowExecution, GraphEnd, GraphFinished, NodeDone, NodeEnd, NodeFailed, NodeInterrupted
from .graph import Cleanup, End, Node, Parallel, Scatter, Step, Subflow
from .position import Position
from .scatter import run_scatter
from .state import clone
from .step import NodeAttempt, NodeContext, disruption_error, run_step

__all__ = ["StepLimitExceeded", "run_graph"]

# A clean-up that exceeds its time limit is interrupted. If it goes on after that, it is abandoned this much later.
LEAVE_SECONDS = 0.25


class StepLimitExceeded(SafepointError):
    """A flow took more steps than `max_steps`: a cycle that does not end, or a limit that is too low."""


async def run_graph(execution: FlowExecution, ctx: Context, position: Position) -> GraphEnd:
    """Run a graph from this position to an end, an interruption or a failure, then its clean-ups."""
    if not position.graph.cleanups:
        return await _run_nodes(execution, ctx, position)
    ended: GraphEnd = NodeInterrupted()
    passing: BaseException | None = None
    try:
        ended = await _run_nodes(execution, ctx, position)
    except GeneratorExit:  # the coroutine is being closed: it cannot await any more
        raise
    except BaseException as error:  # meant for the task: it is raised after the clean-ups
        passing = error
    for cleanup in position.graph.cleanups:
        call = _cleanup_call(execution, ctx, position, cleanup)
        passing = await run_cleanup(ctx, call, cleanup.within + 4 * LEAVE_SECONDS) or passing
    if passing is not None:
        raise passing
    return ended


async def _run_nodes(execution: FlowExecution, ctx: Context, position: Position) -> GraphEnd:
    graph = position.graph
    while position.node is not None:
        if ctx.signal.aborted or ctx.stop.due(StopAt.SAFE_POINT):
            return NodeInterrupted()
        name = position.node
        if position.step >= graph.max_steps:
            return NodeFailed(_too_many_steps(position), execution.operation(ctx, name))
        ended = await _run_node(execution, ctx, position, graph.nodes[name])
        if isinstance(ended, NodeFailed):
            ended = _follow_failure_route(execution, ctx, position, ended)
        if not isinstance(ended, NodeDone):
            return ended
        target = graph.routes[name][ended.output]
        operation = execution.operation(ctx, name)
        execution.executed.append(operation)
        if execution.once:
            execution.forget_parts(operation, position.visit)
        if isinstance(target, End):
            position.finish(target.name, ended.state)
        else:
            position.advance(target, ended.state)
        if ctx.has_listener:
            ctx.emit(NodeEnded(**ctx.child(name).stamp(), output=ended.output, target=position.node))
        if execution.writer is not None and (failure := await execution.save(ctx)) is not None:
            return NodeFailed(failure, execution.operation(ctx, name))
    return GraphFinished(position.end or "done")


async def _run_node(execution: FlowExecution, ctx: Context, position: Position, node: Node) -> NodeEnd:
    try:
        match node:
            case Step():
                return await run_step(execution, ctx, position, node)
            case Subflow():
                return await run_subflow(execution, ctx, position, node, run_graph)
            case Parallel():
                return await run_parallel(execution, ctx, position, node, run_graph)
            case Scatter():
                return await run_scatter(execution, ctx, position, node, run_graph)
    except Exception as error:  # from the caller's own functions: into, out, join, items, gather
        return NodeInterrupted() if ctx.signal.aborted else NodeFailed(error, execution.operation(ctx, node.name))


def _follow_failure_route(
    execution: FlowExecution, ctx: Context, position: Position, failure: NodeFailed
) -> NodeDone | NodeFailed:
    """Turn a failure or a timeout into an output if the node has a route for it.

    A failure of the store is never routed: see the module docstring.
    """
    assert position.node is not None  # the node that failed
    if execution.writer is not None and execution.writer.error is not None:
        return failure
    routes = position.graph.routes[position.node]
    is_own_failure = failure.operation == execution.operation(ctx, position.node)
    for output, applies in (("timeout", failure.timed_out and is_own_failure), ("failed", True)):
        if applies and output in routes:
            execution.record(ctx, failure.error, failure.operation)
            return NodeDone(output, position.state if failure.kept is None else failure.kept)
    return failure


def _too_many_steps(position: Position) -> StepLimitExceeded:
    return StepLimitExceeded(
        f"flow {position.graph.name!r} took {position.step} steps and is at {position.node!r}: let a cycle end, or"
        f" raise max_steps={position.graph.max_steps}"
    )


def _cleanup_call(
    execution: FlowExecution, ctx: Context, position: Position, cleanup: Cleanup
) -> Callable[[], Awaitable[None]]:
    policy = Policy(timeout=cleanup.within, abandon_after=LEAVE_SECONDS)

    async def call() -> None:
        cancels_before = external_cancel_count()
        working = clone(position.state)
        operation = execution.operation(ctx, f"cleanup/{cleanup.name}")
        attempt = NodeAttempt(execution, None, working, 1, execution.node_key(operation, position.visit))
        make_context = partial(NodeContext, attempt=attempt)
        run = LeafRun(ctx.unstoppable_child("cleanup"), cleanup.name, cleanup.kind, policy, context=make_context)
        run.ctx.records_agents = False  # a clean-up is not repeated: it runs at each end of the flow
        try:
            await launch(run, cleanup.call, run.ctx, working)
        except asyncio.CancelledError as error:
            raise disruption_error(error, cancels_before, operation) from error

    call.__qualname__ = cleanup.name  # warnings name it by this
    return call
