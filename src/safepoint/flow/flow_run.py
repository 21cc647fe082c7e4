"""Owns the handle of one execution of a flow, from the start or a checkpoint to the result.

The end is written to the store before the result is returned. Knows nothing of how nodes run.
"""

import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ..abort import AbortSignal, shield
from ..abort.reason import error_from
from ..errors import describe
from ..outcome import Completed, Outcome
from ..run.context import Context
from ..run.run_handle import RunHandle
from .checkpoint import Checkpoint, reason_text
from .checkpoint_saver import CheckpointSaver, FlowJournal, completed_error
from .dispatch import run_graph
from .execution import CoalescingWriter, FlowExecution, NodeError
from .node_results import GraphFinished, NodeFailed, NodeInterrupted
from .position import Position
from .result import FlowResult

__all__ = ["FlowRun", "run_to_end"]

State = TypeVar("State")
log = logging.getLogger("safepoint")
# How long the last checkpoint may take. After that the result is returned without it, and says so.
SAVE_SECONDS = 30.0


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
