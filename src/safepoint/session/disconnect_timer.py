"""Owns who is there: when for so long nobody was, somebody is told. Knows nothing of what turns do."""

from collections.abc import Callable

from ..abort import Clock
from ..abort.clock import Timer, check_seconds

__all__ = ["DisconnectTimer"]


class DisconnectTimer:
    """The readers of one session. `grace` None: a disconnect means nothing."""

    def __init__(self, clock: Clock, grace: float | None, gone: Callable[[], object]) -> None:
        self._clock = clock
        self._grace = None if grace is None else check_seconds("on_disconnect", grace)
        self._gone = gone
        self._timer: Timer | None = None
        self._over = False
        self.readers = 0

    def came(self) -> None:
        """One more reader."""
        self.readers += 1
        self._disarm()

    def left(self) -> None:
        """One reader less."""
        self.readers -= 1
        self._count()

    def turn_begins(self) -> None:
        """If nobody is there to see it, the time counts: from now, or since the last reader has left."""
        self._count()

    def _count(self) -> None:
        if self.readers or self._grace is None or self._over or (self._timer is not None and self._timer.armed):
            return
        self._timer = self._clock.call_at(self._clock.monotonic() + self._grace, self._gone)

    def end(self) -> None:
        """Wait for nothing any more."""
        self._over = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.disarm()
            self._timer = None
