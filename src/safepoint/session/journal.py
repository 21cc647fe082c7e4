"""Owns the wait for the store before a tool call may have an effect: first on record, then the effect."""

from collections.abc import Awaitable, Callable, Mapping

from ..abort import AbortError, Clock
from ..events import RecordDelayed
from ..run.context import Context
from ..run.journal import Journal
from .log import SessionLog
from .loop_tasks import LoopTasks

__all__ = ["BeforeEffect", "SessionJournal"]

# A wait for the store that is longer than this is reported by an event.
SLOW_SECONDS = 1.0
BeforeEffect = Callable[[], Awaitable[None]]


class SessionJournal(Journal):
    """The journal of a live session.

    Attributes:
        before_effect: Awaited when a call is on record and before its body begins. A worker reads here whether a stop
            was recorded elsewhere, and applies it; the caller then looks at its signal.
    """

    def __init__(self, log: SessionLog, loop_tasks: LoopTasks, clock: Clock, results: Mapping[str, str]) -> None:
        super().__init__(results)
        self._log = log
        self._loop_tasks = loop_tasks
        self._clock = clock
        self.before_effect: BeforeEffect | None = None

    async def flush(self, ctx: Context) -> None:
        """Wait until the store has everything that was emitted so far, or the signal is aborted.

        Raises:
            Exception: What the store raised.
        """
        try:
            await ctx.signal.run(self._written(ctx))
        except AbortError:
            if not ctx.signal.aborted:
                raise

    async def _written(self, ctx: Context) -> None:
        seq = self._log.last_seq
        self._log.make_durable(seq)
        due = self._clock.monotonic() + SLOW_SECONDS
        timer = self._clock.call_at(due, lambda: self._loop_tasks.call(self._report_delay, ctx, seq))
        try:
            await self._log.flushed(seq)
        finally:
            timer.disarm()
        if self.before_effect is not None:
            await self.before_effect()

    def _report_delay(self, ctx: Context, seq: int) -> None:
        if self._log.written_seq < seq and not ctx.signal.aborted:
            ctx.emit(RecordDelayed(**ctx.stamp(), seconds=SLOW_SECONDS))
