"""Owns the checkpoint of one execution in a store: who may use it, what is found there, and what is written.

Knows nothing of how a flow is walked.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from ..abort import AbortSignal, Guard
from ..errors import UsageError
from ..run.checkpoints import CheckpointError, CheckpointInUse, Checkpoints
from ..run.context import Context
from ..run.journal import Journal
from .checkpoint import Checkpoint
from .execution import FlowExecution
from .position import Position

__all__ = ["CheckpointCompleted", "CheckpointSaver", "CheckpointUnfinished", "FlowJournal", "Resume", "chosen"]

Resume: TypeAlias = Checkpoint | Literal["auto"] | None

# The checkpoint of a completed run stays, so that nobody runs it again unknowingly. Nobody may ever delete it, so its
# size is bounded: of a run whose checkpoint is longer than this, only that it has completed is kept, not its result.
LONGEST_COMPLETED = 1_000_000


class CheckpointUnfinished(CheckpointError, UsageError):
    """This call would overwrite the checkpoint of a run that has not completed. Nothing was run.

    Attributes:
        checkpoint: What the store has.
    """

    def __init__(self, message: str, checkpoint: Checkpoint) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class CheckpointCompleted(CheckpointError, UsageError):
    """The run with this checkpoint id has completed before, and its result cannot be given. Nothing was run.

    Attributes:
        checkpoint: What the store has: `completed_at` and `run_id` say which run it was.
    """

    def __init__(self, message: str, checkpoint: Checkpoint) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class FlowJournal(Journal):
    """The record of one execution: what parts of its nodes have returned is in its checkpoint."""

    def __init__(self, execution: FlowExecution) -> None:
        super().__init__(execution.once)
        execution.once = self.results
        self._execution = execution
        self._written = len(self.results)

    async def flush(self, ctx: Context) -> None:
        """Wait until a checkpoint with all results is written, where there is a store. Raises: what the store raised.

        An agent in a node asks for this before each of its tool calls. Its conversation is not in the checkpoint, so
        nothing is written for that.
        """
        now = len(self.results)
        if now == self._written:
            return
        failure = await self._execution.save(ctx)
        if failure is not None:
            raise failure
        self._written = now


@dataclass(frozen=True, slots=True)
class CheckpointSaver:
    """Where an execution keeps its checkpoint, and what it was told to do with one that is there already."""

    checkpoints: Checkpoints
    key: str
    resume: Resume
    migrate: Callable[[Checkpoint], Checkpoint] | None

    async def open(self, stack: AsyncExitStack, signal: AbortSignal) -> Checkpoint | None:
        """Take the lease, which is given back with the stack, and choose the checkpoint to go on from.

        The order matters: what is read without the lease may be out of date when the lease is taken.

        Returns:
            The checkpoint to go on from, or None to begin with the state.

        Raises:
            CheckpointInUse: Another run, here or in another process, has this id.
            CheckpointUnfinished: The run would overwrite one that has not completed.
            CheckpointCompleted: A run has completed under this id, and this call does not go on with that one.
            CheckpointError: The store, or what is in it, cannot be read.
            AbortError: The signal was aborted first.
        """
        with Guard(signal):
            try:
                await stack.enter_async_context(self.checkpoints.lease(self.key))
            except CheckpointInUse as error:
                error.add_note("A flow takes the lease of its checkpoint_id by itself. Nothing of this run has begun.")
                raise
            found = await Checkpoint.recall(self.checkpoints, self.key)
        return chosen(self.key, found, self.resume)

    async def save(
        self, place: Position, execution: FlowExecution, *, status: str = "running", reason: str | None = None
    ) -> None:
        """Write down where the run is. Raises: what the store raises; UsageError for a state that is not JSON."""
        execution.revision += 1
        checkpoint = Checkpoint.of(place, execution, status=status, reason=reason)
        await self.checkpoints.save(self.key, checkpoint.to_json())

    async def save_completed(self, place: Position, execution: FlowExecution, *, now: float) -> None:
        """Write down that the run has completed, with its result unless that is too long."""
        execution.revision += 1
        checkpoint = replace(Checkpoint.of(place, execution, status="completed"), once={}, completed_at=now)
        text = checkpoint.to_json()
        if len(text) > LONGEST_COMPLETED:
            text = replace(checkpoint, shape={}, place={}, executed=(), errors=()).to_json()
        await self.checkpoints.save(self.key, text)


def chosen(key: str, found: Checkpoint | None, resume: Resume) -> Checkpoint | None:
    """Which checkpoint a run goes on from.

    Args:
        key: The id, for messages.
        found: What the store has under it.
        resume: What the caller has asked for.

    Returns:
        The checkpoint to go on from, a completed one included; None to begin with the state.

    Raises:
        CheckpointUnfinished: The caller would overwrite an unfinished run, or a newer state of the same one.
        CheckpointCompleted: The caller would overwrite the record that a run has completed.
    """
    if found is None:
        return resume if isinstance(resume, Checkpoint) else None
    if resume == "auto":
        return found
    if resume is None or resume.run_id != found.run_id:
        raise completed(key, found) if found.completed else _unfinished(key, found)
    if found.completed:
        return found
    if found.revision > resume.revision:
        raise CheckpointUnfinished(
            f"checkpoint {key!r} has gone on since the one given as resume= was made: it is at {found.cursor!r} now."
            f' Nothing was run. Give resume="auto" to go on from there; to go back to the older one, delete the newer'
            f" one first: `await store.delete({key!r})`",
            found,
        )
    return resume


def completed(key: str, found: Checkpoint) -> CheckpointCompleted:
    """The error for a run that is not to be run again."""
    at = "" if found.completed_at is None else f" at {datetime.fromtimestamp(found.completed_at, UTC):%Y-%m-%d %X} UTC"
    gives = '; resume="auto" gives its result' if found.place else "; its result was too long to be kept"
    return CheckpointCompleted(
        f"flow {found.flow!r} has completed under checkpoint {key!r}{at} (run {found.run_id}), and was not run again"
        f"{gives}. For a new run use another checkpoint_id, or delete it first: `await store.delete({key!r})`",
        found,
    )


def _unfinished(key: str, found: Checkpoint) -> CheckpointUnfinished:
    return CheckpointUnfinished(
        f"checkpoint {key!r} has a run of flow {found.flow!r} that has not completed: it is at"
        f" {found.cursor or 'its end'}, last seen {found.status} (run {found.run_id}). Nothing was run, and it was left"
        f' as it is. To go on with it, give resume="auto"; to throw it away, delete it first:'
        f" `await store.delete({key!r})`; for a new run beside it, use another checkpoint_id",
        found,
    )
