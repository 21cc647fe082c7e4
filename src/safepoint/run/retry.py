"""Retries: how often, after which pauses, for which errors.

A policy sleeps by itself, so an abort ends the pause at once. It keeps no state between calls, so one policy serves all
of them.
"""

import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeVar

from ..abort import AbortSignal, current_clock, current_signal
from ..abort.clock import check_seconds
from ..errors import UsageError, describe, text_of
from ..events import RetryScheduled
from .context import Context

__all__ = ["Retry", "as_seconds", "asks_to_wait"]

log = logging.getLogger("safepoint")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: `await Retry(3).run(fn)` calls `fn()` at most three times, with growing pauses in between.

    Attributes:
        attempts: The greatest number of calls.
        delay: The first pause in seconds.
        factor: Each further pause is this many times as long as the one before.
        max_delay: The longest pause in seconds.
        jitter: The share of a pause that is random, so that many callers do not retry at the same moment.
        on: The errors worth another attempt: a type, several types, or a function of the error.
        retry_after: A function that reads a pause from the error, as servers send it: seconds, a timedelta, or the text
            of a `Retry-After` header. It replaces a shorter pause of the policy. If it is longer than `max_delay`, the
            error is raised at once, and its text says why. A pause that cannot be read is ignored.
    """

    attempts: int = 3
    delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.2
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception
    retry_after: Callable[[Exception], object] = lambda error: getattr(error, "retry_after", None)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"attempts must be 1 or more, not {self.attempts!r}")
        for name in ("delay", "factor", "max_delay", "jitter"):
            check_seconds(name, getattr(self, name))
        if self.jitter > 1:
            raise UsageError(f"jitter must be between 0 and 1, not {self.jitter!r}")

    async def run(
        self, fn: Callable[[], Awaitable[T]], *, signal: AbortSignal | None = None, ctx: Context | None = None
    ) -> T:
        """Call `fn` until it returns.

        Args:
            fn: The function to call.
            signal: The signal that ends the retries; by default that of `ctx`, or the ambient signal.
            ctx: If given, pauses are reported as `RetryScheduled` events, and safe points are honoured.

        Raises:
            AbortError: The signal was aborted. An abort is never retried, whatever error came with it.
            Exception: The error of `fn`, if it is not worth another attempt or all attempts are used up.
        """
        if signal is None:
            signal = ctx.signal if ctx is not None else current_signal()
        attempt = 1
        while True:
            signal.raise_if_aborted()
            try:
                return await fn()
            except Exception as error:
                stopped = signal.aborted or (ctx is not None and ctx.stop.caused(error))
                if stopped or attempt >= self.attempts or not self._is_worth_it(error):
                    raise
                requested = self._requested_pause(error)
                if requested is not None and requested > self.max_delay:
                    _note_pause_too_long(error, requested, self.max_delay)
                    raise
                pause = self._pause(attempt, requested)
                if ctx is not None:
                    text = describe(error)
                    ctx.emit(RetryScheduled(**ctx.stamp(), attempt=attempt + 1, delay=pause, error=text))
            await signal.sleep(pause)
            attempt += 1

    def pause(self, attempt: int, error: Exception) -> float:
        """Return how many seconds to wait after this attempt."""
        return self._pause(attempt, self._requested_pause(error))

    def _pause(self, attempt: int, requested: float | None) -> float:
        pause = min(self.max_delay, self.delay * self.factor ** (attempt - 1))
        pause -= pause * self.jitter * random.random()
        return pause if requested is None else max(pause, requested)

    def _requested_pause(self, error: Exception) -> float | None:
        try:
            return as_seconds(self.retry_after(error))
        except Exception:  # a fault of `retry_after` must not replace the error itself
            log.warning("the time to wait could not be read from a %s", type(error).__name__, exc_info=True)
            return None

    def _is_worth_it(self, error: Exception) -> bool:
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return self.on(error)


def asks_to_wait(seconds: float) -> str:
    """The words in the text of an error for the time that the server asks to wait."""
    return f"it asks to wait {seconds:g} s"


def _note_pause_too_long(error: Exception, requested: float, limit: float) -> None:
    """Add to the text of the error why it is not retried. Records, receipts and other machines get only this text.

    An error that composes its text by itself gets a note instead, which at least tracebacks show.
    """
    before, asks, longer = text_of(error), asks_to_wait(requested), f"longer than max_delay={limit:g}"
    text = f"{before}, {longer}" if before.endswith(asks) else f"{before}; {asks}, {longer}"
    arguments, error.args = error.args, (text,)
    if text_of(error) != text:
        error.args = arguments
        error.add_note(f"{asks}, {longer}")


def as_seconds(requested: object) -> float | None:
    """Convert a requested pause into seconds, 0 or more. None if there is none, or it cannot be read.

    Args:
        requested: A number of seconds, a timedelta, the date of the next attempt, or a text as in a `Retry-After`
            header: a number of seconds or a date.
    """
    match requested:
        case None | bool():
            return None
        case timedelta():
            seconds = requested.total_seconds()
        case datetime():
            seconds = _until(requested)
        case _:
            try:
                seconds = float(requested)  # type: ignore[arg-type]  # anything but a number raises
            except (TypeError, ValueError, OverflowError):
                seconds = _until_text(requested)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _until_text(text: object) -> float:
    try:
        return _until(parsedate_to_datetime(text)) if isinstance(text, str) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _until(date: datetime) -> float:
    if date.tzinfo is None:  # dates in headers are in GMT
        date = date.replace(tzinfo=UTC)
    return date.timestamp() - current_clock().time()
