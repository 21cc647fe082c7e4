"""The record of one leaf: its entry in the receipt, its events, its warnings, and when it is left behind.

`LeafRun` says where the body runs; `launch` in `leaf.py` runs it there.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from ..abort import AbortController, AbortError, AbortReason, AbortSignal, Guard
from ..abort.deadline import Deadline
from ..abort.event_loop import post, resolve
from ..abort.guard import Ambient, abort_error, external_cancel_count
from ..errors import SafepointError, describe
from ..events import AbortIgnored, LeafAbandoned, LeafEnded, LeafStarted
from ..process.child import KILL_SECONDS
from ..receipt import Fate, LeafKind
from .context import ChildContext, Context, Revocation
from .interrupt import AbortInterrupt
from .interrupt.code_location import blocking_place, place, swallower
from .owned import hook
from .owned.leaf import OwningLeaf
from .policy import LIMIT_GRACE_SECONDS, Policy
from .start_gate import DueCallback, StartGate

__all__ = ["LeafRun", "LeafTimeout"]

log = logging.getLogger("safepoint")
T = TypeVar("T")
C = TypeVar("C", bound=Context)

RunsIn: TypeAlias = Literal["caller", "task", "thread", "process"]

# The least time between two interruptions of one body.
MIN_INTERRUPT_INTERVAL_SECONDS = 1.0

# Where a body is awaited under a guard.
GUARDED = ("caller", "task")

# What a guard, or a cancellation of the caller, raises in a body. A tuple, because `isinstance` is faster with one.
INTERRUPTIONS = (AbortError, asyncio.CancelledError)

# How many rounds of the event loop `stop(abandon=0)` waits for. An awaited leaf that ends as soon as it is interrupted
# still needs a few of them: the interruption is posted, thrown into the task, and the end of the task is reported.
# Without these rounds, a leaf that ends within the same millisecond would be listed as still running.
ABANDON_ROUNDS = 8


class LeafTimeout(SafepointError, TimeoutError):
    """The time limit of one leaf was reached. Only that leaf has failed; the run may go on."""


class LeafRun(OwningLeaf, Generic[C]):
    """One leaf, from the start gate to its end.

    **Who decides how a leaf ended.** The body, the caller, the leaf's time limit and the stop of the run may all end a
    leaf at the same moment. Everything is decided in the thread of the event loop, in this order:

    1. The start gate (`begin`). If an abort claimed it first, the body never runs: the fate is `not_started`, and
       nothing that follows changes it.
    2. The body itself. A value that it returned counts as `finished` even after an abort (`finished`): completed work
       is never reported as stopped. An error (`failed`) is judged by the state of the signal, never by the type of
       the error: under an aborted signal any error is `stopped`, without an abort it is a failure of a leaf that
       `finished`. Otherwise a library that wraps `CancelledError`, or a tool that raises its own, would change the
       outcome of the run.
    3. The caller, which stops waiting (`go_on_without`). It looks at the body first, so a body that has just ended
       still counts. If it goes on without the body, the revocation is closed *before* the end is published: from then
       on the late body can neither emit events nor start leaves. The fate is `still_running`, and the late end
       (`_on_late_end`) may turn it into `stopped` or `finished`, in the receipt only.

    An entry of the receipt accepts only one end (see `EntryBuilder.end`), so the first decision is final.

    Args:
        ctx: The context of the run.
        name: The name of the operation.
        kind: How it runs, for the receipt.
        policy: How it is stopped, and its own limits.
        runs_in: Where the body runs: in the caller's task, or where it can be left behind. By default the kind says it;
            an awaited body has a task of its own if the policy abandons it.
        context: Makes the context of the body from the arguments of a `ChildContext`.
    """

    ctx: C
    locate: Callable[[], str | None] | None = None  # where the body is, if that is known better than from its task
    _started: float | None = None
    _blocked_at: str | None = None
    _revocation: Revocation | None = None
    _remove_callback: Callable[[], None] | None = None

    @overload
    def __init__(
        self: "LeafRun[Context]",
        ctx: Context,
        name: str,
        kind: LeafKind,
        policy: Policy,
        *,
        runs_in: RunsIn | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        ctx: Context,
        name: str,
        kind: LeafKind,
        policy: Policy,
        *,
        runs_in: RunsIn | None = ...,
        context: Callable[..., C],
    ) -> None: ...

    def __init__(
        self,
        ctx: Context,
        name: str,
        kind: LeafKind,
        policy: Policy,
        *,
        runs_in: RunsIn | None = None,
        context: Callable[..., Any] = ChildContext,
    ) -> None:
        hook.install()
        self.policy = policy
        self.kind: LeafKind = kind
        self.loop = asyncio.get_running_loop()
        self.outer = ctx
        self.signal = ctx.signal
        self.runs_in: RunsIn = runs_in or _place_of(kind, policy)
        detachable = self.runs_in != "caller"
        if detachable:  # it can be left behind, so it needs a signal, a revocation and an end of its own
            self.controller = AbortController(ctx.signal)
            self.signal = self.controller.signal
            self.abandoned: asyncio.Future[None] = self.loop.create_future()
            self._revocation = ctx.new_revocation()
        if policy.timeout is not None:
            self._limit = Deadline(policy.timeout, "timeout", None)
            # The order decides which reason counts if both are aborted: the run's own comes first.
            self.signal = AbortSignal.any([self.signal, self._limit])
        self.ctx = context(
            ctx,
            name,
            signal=self.signal,
            revocation=self._revocation,
            loop=self.loop if self.runs_in == "thread" else None,
        )
        self.operation = "/".join(self.ctx.path)
        self.entry = ctx.receipt_builder.begin(self.operation, kind)
        due: list[DueCallback] = [(policy.warn_after, self._warn)]
        if policy.on_abort != "cooperate" and kind != "stream" and self.runs_in in GUARDED:
            first = policy.grace if policy.on_abort == "finish" else 0.0
            due.append((first + self._interrupt_interval, self._interrupt_again))
        if policy.abandon_after is not None:
            due.append((policy.abandon_after, self._abandon))
        if detachable:
            due.append((self.limit_grace, self._abandon_at_limit))
            # A stop may set the same for the whole run: `stop(abandon=seconds)`.
            self._remove_callback = ctx.stop.when_abandoned(self._abandon)
        self.gate = StartGate(self.ctx.abort_timers, due)

    def begin(self) -> None:
        """Pass the start gate.

        Raises:
            AbortError: The stop was first, so the body must not begin.
            LeafTimeout: The leaf's own time limit was first.
        """
        if not self.gate.begin():
            self.skip()
            raise self._end_error()
        if self.ctx.has_listener:
            self._started = self.ctx.clock.monotonic()
            self.ctx.emit(LeafStarted(**self.ctx.stamp(), leaf=self.kind))

    def skip(self) -> None:
        """Record that the body does not begin. Also called by callers that have a reason of their own."""
        self._end("not_started")

    def runs_in_current_task(self) -> None:
        """Report the current task as the place where the leaf is stuck, if it is."""
        self.task = asyncio.current_task(self.loop)

    def guard_body(self) -> AbstractContextManager[object]:
        """Return the context manager for the body of an awaited leaf, as its policy says."""
        self.task = asyncio.current_task(self.loop)
        mode = self.policy.on_abort
        if mode == "cooperate" and self._limit is None:
            return Ambient(self.signal)
        self._guard = Guard(self.signal if mode == "interrupt" else self.interrupt_signal())
        if mode == "interrupt":
            return self._guard
        stack = ExitStack()
        stack.enter_context(Ambient(self.signal))
        stack.enter_context(self._guard)
        return stack

    def interrupt_signal(self) -> AbortSignal:
        """Return the signal that interrupts the body. The body itself sees `signal`, which may be aborted earlier."""
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
        """Whether the leaf's own time limit ended it, and not a stop of the run."""
        return self._limit is not None and self._limit.aborted and not self.outer.signal.aborted

    @property
    def limit_grace(self) -> float:
        """Seconds from a time limit, the leaf's or the run's, until the caller goes on without the body."""
        if self.kind == "process":
            return self.policy.grace + KILL_SECONDS + LIMIT_GRACE_SECONDS  # its supervisor ends it by then
        if self.policy.on_abort == "finish":
            return self.policy.grace + LIMIT_GRACE_SECONDS
        return min(self.policy.grace, LIMIT_GRACE_SECONDS)

    def finished(self) -> None:
        """Record that the body returned a value, whether or not there was an abort."""
        self._end("finished")

    def failed(self, error: BaseException) -> BaseException:
        """Record that the body raised `error`, and return the error that the caller is to raise instead."""
        if self.entry.fate == "not_started":
            return error
        if self.outer.signal.aborted and isinstance(error, INTERRUPTIONS):  # the usual case, a thousand times per stop
            self._end("stopped")
            return error
        stop = is_stop(error)
        if self.signal.aborted or self.ctx.stop.caused(error) or _is_outer(error):
            self._end("stopped", note="" if stop else f"it raised {describe(error)}")
        else:
            self._end("finished", note=f"failed: {describe(error)}")
        timed_out = (
            self.signal.aborted and not self.outer.signal.aborted and not isinstance(error, asyncio.CancelledError)
        )
        # Libraries that collect the errors of several tasks raise a group that contains only stops.
        only_stops = isinstance(error, AbortInterrupt) or (stop and isinstance(error, BaseExceptionGroup))
        if not timed_out and not (only_stops and self.signal.aborted):
            return error
        instead = self._end_error()
        instead.__cause__ = error
        return instead

    def go_on_without(self, body: "asyncio.Future[T]") -> BaseException:
        """Stop waiting for the body, and return the error that the caller is to raise.

        If the body has not ended, it is left behind: its events and its late result are dropped.
        """
        if body.done():
            if not body.cancelled():
                body.exception()  # mark it as retrieved, or asyncio logs it
            self._end("stopped")
            return self._end_error()
        where = self._location()
        if self._blocked_at is not None:
            where = (
                f"{where or 'an unknown place'} (when its time was up, it blocked the event loop at {self._blocked_at})"
            )
        if self._revocation is not None:
            self._revocation.close()
        body.add_done_callback(self._on_late_end)
        self._end("still_running", where=where)
        self.outer.emit(LeafAbandoned(**self.ctx.stamp(), seconds=self.since_abort(), where=where))
        return self._end_error()

    def _on_late_end(self, body: "asyncio.Future[T]") -> None:
        error = None if body.cancelled() else body.exception()
        stopped = body.cancelled() or (error is not None and is_stop(error))
        what = "was interrupted" if stopped else ("raised" if error is not None else "returned")
        log.warning(
            "%s %s after it had been abandoned; that is dropped", self.operation, what, extra=self.ctx.log_fields()
        )
        self.entry.end("stopped" if stopped else "finished", note=f"it {what} after it had been abandoned")

    def _abandon_soon(self, rounds: int = ABANDON_ROUNDS) -> None:
        if rounds:
            self.loop.call_soon(self._abandon_soon, rounds - 1)
        else:
            resolve(self.abandoned, None)

    def _end(self, fate: Fate, *, where: str | None = None, note: str = "") -> None:
        self._ended = True
        self.gate.end()
        if self._remove_callback is not None:
            self._remove_callback()
        self.entry.end(fate, where, note)
        if self._started is not None:
            seconds = self.ctx.clock.monotonic() - self._started
            self.outer.emit(LeafEnded(**self.ctx.stamp(), leaf=self.kind, fate=fate, seconds=seconds))

    def _warn(self) -> None:
        if self.ctx.receipt_builder.has_running_part(self.operation):
            return  # it waits for a part of its own, which has its own warning
        where, note = self._location(), self._swallowed_note()
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
        self._post(functools.partial(self.outer.emit, event))

    def _abandon(self) -> None:
        # The loop can leave a task behind only while that task waits: this is the last moment to see where it blocked.
        self._blocked_at = blocking_place(self.task) if self.task is not None else None
        self._post(self._abandon_soon)

    def _abandon_at_limit(self) -> None:
        # Only a time limit, the leaf's or the run's, is a hard ceiling. After any other abort the run waits.
        if self._reason().timed_out:
            self._abandon()

    def _location(self) -> str | None:
        if self.locate is not None:
            return self.locate()
        return place(self.task) if self.task is not None else None

    def _swallowed_note(self) -> str:
        candidate = swallower(self.task) if self.task is not None else None
        return f"It may have swallowed the interruption at {candidate} (a candidate)" if candidate else ""

    @property
    def _interrupt_interval(self) -> float:
        """Seconds between two interruptions of one body: a grace of 0 must not hit every await of its clean-up."""
        grace = self.policy.grace
        return grace if grace > MIN_INTERRUPT_INTERVAL_SECONDS else MIN_INTERRUPT_INTERVAL_SECONDS

    def _interrupt_again(self) -> None:
        if self._guard is not None:
            self._post(self._guard.deliver_again)
            self.gate.repeat_after(self._interrupt_interval, self._interrupt_again)

    def _post(self, call: Callable[[], object]) -> None:
        post(self.loop, call)

    def _end_error(self) -> BaseException:
        """The error that tells the caller why the body ended or did not begin."""
        if self.outer.signal.aborted:
            return abort_error(self.outer.signal)
        if self._limit is not None and self._limit.aborted:
            return LeafTimeout(f"{self.operation} took longer than its limit of {self.policy.timeout:g} s")
        return abort_error(self.signal)

    def _reason(self) -> AbortReason:
        return self.signal.reason or AbortReason()


def _place_of(kind: LeafKind, policy: Policy) -> RunsIn:
    """Where the body of a leaf runs unless its caller says otherwise."""
    if kind == "thread" or kind == "process":
        return kind
    return "caller" if policy.abandon_after is None else "task"


def _is_outer(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError) and external_cancel_count() > 0


def is_stop(error: BaseException) -> bool:
    """Whether the error is what an interruption raises, or a group that contains only such errors."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_stop(part) for part in error.exceptions)
    return isinstance(error, (*INTERRUPTIONS, AbortInterrupt))
