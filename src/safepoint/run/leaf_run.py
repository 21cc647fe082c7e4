"""Owns the bookkeeping of one leaf: its line in the receipt, its events, its warnings, its fence.

Knows nothing of where the leaf runs.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from ..abort import AbortController, AbortError, AbortReason, AbortSignal, Guard
from ..abort.deadline import Deadline
from ..abort.guard import Ambient, abort_error, external_cancel_count
from ..abort.processes import KILL_SECONDS
from ..errors import SafepointError, describe
from .code_location import blocking_place, place, swallower
from .context import Context
from .events import AbortIgnored, LeafAbandoned, LeafEnded, LeafStarted
from .interrupt import AbortInterrupt
from .owned import hook
from .owned.leaf import OwningLeaf
from .policy import LIMIT_GRACE_SECONDS, Policy
from .receipt import Fate, LeafKind
from .start_gate import StartGate

__all__ = ["LeafRun", "LeafTimeout"]

log = logging.getLogger("safepoint")
T = TypeVar("T")

# The least time between two interruptions of one body.
AGAIN_SECONDS = 1.0

# An awaited leaf that ends as soon as it is interrupted needs a few rounds of the loop for it: the interruption is
# posted, thrown, and its end reported. `stop(abandon=0)` waits for no time, but for these rounds, or it would call
# still running what ends in the same millisecond.
ROUNDS = 8


class LeafTimeout(SafepointError, TimeoutError):
    """A leaf's own time limit was up. A failure of that leaf; the run may go on."""


class LeafRun(OwningLeaf):
    """One leaf on its way from the gate to its end."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        kind: LeafKind,
        policy: Policy,
        *,
        threaded: bool = False,
        own_task: bool = False,
        context: type[Context] | None = None,
    ) -> None:
        hook.install()
        super().__init__()
        self.policy = policy
        self.kind: LeafKind = kind
        self.loop = asyncio.get_running_loop()
        self.locate: Callable[[], str | None] | None = None
        self.outer = ctx
        self.signal = ctx.signal
        self._started: float | None = None
        self._blocked_at: str | None = None
        own = threaded or own_task or kind == "process" or policy.abandon_after is not None
        if own:  # it can be left behind: then it needs a signal, a fence and an end of its own
            self.controller = AbortController(ctx.signal)
            self.signal = self.controller.signal
            self.abandoned: asyncio.Future[None] = self.loop.create_future()
        if policy.timeout is not None:
            self._limit = Deadline(policy.timeout, "timeout", None)
            # In one instant the run's own abort comes first: the order of this list decides.
            self.signal = AbortSignal.any([self.signal, self._limit])
        self._revocation = ctx.new_revocation() if own else None
        loop = self.loop if threaded else None
        self.ctx = ctx.child(name, signal=self.signal, revocation=self._revocation, loop=loop, kind=context)
        self.operation = self.ctx.operation
        self.entry = ctx.receipt_builder.begin(self.operation, kind)
        self.gate = StartGate(self.ctx.alarm)
        self.gate.after_abort(policy.warn_after, self._warn)
        if policy.abandon_after is not None:
            self.gate.after_abort(policy.abandon_after, self._abandon)
        if own:
            self.gate.after_abort(self.limit_grace, self._abandon_at_limit)
        # A stop may say the same for the whole run: `stop(abandon=seconds)`.
        self._unwatch = ctx.stop.when_abandoned(self._abandon) if own else None

    def begin(self) -> None:
        """The gate. Raises: AbortError or LeafTimeout when the stop was first; then the body must not begin."""
        if not self.gate.begin():
            self.refuse()
            raise self._why_ended()
        self._started = self.ctx.clock.monotonic()
        if self.ctx.listened:
            self.ctx.emit(LeafStarted(**self.ctx.stamp(), leaf=self.kind))

    def refuse(self) -> None:
        """The body must not begin, for a reason of the caller's own."""
        self._stop_watching()
        self.entry.end("not_started")

    def runs_here(self) -> None:
        """The current task is the one to look at when it is stuck."""
        self.task = asyncio.current_task()

    def protection(self) -> AbstractContextManager[object]:
        """What stands around the body of an awaited leaf, by its policy."""
        self.runs_here()
        how = self.policy.on_abort
        if how == "cooperate" and self._limit is None:
            return Ambient(self.signal)
        self._guard = Guard(self.interrupting())
        if how != "cooperate":
            first = 0.0 if how == "interrupt" else self.policy.grace
            self.gate.after_abort(first + self._pause, self._interrupt_again)
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
                self.gate.after_abort(self.policy.grace, lambda: late.abort(self._reason()))
                return AbortSignal.any([late.signal, *([self._limit] if self._limit else [])])

    @property
    def timed_out(self) -> bool:
        """True: its own time was up, and nobody had stopped the run."""
        return self._limit is not None and self._limit.aborted and not self.outer.signal.aborted

    @property
    def limit_grace(self) -> float:
        """How long it may go on after a time limit, its own or the run's, before the caller goes on without it."""
        if self.kind == "process":
            return self.policy.grace + KILL_SECONDS + LIMIT_GRACE_SECONDS  # its supervisor ends it by then
        if self.policy.on_abort == "finish":
            return self.policy.grace + LIMIT_GRACE_SECONDS
        return min(self.policy.grace, LIMIT_GRACE_SECONDS)

    def finished(self) -> None:
        """It returned a value, before or in spite of an abort."""
        self._end("finished")

    def failed(self, error: BaseException) -> BaseException:
        """It raised: what the caller is to raise instead."""
        if self.entry.fate == "not_started":
            return error
        stop = is_stop(error)
        if self.signal.aborted or self.ctx.stop.raised(error) or _is_outer(error):
            self._end("stopped", note="" if stop else f"it raised {describe(error)}")
        else:
            self._end("finished", note=f"failed: {describe(error)}")
        timed_out = (
            self.signal.aborted and not self.outer.signal.aborted and not isinstance(error, asyncio.CancelledError)
        )
        # Libraries that collect the errors of several tasks give a group of nothing but stops.
        only_stops = isinstance(error, AbortInterrupt) or (stop and isinstance(error, BaseExceptionGroup))
        return self._why_ended() if timed_out or (only_stops and self.signal.aborted) else error

    def leave(self, ended: "asyncio.Future[Any]") -> BaseException:
        """Go on without it, if it has not ended by itself. What still comes from it is fenced off."""
        if ended.done():
            if not ended.cancelled():
                ended.exception()  # seen: nobody will ask for it any more
            self._end("stopped")
            return self._why_ended()
        where = self._place()
        if self._blocked_at is not None:
            where = (
                f"{where or 'an unknown place'} (when its time was up, it blocked the event loop at {self._blocked_at})"
            )
        if self._revocation is not None:
            self._revocation.close()
        ended.add_done_callback(self._late)
        self._end("still_running", where=where)
        self.outer.emit(LeafAbandoned(**self.ctx.stamp(), seconds=self.since_abort(), where=where))
        return self._why_ended()

    def _late(self, ended: "asyncio.Future[Any]") -> None:
        error = None if ended.cancelled() else ended.exception()
        stopped = ended.cancelled() or (error is not None and is_stop(error))
        what = "was interrupted" if stopped else ("raised" if error is not None else "returned")
        log.warning(
            "%s %s after it had been abandoned; that is dropped", self.operation, what, extra=self.ctx.log_fields()
        )
        self.entry.end("stopped" if stopped else "finished", note=f"it {what} after it had been abandoned")

    def _stop_watching(self) -> None:
        self._ended = True
        self.gate.end()
        if self._unwatch is not None:
            self._unwatch()

    def _abandon_soon(self, rounds: int = ROUNDS) -> None:
        if rounds:
            self.loop.call_soon(self._abandon_soon, rounds - 1)
        else:
            _resolve(self.abandoned)

    def _end(self, fate: Fate, *, where: str | None = None, note: str = "") -> None:
        self._stop_watching()
        self.entry.end(fate, where=where, note=note)
        if self.outer.listened and self._started is not None:
            seconds = self.ctx.clock.monotonic() - self._started
            self.outer.emit(LeafEnded(**self.ctx.stamp(), leaf=self.kind, fate=fate, seconds=seconds))

    def _warn(self) -> None:
        if self.ctx.receipt_builder.runs_inside(self.operation):
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

    def _abandon(self) -> None:
        # The loop can only leave a task behind while that task waits. What it did until then is seen only now.
        self._blocked_at = blocking_place(self.task) if self.task is not None else None
        self._post(self._abandon_soon)

    def _abandon_at_limit(self) -> None:
        # A limit is a limit: of the leaf itself, or of the run.
        if self._reason().timed_out:
            self._abandon()

    def _place(self) -> str | None:
        if self.locate is not None:
            return self.locate()
        return place(self.task) if self.task is not None else None

    def _swallowed(self) -> str:
        candidate = swallower(self.task) if self.task is not None else None
        return f"It may have swallowed the interruption at {candidate} (a candidate)" if candidate else ""

    @property
    def _pause(self) -> float:
        """Between two interruptions of one body: a grace of 0 must not hit every await of its clean-up."""
        return max(self.policy.grace, AGAIN_SECONDS)

    def _interrupt_again(self) -> None:
        if self._guard is not None:
            self._post(self._guard.deliver_again)
            self.gate.again(self._pause, self._interrupt_again)

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


def _is_outer(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError) and external_cancel_count() > 0


def is_stop(error: BaseException) -> bool:
    """Whether this is how an interruption looks; also a group of nothing but such errors."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_stop(part) for part in error.exceptions)
    return isinstance(error, AbortInterrupt | asyncio.CancelledError | AbortError)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
