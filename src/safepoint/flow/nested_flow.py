"""Owns a flow that runs as Work: in a tool call of an agent, in a node, or as a run of its own.

A flow in a tool call has no store of its own. Instead it emits an event with its checkpoint after every node, and the
log of the session around it keeps these events: after a crash the flow continues from the last one. Knows nothing of
agents.

If the agent itself runs in a node, the checkpoint is also a part in the journal of that node.
"""

import logging
import uuid
from dataclasses import replace
from typing import Any

from ..abort import AbortController, AbortError
from ..abort.reason import error_from
from ..errors import UsageError, describe
from ..events import FlowSaved
from ..run.context import Context
from ..run.journal import part_name
from ..run.once import RepeatableContext
from ..run.partial_work import PartialWork
from .checkpoint import Checkpoint
from .context import NodeContext
from .execution import CoalescingWriter, FlowExecution
from .flow_run import run_to_end
from .graph import Graph
from .position import Position
from .state import clone

__all__ = ["run_inside"]

log = logging.getLogger("safepoint")
# The name of the part that is the checkpoint of a flow.
CHECKPOINT = "checkpoint"


async def run_inside(graph: Graph, ctx: Context, value: object) -> Any:
    """Run a flow under the signal of the work around it, and return its last state.

    Args:
        graph: The flow.
        ctx: The context of a run, which this then is, or of a leaf, in which this becomes a child run.
        value: A state, the Checkpoint of a stopped run, or the PartialWork of a stopped tool call.

    Raises:
        AbortError: It was stopped. The `partial` is a Checkpoint, or the state if that cannot be written as JSON.
        Exception: What a node raised. The run around it keeps the same partial.
    """
    position, execution = _where_to_begin(graph, ctx, value)
    execution.services = ctx.services if isinstance(ctx, NodeContext) else None
    execution.depth = len(ctx.path) + (not ctx.is_run)
    recorded = ctx.journal.results  # the dict of the work around it, so that both see every result
    for name, text in execution.once.items():
        recorded.setdefault(name, text)  # the journal is never older than a checkpoint
    execution.once, execution.shares_once = recorded, True
    inner = ctx if ctx.is_run else ctx.child_run(graph.name, AbortController(ctx.signal))
    reporter: PositionReporter | None = None
    if isinstance(ctx, RepeatableContext) and ctx.continues_from_kept and (ctx.has_listener or ctx.records_agents):
        reporter = PositionReporter(ctx, position, execution)
        execution.writer = CoalescingWriter(reporter.write)
    try:
        failure = await execution.save(inner)
        if failure is not None:
            raise failure
        return await run_to_end(execution, inner, position)
    except Exception as error:
        partial = _partial(position, execution)
        if reporter is not None and isinstance(partial, Checkpoint):
            reporter.record(partial)
        if isinstance(error, AbortError) and (inner.signal.aborted or inner.stop.caused(error)):
            raise error_from(error.reason, partial) from error
        ctx.keep_partial(error, partial)
        raise
    finally:
        if inner is ctx:
            ctx.receipt_builder.resume = position.cursor
        else:
            inner.stop.close()


class PositionReporter:
    """Emits the checkpoint of a flow inside a tool call, and waits until it is on record."""

    def __init__(self, ctx: RepeatableContext, position: Position, execution: FlowExecution) -> None:
        self._ctx = ctx
        self._position = position
        self._execution = execution
        self._warned = False

    async def write(self) -> None:
        """Emit one checkpoint. Raises: what the journal raises if it cannot keep it."""
        ctx, flow = self._ctx, self._position.graph.name
        self._execution.revision += 1
        try:
            checkpoint = Checkpoint.of(self._position, self._execution, status="running")
        except UsageError as problem:
            # The flow still runs, stops and ends as it should. Only after a crash it begins at an earlier node.
            if not self._warned:
                message = "%s: after a crash flow %r would go on from an earlier node: %s"
                log.warning(message, ctx.operation, flow, describe(problem), extra=ctx.log_fields())
            self._warned = True
            return
        self.record(checkpoint)
        if ctx.has_listener:
            ctx.emit(FlowSaved(**ctx.stamp(), flow=flow, checkpoint=checkpoint.to_json()))
        await ctx.journal.flush(ctx)

    def record(self, checkpoint: Checkpoint) -> None:
        """Record a checkpoint in the journal, if the agent around the tool call goes on from there."""
        ctx = self._ctx
        if ctx.records_agents and not ctx.abandoned:
            # The parts of the flow are in the same journal.
            ctx.journal.record(ctx, self._execution.key, CHECKPOINT, replace(checkpoint, once={}).to_json())


def _where_to_begin(graph: Graph, ctx: Context, value: object) -> tuple[Position, FlowExecution]:
    checkpoint = Checkpoint.from_kept(value) if isinstance(value, PartialWork) else value
    key = "" if isinstance(checkpoint, Checkpoint) else _key_in(ctx, graph.name)
    recorded = ctx.journal.results.get(part_name(key, CHECKPOINT))
    if recorded is not None:
        checkpoint = Checkpoint.from_json(recorded)
    if isinstance(checkpoint, Checkpoint):
        return checkpoint.position_in(graph), checkpoint.execution()
    return Position.start(graph, clone(value)), FlowExecution(key)


def _key_in(ctx: Context, name: str) -> str:
    """Return the key from which those of the nodes are made. In a tool call or a node it stays the same for life."""
    return ctx.inner_key(name) if isinstance(ctx, RepeatableContext) else uuid.uuid4().hex


def _partial(position: Position, execution: FlowExecution) -> object:
    """Return the checkpoint of a stopped flow, or its state if that cannot be written as JSON."""
    try:
        return Checkpoint.of(position, execution, status="stopped")
    except UsageError:
        return position.state
