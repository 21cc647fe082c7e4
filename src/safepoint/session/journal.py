"""Owns what the turns of a session have on record: the wait until the store has it, before an effect may happen."""

from collections.abc import Awaitable, Callable, Mapping

from ..abort import AbortError, Clock
from ..run.context import Context
from ..run.events import RecordDelayed
from ..run.journal import Journal
from .log import SessionLog
from .loop_tasks import LoopTasks

__all__ = ["BeforeEffect", "SessionJournal"]

# Whoever waits longer than this for the store is told so by an event.
SLOW_SECONDS = 1.0
BeforeEffect = Callable[[], Awaitable[None]]


class SessionJournal(Journal):
    """The record of a live session.

    Attributes:
        before_effect: Awaited when something is on record and before its effect may happen. A worker looks here
            whether a stop was recorded elsewhere, and applies it: then the signal says so when this returns.
    """

    def __init__(self, log: SessionLog, loop_tasks: LoopTasks, clock: Clock, results: Mapping[str, str]) -> None:
        super().__init__(results)
        self._log = log
        self._loop_tasks = loop_tasks
        self._clock = clock
        self.before_effect: BeforeEffect | None = None

    async def flush(self, ctx: Context) -> None:
        """Wait until the store has everything that was emitted so far. Raises: what the store raised."""
        try:
            await ctx.signal.run(self._written(ctx))
        except AbortError:
            if not ctx.signal.aborted:
                raise

    async def _written(self, ctx: Context) -> None:
        seq = self._log.last
        self._log.make_durable(seq)
        due = self._clock.monotonic() + SLOW_SECONDS
        timer = self._clock.call_at(due, lambda: self._loop_tasks.post(self._tell_delayed, ctx, seq))
        try:
            await self._log.flushed(seq)
        finally:
            timer.disarm()
        if self.before_effect is not None:
            await self.before_effect()

    def _tell_delayed(self, ctx: Context, seq: int) -> None:
        if self._log.saved < seq and not ctx.signal.aborted:
            ctx.emit(RecordDelayed(**ctx.stamp(), seconds=SLOW_SECONDS))
