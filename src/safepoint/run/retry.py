"""Owns trying again: how often, how long to wait, for which errors. Knows nothing of what is tried.

It owns its sleep, so an abort wakes it at once; it keeps no state between calls, so one policy serves all of them.
"""

import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from ..abort import AbortSignal, current_clock, current_signal
from ..abort.clock import check_seconds
from ..errors import UsageError, describe, text_of
from .context import Context
from .events import RetryScheduled

__all__ = ["Retry", "as_seconds", "asks_to_wait"]

log = logging.getLogger("safepoint")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """`await Retry(3).run(fn)`: at most `attempts` calls of `fn()`, with growing pauses in between.

    on           the errors worth another attempt: a type, several, or a function of the error
    delay        the first pause in seconds; each next one is `factor` times as long, `max_delay` at most
    jitter       the share of a pause that is random, so that many callers do not come back together
    retry_after  reads a pause from the error, as servers send it: seconds, a timedelta, or the text of a `Retry-After`
                 header. It replaces a shorter one of ours. One that is longer than `max_delay` is not waited for: the
                 error comes out at once, and its text says so. One that cannot be read is ignored
    """

    attempts: int = 3
    delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.2
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception
    retry_after: Callable[[Exception], Any] = lambda error: getattr(error, "retry_after", None)

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
        """Call `fn` until it returns, its error is not worth it, or the attempts are used up: then its last error.

        An abort is never retried, whatever error came with it, and no attempt begins after one. Raises: AbortError.
        """
        if signal is None:
            signal = ctx.signal if ctx is not None else current_signal()
        attempt = 1
        while True:
            signal.raise_if_aborted()
            try:
                return await fn()
            except Exception as error:
                stopped = signal.aborted or (ctx is not None and ctx.stop.raised(error))
                if stopped or attempt >= self.attempts or not self._is_worth_it(error):
                    raise
                asked = self._asked(error)
                if asked is not None and asked > self.max_delay:
                    _say_that_it_is_too_long(error, asked, self.max_delay)
                    raise
                pause = self._pause(attempt, asked)
                if ctx is not None:
                    told = describe(error)
                    ctx.emit(RetryScheduled(**ctx.stamp(), attempt=attempt + 1, delay=pause, error=told))
            await signal.sleep(pause)
            attempt += 1

    def pause(self, attempt: int, error: Exception) -> float:
        """How long to wait after this attempt."""
        return self._pause(attempt, self._asked(error))

    def _pause(self, attempt: int, asked: float | None) -> float:
        pause = min(self.max_delay, self.delay * self.factor ** (attempt - 1))
        pause -= pause * self.jitter * random.random()
        return pause if asked is None else max(pause, asked)

    def _asked(self, error: Exception) -> float | None:
        try:
            return as_seconds(self.retry_after(error))
        except Exception:  # the error itself has to come out, and not what went wrong when its wish was read
            log.warning("the time to wait could not be read from a %s", type(error).__name__, exc_info=True)
            return None

    def _is_worth_it(self, error: Exception) -> bool:
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return self.on(error)


def asks_to_wait(seconds: float) -> str:
    """What the text of an error says of the time it asks to wait."""
    return f"it asks to wait {seconds:g} s"


def _say_that_it_is_too_long(error: Exception, asked: float, limit: float) -> None:
    """Add it to the text of the error, which is all that records, receipts and other machines get of it.

    An error whose type makes up its own text gets a note, which at least tracebacks show.
    """
    before, asks, longer = text_of(error), asks_to_wait(asked), f"longer than max_delay={limit:g}"
    text = f"{before}, {longer}" if before.endswith(asks) else f"{before}; {asks}, {longer}"
    arguments, error.args = error.args, (text,)
    if text_of(error) != text:
        error.args = arguments
        error.add_note(f"{asks}, {longer}")


def as_seconds(asked: object) -> float | None:
    """A time to wait in seconds, not below 0; None if there is none, or it cannot be read.

    Args:
        asked: A number of seconds, a timedelta, the date when to come back, or a text as in a `Retry-After` header: a
            number of seconds or a date.
    """
    match asked:
        case None | bool():
            return None
        case timedelta():
            seconds = asked.total_seconds()
        case datetime():
            seconds = _until(asked)
        case _:
            try:
                seconds = float(asked)  # type: ignore[arg-type]  # what is no number raises
            except (TypeError, ValueError, OverflowError):
                seconds = _until_text(asked)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _until_text(text: object) -> float:
    try:
        return _until(parsedate_to_datetime(text)) if isinstance(text, str) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _until(date: datetime) -> float:
    if date.tzinfo is None:  # dates in headers are of Greenwich
        date = date.replace(tzinfo=UTC)
    return date.timestamp() - current_clock().time()
