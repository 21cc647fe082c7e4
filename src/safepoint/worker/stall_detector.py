"""Owns how it is noticed that an event loop, or the whole process, has stood still: its beat comes late.

A process is frozen by a debugger, a paused container, a closed lid, or a machine that has lost its turn. What was asked
before may have been answered long ago. Knows nothing of what is done about it.
"""

import asyncio
import time
from collections.abc import Callable

__all__ = ["BEAT_SECONDS", "LATE_SECONDS", "StallDetector"]

BEAT_SECONDS = 0.1
LATE_SECONDS = 2 * BEAT_SECONDS


class StallDetector:
    """The beat of the event loop in which it is made. Before `start()` it is never late."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = float("inf")  # when the next beat should come
        self._late_at = float("-inf")
        self._listeners: list[Callable[[], object]] = []
        self._stopped = False

    def start(self) -> None:
        """Beat from now on, until `stop()`."""
        self._due = time.monotonic() + BEAT_SECONDS
        self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        if self._stopped:
            return
        late = self.standstill > 0.0
        if late:
            self._late_at = time.monotonic()
        self.start()
        if late:
            for call in list(self._listeners):
                call()

    def stop(self) -> None:
        """Beat no more."""
        self._stopped = True
        self._due = float("inf")

    @property
    def standstill(self) -> float:
        """For so many seconds the loop has not moved; 0.0 while it does. Any thread."""
        late = time.monotonic() - self._due
        return late if late > LATE_SECONDS else 0.0

    def was_late_since(self, moment: float) -> bool:
        """Whether the loop has stood still at any time after this moment, of the monotonic clock."""
        return self._late_at >= moment or self.standstill > 0.0

    def on_late(self, call: Callable[[], object]) -> Callable[[], None]:
        """Call this in the loop whenever it has stood still, as soon as it moves again. Returns how to end that."""
        self._listeners.append(call)
        return lambda: self._listeners.remove(call)
