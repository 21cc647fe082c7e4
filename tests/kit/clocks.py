"""Clocks that bring about moments which no amount of waiting would hit."""

from collections.abc import Callable

from safepoint.abort import Timer
from safepoint.testing import FakeClock


class TickingClock(FakeClock):
    """A fake clock on which every look takes 0.6 seconds: a deadline passes between two looks at it."""

    def monotonic(self) -> float:
        self.advance(0.6)
        return super().monotonic()


class HookedClock(FakeClock):
    """A fake clock that calls a hook just before it sets a timer: the moment in which an alarm is starting."""

    def __init__(self, hook: Callable[[], object]) -> None:
        super().__init__()
        self._hook = hook

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        self._hook()
        return super().call_at(when, callback)
