"""Owns the nodes that contain flows: one inside (sub-flow), or several side by side (parallel).

A composite is at a place inside until it is left: what is finished there is not repeated after a resume, what is not
is not lost. Knows nothing of how a flow inside is walked: it is handed the walk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from ..abort import AbortController, AbortError
from ..run.context import Context
from .execution import FlowExecution
from .graph import OnFailure, Parallel, Subflow
from .node_results import BodyReturned, NodeDone, NodeEnd, NodeFailed, NodeInterrupted, StepEnd, Walked, WalkFinished
from .position import ParallelAt, Position, SubflowAt
from .state import clone, merge

__all__ = ["BranchGroup", "Walk", "run_parallel", "run_subflow"]

Walk: TypeAlias = Callable[[FlowExecution, Context, Position], Awaitable[Walked]]


async def run_subflow(execution: FlowExecution, ctx: Context, place: Position, node: Subflow, walk: Walk) -> NodeEnd:
    """Walk the flow inside; only its end is an output of the node."""
    at = place.inside
    if not isinstance(at, SubflowAt):
        state = clone(place.state)
        inner = state if node.into is None else node.into(state)
        at = SubflowAt(Position.start(node.child.graph(), inner, place.within))
        place.inside = at
    match await walk(execution, ctx.child(node.name), at.place):
        case WalkFinished(end):
            if node.out is None:
                return NodeDone(end, at.place.state if node.into is None else place.state)
            state = clone(place.state)
            node.out(state, clone(at.place.state))  # it may fail half-way: then it is called again
            return NodeDone(end, state)
        case NodeInterrupted() | NodeFailed() as ended:
            return ended


async def run_parallel(execution: FlowExecution, ctx: Context, place: Position, node: Parallel, walk: Walk) -> NodeEnd:
    """Walk all branches at once, each on its own copy of the state, and join what they have changed."""
    at = place.inside
    if not isinstance(at, ParallelAt):
        graphs = {name: child.graph() for name, child in node.branches.items()}
        at = ParallelAt(
            {name: Position.start(graph, clone(place.state), place.within) for name, graph in graphs.items()}
        )
        place.inside = at
    siblings = BranchGroup(ctx, node.name, node.on_failure)

    async def branch(name: str, part: Position) -> None:
        inner = siblings.ctx if part.graph.is_just(name) else siblings.ctx.child(name)
        siblings.ended(await walk(execution, inner, part))

    async with asyncio.TaskGroup() as group:
        for name, part in at.places.items():
            if part.node is not None:
                group.create_task(branch(name, part), name=f"{siblings.ctx.operation}/{name}")
    ended = siblings.verdict(execution.operation(ctx, node.name))
    if isinstance(ended, NodeInterrupted) or (ended is not None and node.on_failure == "interrupt"):
        return ended
    state = clone(place.state)
    states = {name: clone(part.state) for name, part in at.places.items() if part.node is None}
    if node.join is None:
        state = merge(state, states)
    else:
        node.join(state, states)
    return NodeDone("done", state) if ended is None else replace(ended, kept=state)


class BranchGroup:
    """Parts that run side by side under one signal of their own: when one fails, the others may be interrupted."""

    def __init__(self, ctx: Context, name: str, on_failure: OnFailure) -> None:
        self._outer = ctx
        self._controller = AbortController(ctx.signal)
        self._interrupts = on_failure == "interrupt"
        self._interrupted = False
        self._late: list[Exception] = []
        self.broken: list[NodeFailed] = []
        self.ctx = ctx.child(name, signal=self._controller.signal)

    def ended(self, ended: Walked | StepEnd) -> None:
        """One part has ended."""
        match ended:
            case NodeFailed(error):
                self.broken.append(ended)
                if self._interrupts:
                    self._controller.abort(error)
            case NodeInterrupted(error):
                self._interrupted = True
                if error is not None and not _is_abort(error):
                    self._late.append(error)
            case WalkFinished() | BodyReturned():
                pass

    def verdict(self, operation: str) -> NodeInterrupted | NodeFailed | None:
        """What became of all of them; None: all are done. A stop comes before a failure."""
        stopped = self._interrupted and not (self.broken and self._interrupts)
        if self._outer.signal.aborted or stopped:
            return NodeInterrupted()
        errors = [*(broken.error for broken in self.broken), *self._late]
        if len(errors) > 1:
            return NodeFailed(ExceptionGroup(f"{len(errors)} parts of {operation!r} failed", errors), operation)
        return self.broken[0] if self.broken else None


def _is_abort(error: Exception) -> bool:
    rest = error.split(AbortError)[1] if isinstance(error, ExceptionGroup) else error
    return rest is None or isinstance(rest, AbortError)
