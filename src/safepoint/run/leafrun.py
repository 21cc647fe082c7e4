"""Owns the bookkeeping of one leaf: its line in the receipt, its events, its warnings, its fence.

Knows nothing of where the leaf runs.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from ..abort import AbortController, AbortError, AbortReason, AbortSignal, Guard
from ..abort.deadline import Deadline
from ..abort.guard import Ambient, abort_error, asked_from_outside
from ..errors import SafepointError
from .context import Context
from .events import AbortIgnored, LeafAbandoned, LeafEnded, LeafStarted
from .interrupt import AbortInterrupt
from .policy import Policy
from .receipt import Fate, LeafKind
from .watch import Watch
from .where import place, swallower

__all__ = ["LeafRun", "LeafTimeout"]

log = logging.getLogger("safepoint")


class LeafTimeout(SafepointError, TimeoutError):
    """A leaf's own time limit was up. A failure of that leaf; the run may go on."""


class LeafRun:
    """One leaf on its way from the gate to its end."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        kind: LeafKind,
        policy: Policy,
        *,
        threaded: bool = False,
        context: type[Context] | None = None,
    ) -> None:
        self.policy = policy
        self.kind: LeafKind = kind
        self.loop = asyncio.get_running_loop()
        self.locate: Callable[[], str | None] | None = None
        self.outer = ctx
        self.signal = ctx.signal
        self._limit: AbortSignal | None = None
        self._task: asyncio.Task[Any] | None = None
        self._guard: Guard | None = None
        self._started: float | None = None
        own = threaded or kind == "process" or policy.abandon_after is not None
        if own:  # it can be left behind: then it needs a signal, a fence and an end of its own
            self.controller = AbortController(ctx.signal)
            self.signal = self.controller.signal
            self.abandoned: asyncio.Future[None] = self.loop.create_future()
        if policy.timeout is not None:
            self._limit = Deadline(policy.timeout, "timeout", None)
            # In one instant the run's own abort comes first: the order of this list decides.
            self.signal = AbortSignal.any([self.signal, self._limit])
        self._fence = ctx.new_fence() if own else None
        loop = self.loop if threaded else None
        self.ctx = ctx.child(name, signal=self.signal, fence=self._fence, loop=loop, kind=context)
        self.operation = self.ctx.operation
        self.line = ctx.ledger.begin(self.operation, kind)
        self.watch = Watch(self.ctx.alarm)
        self.watch.after_abort(policy.warn_after, self._warn)
        if policy.abandon_after is not None:
            self.watch.after_abort(policy.abandon_after, lambda: self._post(_resolve, self.abandoned))

    def begin(self) -> None:
        """The gate. Raises: AbortError or LeafTimeout when the stop was first; then the body must not begin."""
        if not self.watch.begin():
            self.watch.end()
            self.line.end("not_started")
            raise self._why_ended()
        self._started = self.ctx.clock.monotonic()
        if self.ctx.listened:
            self.ctx.emit(LeafStarted(**self.ctx.stamp(), leaf=self.kind))

    def runs_here(self) -> None:
        """The current task is the one to look at when it is stuck."""
        self._task = asyncio.current_task()

    def protection(self) -> AbstractContextManager[object]:
        """What stands around the body of an awaited leaf, by its policy."""
        self.runs_here()
        how = self.policy.on_abort
        if how == "cooperate" and self._limit is None:
            return Ambient(self.signal)
        self._guard = Guard(self.interrupting())
        if how != "cooperate":
            grace = self.policy.grace
            self.watch.after_abort(grace if how == "interrupt" else 2 * grace, self._interrupt_again)
        if how == "interrupt":
            return self._guard
        stack = ExitStack()
        stack.enter_context(Ambient(self.signal))
        stack.enter_context(self._guard)
        return stack

    def interrupting(self) -> AbortSignal:
        """The signal that interrupts the leaf, as opposed to the one that it sees."""
        match self.policy.on_abort:
            case "interrupt":
                return self.signal
            case "cooperate":
                return self._limit or AbortSignal.never()
            case "finish":
                late = AbortController()
                self.watch.after_abort(self.policy.grace, lambda: late.abort(self._reason()))
                return AbortSignal.any([late.signal, *([self._limit] if self._limit else [])])

    @property
    def timed_out(self) -> bool:
        """True: its own time was up, and nobody had stopped the run."""
        return self._limit is not None and self._limit.aborted and not self.outer.signal.aborted

    def finished(self) -> None:
        """It returned a value, before or in spite of an abort."""
        self._end("finished")

    def failed(self, error: BaseException) -> BaseException:
        """It raised: what the caller is to raise instead."""
        if self.line.fate == "not_started":
            return error
        if self.signal.aborted or self.ctx.stop.raised(error) or _is_outer(error):
            self._end("stopped", note="" if _is_stop(error) else f"it raised {type(error).__name__}: {error}")
        else:
            self._end("finished", note=f"failed: {type(error).__name__}: {error}")
        timed_out = (
            self.signal.aborted and not self.outer.signal.aborted and not isinstance(error, asyncio.CancelledError)
        )
        return self._why_ended() if timed_out or isinstance(error, AbortInterrupt) else error

    def leave(self, ended: "asyncio.Future[Any]") -> BaseException:
        """Go on without it, if it has not ended by itself. What still comes from it is fenced off."""
        if ended.done():
            if not ended.cancelled():
                ended.exception()  # seen: nobody will ask for it any more
            self._end("stopped")
            return self._why_ended()
        where = self.locate() if self.locate else None
        if self._fence is not None:
            self._fence.close()
        ended.add_done_callback(self._late)
        self._end("still_running", where=where)
        self.outer.emit(LeafAbandoned(**self.ctx.stamp(), seconds=self._since_abort(), where=where))
        return self._why_ended()

    def _late(self, ended: "asyncio.Future[Any]") -> None:
        what = "was interrupted" if ended.cancelled() else ("raised" if ended.exception() else "returned")
        log.warning(
            "%s %s after it had been abandoned; that is dropped", self.operation, what, extra=self.ctx.log_fields()
        )
        self.line.end("stopped", note="after it had been abandoned")

    def _end(self, fate: Fate, *, where: str | None = None, note: str = "") -> None:
        self.watch.end()
        self.line.end(fate, where=where, note=note)
        if self.outer.listened and self._started is not None:
            seconds = self.ctx.clock.monotonic() - self._started
            self.outer.emit(LeafEnded(**self.ctx.stamp(), leaf=self.kind, fate=fate, seconds=seconds))

    def _warn(self) -> None:
        if self.ctx.ledger.runs_inside(self.operation):
            return  # it waits for a part that is named itself
        where, note = self._place(), self._swallowed()
        log.warning(
            "%s still runs %g s after the abort (%s). It is at %s.%s Let it honour ctx.signal: see docs/stopping.md",
            self.operation,
            self.policy.warn_after,
            self._reason(),
            where or "an unknown place",
            f" {note}." if note else "",
            extra=self.ctx.log_fields(),
        )
        event = AbortIgnored(**self.ctx.stamp(), seconds=self.policy.warn_after, where=where, note=note)
        self._post(self.outer.emit, event)

    def _place(self) -> str | None:
        if self.locate is not None:
            return self.locate()
        return place(self._task) if self._task is not None else None

    def _swallowed(self) -> str:
        candidate = swallower(self._task) if self._task is not None else None
        return f"It may have swallowed the interruption at {candidate} (a candidate)" if candidate else ""

    def _interrupt_again(self) -> None:
        if self._guard is not None:
            self._post(self._guard.deliver_again)
            self.watch.again(self.policy.grace, self._interrupt_again)

    def _post(self, call: Callable[..., object], *args: object) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: nobody is left to hear it
            pass

    def _why_ended(self) -> BaseException:
        if self.outer.signal.aborted:
            return abort_error(self.outer.signal)
        if self._limit is not None and self._limit.aborted:
            return LeafTimeout(f"{self.operation} took longer than its limit of {self.policy.timeout:g} s")
        return abort_error(self.signal)

    def _reason(self) -> AbortReason:
        return self.signal.reason or AbortReason()

    def _since_abort(self) -> float:
        at = self.signal.aborted_at
        return 0.0 if at is None else self.ctx.clock.monotonic() - at


def _is_outer(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError) and asked_from_outside() > 0


def _is_stop(error: BaseException) -> bool:
    return isinstance(error, AbortInterrupt | asyncio.CancelledError | AbortError)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
