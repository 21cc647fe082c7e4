"""Owns the time since the last reader of a session left, after which a function is called. Knows nothing of turns."""

from collections.abc import Callable

from ..abort import Clock
from ..abort.clock import Timer, check_seconds

__all__ = ["DisconnectTimer"]


class DisconnectTimer:
    """Counts the readers of one session.

    Args:
        clock: The clock of the timer.
        grace: Seconds without a reader after which `on_timeout` is called. `None` means never.
        on_timeout: Called in the thread of the clock.

    Attributes:
        readers: How many readers there are now.
    """

    def __init__(self, clock: Clock, grace: float | None, on_timeout: Callable[[], object]) -> None:
        self._clock = clock
        self._grace = None if grace is None else check_seconds("on_disconnect", grace)
        self._on_timeout = on_timeout
        self._timer: Timer | None = None
        self._ended = False
        self.readers = 0

    def reader_joined(self) -> None:
        """Count one more reader, and stop the timer."""
        self.readers += 1
        self._disarm()

    def reader_left(self) -> None:
        """Count one reader less. The timer starts with the last one."""
        self.readers -= 1
        self._arm()

    def turn_started(self) -> None:
        """Start the timer if there is no reader. One that runs since the last reader left keeps running."""
        self._arm()

    def _arm(self) -> None:
        if self.readers or self._grace is None or self._ended or (self._timer is not None and self._timer.armed):
            return
        self._timer = self._clock.call_at(self._clock.monotonic() + self._grace, self._on_timeout)

    def end(self) -> None:
        """Stop the timer for good."""
        self._ended = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.disarm()
            self._timer = None
