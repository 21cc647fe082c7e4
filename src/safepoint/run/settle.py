"""Owns the boundary of a run: the one place where exceptions become outcomes, and where clean-ups run.

Decides by the signal, never by the type or name of an exception. Knows nothing of what the work is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from ..abort import AbortError, shield
from ..abort.guard import external_cancel_count
from ..errors import describe
from .cleanup import CleanupCall
from .context import Cleanup, Context, Work
from .events import CleanupFailed, RunEnded, RunStarted
from .outcome import Aborted, Completed, Failed, Outcome, TimedOut
from .owned.executor import install_executor
from .owned.leftovers import name_leftovers
from .owned.programs import ticks_since_boot

__all__ = ["run_cleanup", "settle"]

log = logging.getLogger("safepoint")
I = TypeVar("I")  # noqa: E741  # the input
T = TypeVar("T")
R = TypeVar("R")

# How long one clean-up may take before the run ends without it.
CLEANUP_SECONDS = 5.0


@overload
async def settle(ctx: Context, work: Work[I, T], value: I) -> Outcome[T]: ...


@overload
async def settle(ctx: Context, work: Work[I, T], value: I, *, then: Callable[[Outcome[T]], Awaitable[R]]) -> R: ...


async def settle(ctx: Context, work: Work[I, T], value: I, *, then: Any = None) -> Any:
    """Do the work and say how it ended. Raises nothing for what the work did.

    Only what is meant for the task itself passes through: an outer cancellation, KeyboardInterrupt, SystemExit.
    Under a signal that is aborted already, the work does not begin.
    `then`: what is still to be done with the outcome, such as saving it, before anyone is told.
    """
    started, begun = ctx.clock.time(), ticks_since_boot()
    before = external_cancel_count()
    install_executor(asyncio.get_running_loop())
    result: T | None = None
    error: BaseException | None = None
    passing: BaseException | None = None  # meant for the task, not for us
    try:
        ctx.signal.raise_if_aborted()
        ctx.emit(RunStarted(**ctx.stamp()))
        result = await work(ctx, value)
    except BaseException as raised:
        error = raised
        passing = raised if _is_for_the_task(raised, before) else None
    if error is not None and ctx.stop.raised(error):
        ctx.stop.commit()  # the work stopped at a safe point: from here on that is an abort
    passing = await clean_up(ctx) or passing
    if error is not None or ctx.signal.aborted:
        await name_leftovers(ctx.receipt_builder, begun)
    if passing is not None:
        ctx.emit(RunEnded(**ctx.stamp(), status="aborted"))
        raise passing
    outcome: Outcome[T] = _decide(ctx, result, error, started)
    told = outcome if then is None else await then(outcome)
    ctx.emit(RunEnded(**ctx.stamp(), status=outcome.status))
    return told


def _is_for_the_task(error: BaseException, before: int) -> bool:
    if isinstance(error, asyncio.CancelledError):
        return external_cancel_count() > before
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def _decide(ctx: Context, result: T | None, error: BaseException | None, started: float) -> Outcome[T]:
    """A stop plus anything is aborted; without a stop, an error is a failure, whatever it is called."""
    finished = ctx.clock.time()
    reason = ctx.signal.reason
    if reason is not None:
        partial = error.partial if isinstance(error, AbortError) else result
        ended = TimedOut if reason.timed_out else Aborted
        receipt = ctx.receipt_builder.receipt(ctx.signal, escalated=ctx.stop.escalated)
        return ended(reason, receipt, partial, started_at=started, finished_at=finished)  # type: ignore[arg-type]
    if error is not None:
        receipt = ctx.receipt_builder.receipt(ctx.signal)
        partial = getattr(error, "partial", None)
        return Failed(error, receipt, partial, started_at=started, finished_at=finished)
    goes_on = ctx.receipt_builder.goes_on(ctx.signal, ctx.operation)
    value: T = result  # type: ignore[assignment]  # no error: a value
    return Completed(value, receipt=goes_on, started_at=started, finished_at=finished)


async def clean_up(ctx: Context) -> BaseException | None:
    """Run the registered clean-ups, last in first out. What fails or hangs becomes a warning, never the outcome.

    An outer cancellation ends only the clean-up it hits; it is given back, for the caller to pass on at the end.
    """
    passing: BaseException | None = None
    while ctx.cleanups:
        passing = await run_cleanup(ctx, ctx.cleanups.pop(), CLEANUP_SECONDS) or passing
    return passing


async def run_cleanup(ctx: Context, cleanup: Cleanup, seconds: float) -> BaseException | None:
    """Run one, shielded and bounded. What does not end in its thread by then is left behind."""
    call = CleanupCall(cleanup)
    ends = ctx.clock.monotonic() + seconds
    passing: BaseException | None = None
    while True:
        try:
            with shield(max(0.0, ends - ctx.clock.monotonic())):
                await call.run()
        except (Exception, SystemExit) as error:  # a clean-up ends neither the run nor the program
            _warn(ctx, cleanup, _what_happened(call, error))
        except BaseException as error:
            if call.in_thread and passing is None and isinstance(error, asyncio.CancelledError):
                # A thread does not end because its caller is told to. The next clean-up must not begin beside it, so
                # the caller waits on, as long as it would have; told twice, it goes at once.
                passing = error
                continue
            _warn(ctx, cleanup, f"was interrupted by {type(error).__name__}{_left(call)}")
            return passing or error
        return passing


def _what_happened(call: CleanupCall, error: BaseException) -> str:
    too_long = call.in_thread or isinstance(error, AbortError | TimeoutError)
    return f"took too long{_left(call)}" if too_long else f"raised {describe(error)}"


def _left(call: CleanupCall) -> str:
    if not call.in_thread:
        return ""
    return f"; its thread was left behind at {call.leave() or 'an unknown place'}"


def _warn(ctx: Context, cleanup: Cleanup, told: str) -> None:
    message = f"the clean-up {getattr(cleanup, '__qualname__', repr(cleanup))} {told}"
    ctx.receipt_builder.warn(message)
    log.warning("%s: %s", ctx.operation, message, extra=ctx.log_fields())
    ctx.emit(CleanupFailed(**ctx.stamp(), message=message))
