"""Owns one execution of a flow: from the start or a checkpoint to the result, saved before anyone is told."""

import logging
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ..abort import AbortSignal, shield
from ..abort.reason import error_from
from ..errors import describe
from ..run.checkpoints import Checkpoints
from ..run.context import Context
from ..run.outcome import Completed, Outcome
from ..run.running import Running
from .checkpoint import Checkpoint, why
from .dispatch import walk
from .journey import Journey, NodeError, Saver
from .place import Place
from .result import FlowResult
from .walked import Arrived, Broken, Interrupted

__all__ = ["FlowRun", "travel"]

State = TypeVar("State")
log = logging.getLogger("safepoint")
# How long the last checkpoint may take; then the result comes without it, and says so.
SAVE_SECONDS = 30.0


async def travel(journey: Journey, ctx: Context, place: Place) -> Any:
    """Walk to the end and give the state. Raises: AbortError when it was stopped; what a node raised."""
    match await walk(journey, ctx, place):
        case Arrived():
            return place.state
        case Interrupted():
            ctx.stop.commit()  # a stop at a safe point has been honoured: from here on it is an abort
            raise error_from(ctx.signal.reason or ctx.stop.reason, place.state)
        case Broken(error, operation):
            error.add_note(f"in node {operation!r} of flow {place.graph.name!r}")
            raise error


@dataclass(frozen=True, slots=True)
class Saving:
    """Where an execution keeps its checkpoint."""

    checkpoints: Checkpoints
    key: str


class FlowRun(Running[State, FlowResult[State]], Generic[State]):
    """A flow that runs: await it for its FlowResult, iterate it for its events, stop it."""

    def __init__(
        self,
        place: Place,
        journey: Journey,
        *,
        signal: AbortSignal | None,
        deadline: float | None,
        origin: str | None,
        saving: Saving | None,
    ) -> None:
        super().__init__(place.graph.name, signal=signal, deadline=deadline, run_id=journey.key, origin=origin)
        self._place = place
        self._journey = journey
        self._saving = saving
        self._ctx.ledger.resume = place.cursor

    @property
    def cursor(self) -> str | None:
        """Where it is now."""
        return self._place.cursor

    async def _work(self, ctx: Context, value: None, /) -> State:
        if self._saving is not None:
            self._journey.saver = Saver(self._save)
        try:
            state: State = await travel(self._journey, ctx, self._place)
            return state
        finally:
            ctx.ledger.resume = self._place.cursor

    async def _result(self, outcome: Outcome[State]) -> FlowResult[State]:
        place, journey = self._place, self._journey
        if not isinstance(outcome, Completed):
            outcome = replace(outcome, partial=place.state)
        if self._saving is not None:
            await self._save_end(outcome)
        cursor = None if isinstance(outcome, Completed) else place.cursor
        return FlowResult(outcome, place.state, cursor, tuple(journey.executed), tuple(journey.errors), self.id, place)

    async def _save(self, status: str = "running", reason: str | None = None) -> None:
        assert self._saving is not None  # for the type checker: only then is there a saver
        executed, errors = tuple(self._journey.executed), tuple(self._journey.errors)
        checkpoint = Checkpoint.of(self._place, self.id, executed, errors, status=status, reason=reason)
        await self._saving.checkpoints.save(self._saving.key, checkpoint.to_json())

    async def _save_end(self, outcome: Outcome[State]) -> None:
        assert self._saving is not None
        try:
            with shield(SAVE_SECONDS):
                if isinstance(outcome, Completed):
                    await self._saving.checkpoints.delete(self._saving.key)
                else:
                    await self._save(outcome.status, why(outcome))
        except Exception as error:  # how the flow ended does not change by that
            message = f"checkpoint {self._saving.key!r} could not be written: {describe(error)}"
            log.warning("%s: %s", self._ctx.operation, message, extra=self._ctx.log_fields())
            at = self._ctx.clock.time()
            self._journey.errors.append(
                NodeError(code="checkpoint_failed", message=message, operation="", recoverable=True, timestamp=at)
            )
