"""Owns the nodes that contain flows: one inside (sub-flow), or several side by side (parallel).

The position inside a composite is kept until the node has ended: after a resume, what has finished inside is not
repeated, and what has not is continued. Knows nothing of how a flow inside runs: it is given a function for that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from ..abort import AbortController, AbortError
from ..run.context import Context
from .execution import (
    BodyReturned,
    FlowExecution,
    GraphEnd,
    GraphFinished,
    NodeDone,
    NodeEnd,
    NodeFailed,
    NodeInterrupted,
    StepEnd,
)
from .graph import OnFailure, Parallel, Subflow
from .position import ParallelPosition, Position, SubflowPosition
from .state import clone, merge

__all__ = ["BranchGroup", "RunGraph", "run_parallel", "run_subflow"]

RunGraph: TypeAlias = Callable[[FlowExecution, Context, Position], Awaitable[GraphEnd]]


async def run_subflow(
    execution: FlowExecution, ctx: Context, position: Position, node: Subflow, run_graph: RunGraph
) -> NodeEnd:
    """Run the flow inside. The name of its end is the output of the node."""
    inner = position.inside
    if not isinstance(inner, SubflowPosition):
        state = clone(position.state)
        child_state = state if node.into is None else node.into(state)
        inner = SubflowPosition(Position.start(node.child.graph(), child_state, position.inner_prefix))
        position.inside = inner
    match await run_graph(execution, ctx.child(node.name), inner.position):
        case GraphFinished(end):
            if node.out is None:
                return NodeDone(end, inner.position.state if node.into is None else position.state)
            state = clone(position.state)
            node.out(state, clone(inner.position.state))  # a copy: if it fails half-way, it is called again
            return NodeDone(end, state)
        case NodeInterrupted() | NodeFailed() as ended:
            return ended


async def run_parallel(
    execution: FlowExecution, ctx: Context, position: Position, node: Parallel, run_graph: RunGraph
) -> NodeEnd:
    """Run all branches at once, each on its own copy of the state, and join what they have changed."""
    inside = position.inside
    if not isinstance(inside, ParallelPosition):
        graphs = {name: child.graph() for name, child in node.branches.items()}
        inside = ParallelPosition(
            {
                name: Position.start(graph, clone(position.state), position.inner_prefix)
                for name, graph in graphs.items()
            }
        )
        position.inside = inside
    branches = BranchGroup(ctx, node.name, node.on_failure)

    async def run_branch(name: str, branch: Position) -> None:
        branch_ctx = branches.ctx if branch.graph.is_single_step(name) else branches.ctx.child(name)
        branches.record(await run_graph(execution, branch_ctx, branch))

    async with asyncio.TaskGroup() as group:
        for name, branch in inside.positions.items():
            if branch.node is not None:
                group.create_task(run_branch(name, branch), name=f"{branches.ctx.operation}/{name}")
    ended = branches.combined(execution.operation(ctx, node.name))
    if isinstance(ended, NodeInterrupted) or (ended is not None and node.on_failure == "interrupt"):
        return ended
    state = clone(position.state)
    states = {name: clone(branch.state) for name, branch in inside.positions.items() if branch.node is None}
    if node.join is None:
        state = merge(state, states)
    else:
        node.join(state, states)
    return NodeDone("done", state) if ended is None else replace(ended, kept=state)


class BranchGroup:
    """Parts of a node that run side by side under one signal: if one fails, the others may be interrupted.

    Attributes:
        failures: The parts that failed.
        ctx: The context of the parts.
    """

    def __init__(self, ctx: Context, name: str, on_failure: OnFailure) -> None:
        self._outer = ctx
        self._controller = AbortController(ctx.signal)
        self._interrupts = on_failure == "interrupt"
        self._interrupted = False
        self._late_errors: list[Exception] = []  # raised by parts after they were interrupted
        self.failures: list[NodeFailed] = []
        self.ctx = ctx.child(name, signal=self._controller.signal)

    def record(self, ended: GraphEnd | StepEnd) -> None:
        """Record the end of one part, and interrupt the others if it failed and they are to be interrupted."""
        match ended:
            case NodeFailed(error):
                self.failures.append(ended)
                if self._interrupts:
                    self._controller.abort(error)
            case NodeInterrupted(error):
                self._interrupted = True
                if error is not None and not _is_abort(error):
                    self._late_errors.append(error)
            case GraphFinished() | BodyReturned():
                pass

    def combined(self, operation: str) -> NodeInterrupted | NodeFailed | None:
        """Return the end of the whole node, or None if all parts are done. A stop comes before a failure."""
        stopped = self._interrupted and not (self.failures and self._interrupts)
        if self._outer.signal.aborted or stopped:
            return NodeInterrupted()
        errors = [*(failure.error for failure in self.failures), *self._late_errors]
        if len(errors) > 1:
            return NodeFailed(ExceptionGroup(f"{len(errors)} parts of {operation!r} failed", errors), operation)
        return self.failures[0] if self.failures else None


def _is_abort(error: Exception) -> bool:
    rest = error.split(AbortError)[1] if isinstance(error, ExceptionGroup) else error
    return rest is None or isinstance(rest, AbortError)
