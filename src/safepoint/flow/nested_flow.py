"""Owns a flow that runs inside of other work: in a tool call of an agent, in a node, or as a run of its own.

Inside a tool call its place is told in an event after every node. A crash is recovered from these events, because such
a flow has no store of its own: the log of the session around it is its store. Knows nothing of agents.
"""

import logging
import uuid
from typing import Any

from ..abort import AbortController
from ..errors import UsageError, describe
from ..run.context import Context
from ..run.events import FlowSaved
from ..run.partial_work import PartialWork
from .checkpoint import Checkpoint
from .execution import FlowExecution, SaveProgress
from .flow_run import travel
from .graph import Graph
from .position import Position
from .state import clone

__all__ = ["run_inside"]

log = logging.getLogger("safepoint")


async def run_inside(graph: Graph, ctx: Context, value: Any) -> Any:
    """Run it under the signal of what surrounds it, and give its last state.

    Args:
        graph: The flow.
        ctx: The context of a run, which it then is, or of a leaf, in which it is a run inside.
        value: A state, the Checkpoint of a stopped run, or the KeptWork of a stopped tool call.

    Raises:
        AbortError: It was stopped. The `partial` is a Checkpoint, or the state where that cannot be written as JSON.
        Exception: What a node raised, with the same partial.
    """
    services, depth = getattr(ctx, "services", None), len(ctx.path) + (not ctx.is_run)
    checkpoint = Checkpoint.from_kept(value) if isinstance(value, PartialWork) else value
    if isinstance(checkpoint, Checkpoint):
        place, execution = checkpoint.place_in(graph), checkpoint.execution()
    else:
        place, execution = Position.start(graph, clone(value)), FlowExecution(_key_in(ctx, graph.name))
    execution.services, execution.depth = services, depth
    recorded = ctx.journal.results  # shared with what is around it
    recorded.update(execution.once)
    execution.once = recorded
    inner = ctx if ctx.is_run else ctx.child_run(graph.name, AbortController(ctx.signal))
    if ctx.has_listener and hasattr(ctx, "call_id"):
        execution.saver = SaveProgress(PositionReporter(ctx, place, execution).write)
    try:
        failure = await execution.save(inner)
        if failure is not None:
            raise failure
        return await travel(execution, inner, place)
    except Exception as error:
        error.partial = _partial(place, execution)  # type: ignore[attr-defined]  # the boundary looks for it
        raise
    finally:
        if inner is ctx:
            ctx.receipt_builder.resume = place.cursor
        else:
            inner.stop.close()


class PositionReporter:
    """Tells where a flow inside a tool call is, and waits until that is on record."""

    def __init__(self, ctx: Context, place: Position, execution: FlowExecution) -> None:
        self._ctx = ctx
        self._place = place
        self._execution = execution
        self._warned = False

    async def write(self) -> None:
        """One event. Raises: what the journal raises, when it cannot keep what was told."""
        ctx, flow = self._ctx, self._place.graph.name
        self._execution.revision += 1
        try:
            text = Checkpoint.of(self._place, self._execution, status="running").to_json()
        except UsageError as problem:
            # It still runs, stops and ends as it should: only a crash will make it begin at an earlier place.
            if not self._warned:
                told = "%s: after a crash flow %r would go on from an earlier node: %s"
                log.warning(told, ctx.operation, flow, describe(problem), extra=ctx.log_fields())
            self._warned = True
            return
        ctx.emit(FlowSaved(**ctx.stamp(), flow=flow, checkpoint=text))
        await ctx.journal.flush(ctx)


def _key_in(ctx: Context, name: str) -> str:
    """From which the keys of the nodes are made. In a tool call or a node it comes from there: it stays the same."""
    inner_key = getattr(ctx, "inner_key", None)
    return uuid.uuid4().hex if inner_key is None else str(inner_key(name))


def _partial(place: Position, execution: FlowExecution) -> Any:
    """What a stopped flow leaves behind: where it was, or just the state if that cannot be written down."""
    try:
        return Checkpoint.of(place, execution, status="stopped")
    except UsageError:
        return place.state
