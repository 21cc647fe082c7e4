"""Owns the runs of a flow: its handle and result, from the start or a checkpoint, and the flow that runs as Work.

The end of a run is written to the store before the result is returned.

As Work, a flow runs in a tool call of an agent, in a node, or as a run of its own. In a tool call it has no store.
Instead it emits an event with its checkpoint after every node, and the log of the session around it keeps these events:
after a crash the flow continues from the last one. If the agent itself runs in a node, the checkpoint is also a part in
the journal of that node.

Knows nothing of how nodes run, and nothing of agents.
"""

import logging
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from ..abort import AbortController, AbortError, AbortSignal, shield
from ..abort.reason import error_from
from ..errors import UsageError, describe
from ..events import FlowSaved
from ..outcome import Completed, Outcome
from ..run.context import Context
from ..run.journal import part_name
from ..run.once import RepeatableContext
from ..run.partial_work import PartialWork
from ..run.run_handle import RunHandle
from .checkpoint import Checkpoint, reason_text
from .checkpoint_saver import CheckpointSaver, FlowJournal, completed_error
from .dispatch import run_graph
from .execution import CoalescingWriter, FlowExecution, GraphFinished, NodeError, NodeFailed, NodeInterrupted
from .graph import Graph
from .mermaid import draw
from .position import Position
from .state import clone
from .step import NodeContext

__all__ = ["FlowResult", "FlowRun", "run_inside", "run_to_end"]

State = TypeVar("State")
log = logging.getLogger("safepoint")
# How long the last checkpoint may take. After that the result is returned without it, and says so.
SAVE_SECONDS = 30.0
# The name of the part of a journal that is the checkpoint of a flow inside a tool call.
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class FlowResult(Generic[State]):
    """How a flow ended.

    Attributes:
        outcome: Completed(state), Aborted, TimedOut or Failed.
        state: The state at the last safe point.
        cursor: The path of the node that would run next, or of the interrupted one; None if the flow completed.
        executed: The nodes that ended, in order, including those before a resume.
        errors: What the nodes collected, including before a resume.
        run_id: The id of the run. A resumed run has the same one.
        position: Where the flow ended, for `Checkpoint.from_result`.
        once: The results of `ctx.once`, and the conversations of agents, of nodes that have not ended, as JSON text.
        revision: How many checkpoints were made of this run.
        already_completed: Whether nothing was run, because the flow had completed before under this checkpoint id.
            The result is the earlier one.
    """

    outcome: Outcome[State]
    state: State
    cursor: str | None
    executed: tuple[str, ...]
    errors: tuple[NodeError, ...]
    run_id: str
    position: Position
    once: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0
    already_completed: bool = False

    def to_mermaid(self) -> str:
        """Return the flow as a Mermaid chart that shows what ran, where it stopped, and what was not reached."""
        return draw(self.position.graph, executed=frozenset(self.executed), cursor=self.cursor)


async def run_to_end(execution: FlowExecution, ctx: Context, position: Position) -> Any:
    """Run the flow from this position and return its last state, whose type only its nodes know.

    Raises:
        AbortError: The run was stopped.
        Exception: What a node raised.
    """
    match await run_graph(execution, ctx, position):
        case GraphFinished():
            return position.state
        case NodeInterrupted():
            ctx.stop.abort_run()  # the stop has reached its safe point: from now on it is an abort
            raise error_from(ctx.signal.reason or ctx.stop.reason, position.state)
        case NodeFailed(error, operation):
            error.add_note(f"in node {operation!r} of flow {position.graph.name!r}")
            raise error


class FlowRun(RunHandle[State, FlowResult[State]], Generic[State]):
    """A run of a flow: await it for its FlowResult, iterate it for its events, stop it."""

    def __init__(
        self,
        position: Position,
        execution: FlowExecution,
        *,
        signal: AbortSignal | None,
        timeout: float | None,
        origin: str | None,
        saver: CheckpointSaver | None,
    ) -> None:
        super().__init__(position.graph.name, signal=signal, timeout=timeout, run_id=execution.key, origin=origin)
        self._position = position
        self._execution = execution
        self._saver = saver
        self._already_completed = False
        self._ctx.journal = FlowJournal(execution)
        self._ctx.receipt_builder.resume = position.cursor

    @property
    def cursor(self) -> str | None:
        """The path of the node that runs, or that would run next."""
        return self._position.cursor

    async def _run(self) -> FlowResult[State]:
        """Run the flow. The lease of the checkpoint is held from before it is read until after the last write."""
        if self._saver is None:
            return await super()._run()
        stack = AsyncExitStack()
        try:
            await self._open(self._saver, stack)
            return await super()._run()
        finally:
            await self._close(stack)

    async def _open(self, saver: CheckpointSaver, stack: AsyncExitStack) -> None:
        """Take the lease and continue from what the store has.

        Raises what keeps the run from beginning. A stop does not: a run that is stopped here has an outcome like any
        other.
        """
        try:
            found = await saver.open(stack, self.signal)
        except Exception:
            if not self.signal.aborted:
                raise
            self._saver = None  # nothing has begun, and what the store has is not known: it must not be overwritten
            return
        if found is not None and found is not saver.resume:
            self._continue_from(found, saver)

    def _continue_from(self, found: Checkpoint, saver: CheckpointSaver) -> None:
        if not found.completed:
            self._position = found.position_in(self._position.graph, saver.migrate)
        elif found.place:
            self._position, self._already_completed = found.final_position_in(self._position.graph), True
        else:
            raise completed_error(saver.key, found)
        before, self._execution = self._execution, found.execution()
        self._execution.services, self._execution.abandon_after = before.services, before.abandon_after
        self._ctx.journal = FlowJournal(self._execution)
        self.id = self._ctx.run_id = found.run_id
        self._ctx.receipt_builder.resume = self._position.cursor

    async def _close(self, stack: AsyncExitStack) -> None:
        try:
            with shield(SAVE_SECONDS):
                await stack.aclose()
        except Exception as error:  # this does not change how the flow ended
            message = f"the lease of its checkpoint could not be given back: {describe(error)}"
            log.warning("%s: %s", self._ctx.operation, message, extra=self._ctx.log_fields())

    async def _work(self, ctx: Context, value: None, /) -> State:
        if self._already_completed:
            state: State = self._position.state
            return state
        try:
            if self._saver is not None:
                self._execution.writer = CoalescingWriter(self._save)
                # Write before the first node: if the process dies in it, the node must get the same idempotency key.
                failure = await self._execution.save(ctx)
                if failure is not None:
                    raise failure
            result: State = await run_to_end(self._execution, ctx, self._position)
            return result
        finally:
            ctx.receipt_builder.resume = self._position.cursor

    async def _result(self, outcome: Outcome[State]) -> FlowResult[State]:
        position, execution = self._position, self._execution
        if not isinstance(outcome, Completed):
            outcome = replace(outcome, partial=position.state)
        if self._saver is not None and not self._already_completed:
            await self._save_end(self._saver, outcome)
        return FlowResult(
            outcome,
            position.state,
            None if isinstance(outcome, Completed) else position.cursor,
            tuple(execution.executed),
            tuple(execution.errors),
            self.id,
            position,
            dict(execution.once),
            execution.revision,
            self._already_completed,
        )

    async def _save(self) -> None:
        assert self._saver is not None  # it is only called if there is one
        await self._saver.save(self._position, self._execution)

    async def _save_end(self, saver: CheckpointSaver, outcome: Outcome[State]) -> None:
        try:
            with shield(SAVE_SECONDS):
                if isinstance(outcome, Completed):
                    await saver.save_completed(self._position, self._execution, now=self._ctx.clock.time())
                else:
                    await saver.save(
                        self._position, self._execution, status=outcome.status, reason=reason_text(outcome)
                    )
        except Exception as error:  # this does not change how the flow ended
            message = f"checkpoint {saver.key!r} could not be written: {describe(error)}"
            log.warning("%s: %s", self._ctx.operation, message, extra=self._ctx.log_fields())
            at = self._ctx.clock.time()
            self._execution.errors.append(
                NodeError(code="checkpoint_failed", message=message, operation="", recoverable=True, timestamp=at)
            )


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
