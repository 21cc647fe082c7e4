"""Owns the checkpoint of one execution in a store: who may use it, what is found there, and what is written.

Two processes may be given the same checkpoint id: a scheduler starts a job twice, a server is restarted before its
predecessor has ended. What keeps them apart is the lease of the store, together with this order:

1. Take the lease, then read the checkpoint. Read first, it could be out of date when the lease is taken: the other
   process may have written another node, or have completed, in between, and this one would repeat that work.
2. Decide by what was found (`choose_checkpoint`). A call that would overwrite an unfinished run, a newer revision of
   the same run, or the record of a completed one, raises before any node runs.
3. Hold the lease until after the last write. It is given back only when the end is in the store, so that the next
   holder reads the end. `FlowRun` does this with an exit stack around the whole run.

Each write increases `revision`, because "newer" cannot be decided by time: clocks of machines differ. Writes are
coalesced, see `CoalescingWriter`; the writes at the end are made here directly, after the last node has ended.

Knows nothing of how nodes run.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from ..abort import AbortSignal, Guard
from ..errors import UsageError
from ..run.context import Context
from ..run.journal import Journal
from ..storage.checkpoints import CheckpointError, CheckpointInUse, Checkpoints
from .checkpoint import Checkpoint
from .execution import FlowExecution
from .position import Position

__all__ = [
    "CheckpointCompleted",
    "CheckpointSaver",
    "CheckpointUnfinished",
    "FlowJournal",
    "Resume",
    "choose_checkpoint",
    "completed_error",
]

Resume: TypeAlias = Checkpoint | Literal["auto"] | None

# The checkpoint of a completed run stays, so that the run is not repeated by mistake. It may never be deleted, so its
# size is limited: a longer one is replaced by the fact that the run has completed, without its result.
LONGEST_COMPLETED = 1_000_000


class CheckpointUnfinished(CheckpointError, UsageError):
    """This call would overwrite the checkpoint of a run that has not completed. Nothing was run.

    Attributes:
        checkpoint: The checkpoint in the store.
    """

    def __init__(self, message: str, checkpoint: Checkpoint) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class CheckpointCompleted(CheckpointError, UsageError):
    """The run with this checkpoint id has completed before, and its result is not available. Nothing was run.

    Attributes:
        checkpoint: The checkpoint in the store. Its `completed_at` and `run_id` say which run it was.
    """

    def __init__(self, message: str, checkpoint: Checkpoint) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


class FlowJournal(Journal):
    """The journal of one execution: the results of parts, and the messages of agents, are in its checkpoint."""

    def __init__(self, execution: FlowExecution) -> None:
        super().__init__(execution.once)
        execution.once = self.results
        self._execution = execution
        self._recorded = 0
        self._written = 0

    def record(self, ctx: Context, scope: str, key: str, text: str) -> None:
        """Record what a part of the work returned, for the next checkpoint."""
        super().record(ctx, scope, key, text)
        self._recorded += 1

    async def flush(self, ctx: Context) -> None:
        """Wait until a checkpoint with all results is written, if there is a store. Raises: what the store raised."""
        recorded = self._recorded
        if recorded <= self._written:
            return
        failure = await self._execution.save(ctx)
        if failure is not None:
            raise failure
        if not ctx.signal.aborted:  # an abort ends the write without an error
            self._written = max(self._written, recorded)


@dataclass(frozen=True, slots=True)
class CheckpointSaver:
    """The place of an execution's checkpoint in a store.

    Attributes:
        checkpoints: The store.
        key: The id of the checkpoint.
        resume: What the caller wants to do with a checkpoint that is there already.
        migrate: Turns a checkpoint of an older shape of the flow into one of today's.
    """

    checkpoints: Checkpoints
    key: str
    resume: Resume
    migrate: Callable[[Checkpoint], Checkpoint] | None

    async def open(self, stack: AsyncExitStack, signal: AbortSignal) -> Checkpoint | None:
        """Take the lease and choose the checkpoint to continue from, in this order: see the module docstring.

        Args:
            stack: Gives the lease back when it is closed.
            signal: Ends the wait for the store.

        Returns:
            The checkpoint to continue from, or None to begin with the state.

        Raises:
            CheckpointInUse: Another run, in this process or elsewhere, has this id.
            CheckpointUnfinished: The run would overwrite one that has not completed.
            CheckpointCompleted: A run has completed under this id, and this call does not continue that one.
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
        return choose_checkpoint(self.key, found, self.resume)

    async def save(
        self, position: Position, execution: FlowExecution, *, status: str = "running", reason: str | None = None
    ) -> None:
        """Write the checkpoint of a run that has not completed.

        Raises:
            UsageError: The state cannot be written as JSON.
            Exception: What the store raised.
        """
        execution.revision += 1
        checkpoint = Checkpoint.of(position, execution, status=status, reason=reason)
        await self.checkpoints.save(self.key, checkpoint.to_json())

    async def save_completed(self, position: Position, execution: FlowExecution, *, now: float) -> None:
        """Write that the run has completed, with its result unless that is too long."""
        execution.revision += 1
        checkpoint = replace(Checkpoint.of(position, execution, status="completed"), once={}, completed_at=now)
        text = checkpoint.to_json()
        if len(text) > LONGEST_COMPLETED:
            text = replace(checkpoint, shape={}, place={}, executed=(), errors=()).to_json()
        await self.checkpoints.save(self.key, text)


def choose_checkpoint(key: str, found: Checkpoint | None, resume: Resume) -> Checkpoint | None:
    """Choose the checkpoint that a run continues from.

    Args:
        key: The id, for messages.
        found: The checkpoint in the store.
        resume: What the caller wants.

    Returns:
        The checkpoint to continue from, possibly a completed one; None to begin with the state.

    Raises:
        CheckpointUnfinished: The caller would overwrite an unfinished run, or a newer state of the same one.
        CheckpointCompleted: The caller would overwrite the record that a run has completed.
    """
    if found is None:
        return resume if isinstance(resume, Checkpoint) else None
    if resume == "auto":
        return found
    if resume is None or resume.run_id != found.run_id:
        raise completed_error(key, found) if found.completed else _unfinished_error(key, found)
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


def completed_error(key: str, found: Checkpoint) -> CheckpointCompleted:
    """Return the error for a run that has completed and must not run again."""
    at = "" if found.completed_at is None else f" at {datetime.fromtimestamp(found.completed_at, UTC):%Y-%m-%d %X} UTC"
    result = '; resume="auto" gives its result' if found.place else "; its result was too long to be kept"
    return CheckpointCompleted(
        f"flow {found.flow!r} has completed under checkpoint {key!r}{at} (run {found.run_id}), and was not run again"
        f"{result}. For a new run use another checkpoint_id, or delete it first: `await store.delete({key!r})`",
        found,
    )


def _unfinished_error(key: str, found: Checkpoint) -> CheckpointUnfinished:
    return CheckpointUnfinished(
        f"checkpoint {key!r} has a run of flow {found.flow!r} that has not completed: it is at"
        f" {found.cursor or 'its end'}, last seen {found.status} (run {found.run_id}). Nothing was run, and it was left"
        f' as it is. To go on with it, give resume="auto"; to throw it away, delete it first:'
        f" `await store.delete({key!r})`; for a new run beside it, use another checkpoint_id",
        found,
    )
