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
from .graph import OnFailure, Parallel, Subflow
from .journey import Journey
from .place import ParallelAt, Place, SubflowAt
from .state import clone, merge
from .walked import Arrived, Broken, Interrupted, Left, NodeEnd, Returned, StepEnd, Walked

__all__ = ["Siblings", "Walk", "run_parallel", "run_subflow"]

Walk: TypeAlias = Callable[[Journey, Context, Place], Awaitable[Walked]]


async def run_subflow(journey: Journey, ctx: Context, place: Place, node: Subflow, walk: Walk) -> NodeEnd:
    """Walk the flow inside; only its end is an output of the node."""
    at = place.inside
    if not isinstance(at, SubflowAt):
        state = clone(place.state)
        inner = state if node.into is None else node.into(state)
        at = SubflowAt(Place.start(node.child.graph(), inner, place.within))
        place.inside = at
    match await walk(journey, ctx.child(node.name), at.place):
        case Arrived(end):
            if node.out is None:
                return Left(end, at.place.state if node.into is None else place.state)
            state = clone(place.state)
            node.out(state, clone(at.place.state))  # it may fail half-way: then it is called again
            return Left(end, state)
        case Interrupted() | Broken() as ended:
            return ended


async def run_parallel(journey: Journey, ctx: Context, place: Place, node: Parallel, walk: Walk) -> NodeEnd:
    """Walk all branches at once, each on its own copy of the state, and join what they have changed."""
    at = place.inside
    if not isinstance(at, ParallelAt):
        graphs = {name: child.graph() for name, child in node.branches.items()}
        at = ParallelAt({name: Place.start(graph, clone(place.state), place.within) for name, graph in graphs.items()})
        place.inside = at
    siblings = Siblings(ctx, node.name, node.on_failure)

    async def branch(name: str, part: Place) -> None:
        inner = siblings.ctx if part.graph.is_just(name) else siblings.ctx.child(name)
        siblings.ended(await walk(journey, inner, part))

    async with asyncio.TaskGroup() as group:
        for name, part in at.places.items():
            if part.node is not None:
                group.create_task(branch(name, part), name=f"{siblings.ctx.operation}/{name}")
    ended = siblings.verdict(journey.operation(ctx, node.name))
    if isinstance(ended, Interrupted) or (ended is not None and node.on_failure == "interrupt"):
        return ended
    state = clone(place.state)
    states = {name: clone(part.state) for name, part in at.places.items() if part.node is None}
    if node.join is None:
        state = merge(state, states)
    else:
        node.join(state, states)
    return Left("done", state) if ended is None else replace(ended, kept=state)


class Siblings:
    """Parts that run side by side under one signal of their own: when one fails, the others may be interrupted."""

    def __init__(self, ctx: Context, name: str, on_failure: OnFailure) -> None:
        self._outer = ctx
        self._controller = AbortController(ctx.signal)
        self._interrupts = on_failure == "interrupt"
        self._interrupted = False
        self._late: list[Exception] = []
        self.broken: list[Broken] = []
        self.ctx = ctx.child(name, signal=self._controller.signal)

    def ended(self, ended: Walked | StepEnd) -> None:
        """One part has ended."""
        match ended:
            case Broken(error):
                self.broken.append(ended)
                if self._interrupts:
                    self._controller.abort(error)
            case Interrupted(error):
                self._interrupted = True
                if error is not None and not _is_abort(error):
                    self._late.append(error)
            case Arrived() | Returned():
                pass

    def verdict(self, operation: str) -> Interrupted | Broken | None:
        """What became of all of them; None: all are done. A stop comes before a failure."""
        stopped = self._interrupted and not (self.broken and self._interrupts)
        if self._outer.signal.aborted or stopped:
            return Interrupted()
        errors = [*(broken.error for broken in self.broken), *self._late]
        if len(errors) > 1:
            return Broken(ExceptionGroup(f"{len(errors)} parts of {operation!r} failed", errors), operation)
        return self.broken[0] if self.broken else None


def _is_abort(error: Exception) -> bool:
    rest = error.split(AbortError)[1] if isinstance(error, ExceptionGroup) else error
    return rest is None or isinstance(rest, AbortError)
