"""Owns one execution of a flow: from the start or a checkpoint to the result, saved before anyone is told."""

import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ..abort import AbortSignal, shield
from ..abort.reason import error_from
from ..errors import describe
from ..run.context import Context
from ..run.outcome import Completed, Outcome
from ..run.run_handle import RunHandle
from .checkpoint import Checkpoint, why
from .checkpoint_saver import CheckpointSaver, FlowJournal, completed
from .dispatch import walk
from .execution import FlowExecution, NodeError, SaveProgress
from .node_results import NodeFailed, NodeInterrupted, WalkFinished
from .position import Position
from .result import FlowResult

__all__ = ["FlowRun", "travel"]

State = TypeVar("State")
log = logging.getLogger("safepoint")
# How long the last checkpoint may take; then the result comes without it, and says so.
SAVE_SECONDS = 30.0


async def travel(execution: FlowExecution, ctx: Context, place: Position) -> Any:
    """Walk to the end and give the state. Raises: AbortError when it was stopped; what a node raised."""
    match await walk(execution, ctx, place):
        case WalkFinished():
            return place.state
        case NodeInterrupted():
            ctx.stop.abort_run()  # a stop at a safe point has been honoured: from here on it is an abort
            raise error_from(ctx.signal.reason or ctx.stop.reason, place.state)
        case NodeFailed(error, operation):
            error.add_note(f"in node {operation!r} of flow {place.graph.name!r}")
            raise error


class FlowRun(RunHandle[State, FlowResult[State]], Generic[State]):
    """A flow that runs: await it for its FlowResult, iterate it for its events, stop it."""

    def __init__(
        self,
        place: Position,
        execution: FlowExecution,
        *,
        signal: AbortSignal | None,
        timeout: float | None,
        origin: str | None,
        saving: CheckpointSaver | None,
    ) -> None:
        super().__init__(place.graph.name, signal=signal, timeout=timeout, run_id=execution.key, origin=origin)
        self._place = place
        self._execution = execution
        self._saving = saving
        self._already_completed = False
        self._ctx.journal = FlowJournal(execution)
        self._ctx.receipt_builder.resume = place.cursor

    @property
    def cursor(self) -> str | None:
        """Where it is now."""
        return self._place.cursor

    async def _run(self) -> FlowResult[State]:
        """Nobody else has the checkpoint from before the first look at it until after the last writing."""
        if self._saving is None:
            return await super()._run()
        stack = AsyncExitStack()
        try:
            await self._open(self._saving, stack)
            return await super()._run()
        finally:
            await self._close(stack)

    async def _open(self, saving: CheckpointSaver, stack: AsyncExitStack) -> None:
        """Raises: what keeps the run from beginning. A stop is none of that: it has an outcome like any other."""
        try:
            found = await saving.open(stack, self.signal)
        except Exception:
            if not self.signal.aborted:
                raise
            self._saving = None  # what is in the store is not known, and nothing has begun: nothing is written
            return
        if found is not None and found is not saving.resume:
            self._go_on_from(found, saving)

    def _go_on_from(self, found: Checkpoint, saving: CheckpointSaver) -> None:
        if not found.completed:
            self._place = found.place_in(self._place.graph, saving.migrate)
        elif found.place:
            self._place, self._already_completed = found.end_in(self._place.graph), True
        else:
            raise completed(saving.key, found)
        before, self._execution = self._execution, found.execution()
        self._execution.services, self._execution.abandon_after = before.services, before.abandon_after
        self._ctx.journal = FlowJournal(self._execution)
        self.id = self._ctx.run_id = found.run_id
        self._ctx.receipt_builder.resume = self._place.cursor

    async def _close(self, stack: AsyncExitStack) -> None:
        try:
            with shield(SAVE_SECONDS):
                await stack.aclose()
        except Exception as error:  # how the flow ended does not change by that
            message = f"the lease of its checkpoint could not be given back: {describe(error)}"
            log.warning("%s: %s", self._ctx.operation, message, extra=self._ctx.log_fields())

    async def _work(self, ctx: Context, value: None, /) -> State:
        if self._already_completed:
            state: State = self._place.state
            return state
        try:
            if self._saving is not None:
                self._execution.saver = SaveProgress(self._save)
                # Before the first node: after a crash in it, its idempotency key must be the one it had.
                failure = await self._execution.save(ctx)
                if failure is not None:
                    raise failure
            result: State = await travel(self._execution, ctx, self._place)
            return result
        finally:
            ctx.receipt_builder.resume = self._place.cursor

    async def _result(self, outcome: Outcome[State]) -> FlowResult[State]:
        place, execution = self._place, self._execution
        if not isinstance(outcome, Completed):
            outcome = replace(outcome, partial=place.state)
        if self._saving is not None and not self._already_completed:
            await self._save_end(self._saving, outcome)
        return FlowResult(
            outcome,
            place.state,
            None if isinstance(outcome, Completed) else place.cursor,
            tuple(execution.executed),
            tuple(execution.errors),
            self.id,
            place,
            dict(execution.once),
            execution.revision,
            self._already_completed,
        )

    async def _save(self) -> None:
        assert self._saving is not None  # for the type checker: only then is there a saver
        await self._saving.save(self._place, self._execution)

    async def _save_end(self, saving: CheckpointSaver, outcome: Outcome[State]) -> None:
        try:
            with shield(SAVE_SECONDS):
                if isinstance(outcome, Completed):
                    await saving.save_completed(self._place, self._execution, now=self._ctx.clock.time())
                else:
                    await saving.save(self._place, self._execution, status=outcome.status, reason=why(outcome))
        except Exception as error:  # how the flow ended does not change by that
            message = f"checkpoint {saving.key!r} could not be written: {describe(error)}"
            log.warning("%s: %s", self._ctx.operation, message, extra=self._ctx.log_fields())
            at = self._ctx.clock.time()
            self._execution.errors.append(
                NodeError(code="checkpoint_failed", message=message, operation="", recoverable=True, timestamp=at)
            )
