"""Owns trying again: how often, how long to wait, for which errors. Knows nothing of what is tried.

It owns its sleep, so an abort wakes it at once; it keeps no state between calls, so one policy serves all of them.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..abort import AbortSignal, current_signal
from ..abort.clock import check_seconds
from ..errors import UsageError
from .context import Context
from .events import RetryScheduled

__all__ = ["Retry"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """`await Retry(3).run(fn)`: at most `attempts` calls of `fn()`, with growing pauses in between.

    on           the errors worth another attempt: a type, several, or a function of the error
    delay        the first pause in seconds; each next one is `factor` times as long, `max_delay` at most
    jitter       the share of a pause that is random, so that many callers do not come back together
    retry_after  reads a pause from the error, as servers send it; it replaces a shorter one of ours
    """

    attempts: int = 3
    delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.2
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] = Exception
    retry_after: Callable[[Exception], float | None] = lambda error: getattr(error, "retry_after", None)

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
                pause = self.pause(attempt, error)
                if ctx is not None:
                    told = f"{type(error).__name__}: {error}"
                    ctx.emit(RetryScheduled(**ctx.stamp(), attempt=attempt + 1, delay=pause, error=told))
            await signal.sleep(pause)
            attempt += 1

    def pause(self, attempt: int, error: Exception) -> float:
        """How long to wait after this attempt."""
        pause = min(self.max_delay, self.delay * self.factor ** (attempt - 1))
        pause -= pause * self.jitter * random.random()
        asked = self.retry_after(error)
        return pause if asked is None else max(pause, asked)

    def _is_worth_it(self, error: Exception) -> bool:
        if isinstance(self.on, type | tuple):
            return isinstance(error, self.on)
        return self.on(error)
