"""Notices that an event loop, or the whole process, has stood still: a timer that should fire regularly fires late.

A process is frozen by a debugger, a paused container, a closed laptop or a machine that was not scheduled. Replies that
it reads afterwards may have been sent long before. Knows nothing of what is done about it.
"""

import asyncio
import time
from collections.abc import Callable

__all__ = ["BEAT_SECONDS", "STALL_SECONDS", "StallDetector"]

BEAT_SECONDS = 0.1
STALL_SECONDS = 2 * BEAT_SECONDS


class StallDetector:
    """Watches the event loop in which it is created. Reports no stall before `start()`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = float("inf")  # when the next beat should come
        self._last_stall = float("-inf")
        self._callbacks: list[Callable[[], object]] = []
        self._stopped = False

    def start(self) -> None:
        """Watch from now on, until `stop()`."""
        self._due = time.monotonic() + BEAT_SECONDS
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        if self._stopped:
            return
        late = self.stalled_for > 0.0
        if late:
            self._last_stall = time.monotonic()
        self.start()
        if late:
            for callback in list(self._callbacks):
                callback()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped = True
        self._due = float("inf")

    @property
    def stalled_for(self) -> float:
        """The seconds for which the loop has been blocked; 0.0 if it is not. May be read from any thread."""
        late = time.monotonic() - self._due
        return late if late > STALL_SECONDS else 0.0

    def stalled_since(self, moment: float) -> bool:
        """Whether the loop was blocked at any time after a moment of the monotonic clock, or still is."""
        return self._last_stall >= moment or self.stalled_for > 0.0

    def on_stall(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back in the loop as soon as it moves again after a stall. Returns how to end that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)
