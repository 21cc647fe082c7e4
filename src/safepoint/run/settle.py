"""The boundary of a run: the only place where exceptions become outcomes, and where clean-ups run.

The state of the signal decides, never the type or the name of an exception. This module does not know what the work is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from ..abort import AbortError, shield
from ..abort.guard import external_cancel_count
from ..errors import describe
from ..events import CleanupFailed, RunEnded, RunStarted
from ..outcome import Aborted, Completed, Failed, Outcome, TimedOut
from .cleanup import CleanupCall
from .context import Cleanup, Context, Work
from .owned.executor import install_executor
from .owned.leftovers import name_leftovers
from .owned.programs import ticks_since_boot

__all__ = ["run_cleanup", "settle"]

log = logging.getLogger("safepoint")
I = TypeVar("I")  # noqa: E741  # the input
T = TypeVar("T")
R = TypeVar("R")

# The time limit of one clean-up; after it the run ends without it.
CLEANUP_SECONDS = 5.0


@overload
async def settle(
    ctx: Context,
    work: Work[I, T],
    value: I,
    *,
    on_outcome: Callable[[Outcome[T]], Awaitable[Outcome[T]]] | None = None,
) -> Outcome[T]: ...


@overload
async def settle(
    ctx: Context, work: Work[I, T], value: I, *, on_outcome: Callable[[Outcome[T]], Awaitable[R]]
) -> R: ...


async def settle(
    ctx: Context, work: Work[I, T], value: I, *, on_outcome: Callable[[Outcome[T]], Awaitable[R]] | None = None
) -> Outcome[T] | R:
    """Do the work and return its outcome. Under a signal that is aborted already, the work does not begin.

    An error of the work becomes an outcome. Only what is meant for the task itself passes through: a cancellation from
    outside, KeyboardInterrupt, SystemExit and GeneratorExit.

    Args:
        ctx: The context of the run.
        work: The work.
        value: Its input.
        on_outcome: Called with the outcome before `RunEnded` is emitted, for example to save it. `settle` then returns
            what it returns.
    """
    started, begun = ctx.clock.time(), ticks_since_boot()
    before = external_cancel_count()
    install_executor(asyncio.get_running_loop())
    result: T | None = None
    error: BaseException | None = None
    passing: BaseException | None = None  # meant for the task, so it is raised again at the end
    try:
        ctx.signal.raise_if_aborted()
        if ctx.has_listener:
            ctx.emit(RunStarted(**ctx.stamp()))
        result = await work(ctx, value)
    except BaseException as raised:
        error = raised
        passing = raised if _is_for_the_task(raised, before) else None
    if error is not None and not ctx.signal.aborted and ctx.stop.caused(error):
        ctx.stop.abort_run()  # the work stopped at a safe point, which counts as an abort from here on
    if ctx.cleanups:
        passing = await clean_up(ctx) or passing
    if error is not None or ctx.signal.aborted:
        await name_leftovers(ctx.receipt_builder, begun)
    if passing is not None:
        ctx.emit(RunEnded(**ctx.stamp(), status="aborted"))
        raise passing
    outcome: Outcome[T] = _decide(ctx, result, error, started)
    error = None  # its traceback refers to this frame: without the cycle it goes at once, with all that it refers to
    result_or_outcome = outcome if on_outcome is None else await on_outcome(outcome)
    if ctx.has_listener:
        ctx.emit(RunEnded(**ctx.stamp(), status=outcome.status))
    return result_or_outcome


def _is_for_the_task(error: BaseException, before: int) -> bool:
    if isinstance(error, asyncio.CancelledError):
        return external_cancel_count() > before
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def _decide(ctx: Context, result: T | None, error: BaseException | None, started: float) -> Outcome[T]:
    """Choose the outcome: under an aborted signal anything is a stop; without one, any error is a failure."""
    finished = ctx.clock.time()
    reason = ctx.signal.reason
    if reason is not None:
        partial: object = result if error is None else ctx.take_partial(error)
        ended = TimedOut if reason.timed_out else Aborted
        receipt = ctx.receipt_builder.receipt(ctx.signal, escalated=ctx.stop.escalated)
        return ended(reason, receipt, partial, started_at=started, finished_at=finished)  # type: ignore[arg-type]
    if error is not None:
        receipt = ctx.receipt_builder.receipt(ctx.signal)
        kept: T | None = ctx.take_partial(error)  # type: ignore[assignment]  # what the work kept is of its own type
        return Failed(error, receipt, kept, started_at=started, finished_at=finished)
    remaining = ctx.receipt_builder.remaining(ctx.operation)
    value: T = result  # type: ignore[assignment]  # without an error there is a value
    return Completed(value, receipt=remaining, started_at=started, finished_at=finished)


async def clean_up(ctx: Context) -> BaseException | None:
    """Run the registered clean-ups, last in, first out. One that fails or hangs becomes a warning in the receipt.

    Returns:
        A cancellation from outside, which ends only the clean-up that it hits. The caller raises it at the end.
    """
    passing: BaseException | None = None
    while ctx.cleanups:
        owner, cleanup = ctx.cleanups.pop()
        passing = await run_cleanup(ctx, cleanup, CLEANUP_SECONDS, owner=owner) or passing
    return passing


async def run_cleanup(
    ctx: Context, cleanup: Cleanup, seconds: float, *, owner: Context | None = None
) -> BaseException | None:
    """Run one clean-up, shielded from aborts and limited in time. A thread that does not end by then is left behind.

    Args:
        ctx: The context of the run, which reports a clean-up that fails.
        cleanup: The clean-up.
        seconds: Its time limit.
        owner: The context that registered it, such as that of a tool call, to which its failure belongs.

    Returns:
        What is meant for the task itself, for the caller to raise at the end.
    """
    call = CleanupCall(cleanup)
    owner = owner or ctx
    ends = ctx.clock.monotonic() + seconds
    passing: BaseException | None = None
    while True:
        try:
            with shield(max(0.0, ends - ctx.clock.monotonic())):
                await call.run()
        except (Exception, SystemExit) as error:  # a clean-up ends neither the run nor the program
            _warn(ctx, owner, cleanup, _what_happened(call, error))
        except BaseException as error:
            if call.in_thread and passing is None and isinstance(error, asyncio.CancelledError):
                # Cancelling the caller does not end the thread, and the next clean-up must not run beside this one.
                # So keep waiting until the original time limit. On a second cancellation stop waiting at once.
                passing = error
                continue
            _warn(ctx, owner, cleanup, f"was interrupted by {type(error).__name__}{_leave_thread(call)}")
            return passing or error
        return passing


def _what_happened(call: CleanupCall, error: BaseException) -> str:
    too_long = call.in_thread or isinstance(error, AbortError | TimeoutError)
    return f"took too long{_leave_thread(call)}" if too_long else f"raised {describe(error)}"


def _leave_thread(call: CleanupCall) -> str:
    """Leave the thread of the call behind, if it has one, and return the words that say so."""
    if not call.in_thread:
        return ""
    return f"; its thread was left behind at {call.leave() or 'an unknown place'}"


def _warn(ctx: Context, owner: Context, cleanup: Cleanup, what: str) -> None:
    message = f"the clean-up {getattr(cleanup, '__qualname__', repr(cleanup))} {what}"
    ctx.receipt_builder.warn(message)
    log.warning("%s: %s", owner.operation, message, extra=owner.log_fields())
    # The run emits it: its owner may be a leaf that was left behind, whose own events are dropped.
    ctx.emit(CleanupFailed(**owner.stamp(), message=message))
