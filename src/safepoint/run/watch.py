"""Owns the time from an abort to the end of one leaf: the gate before the body, and what is due if it does not end.

Knows nothing of what the leaf is; says nothing by itself.
"""

from collections.abc import Callable
from typing import Literal

from ..abort import AbortSignal, Clock, Timer
from ..abort.listeners import Registration

__all__ = ["Watch"]


class Watch:
    """`begin()` decides whether the body may start; `after_abort()` says what is due when it goes on too long.

    **The gate.** `abort()` runs its listeners before it returns. So the first of two to claim the watch decides: the
    body, then it had begun before anybody was told "stopped"; or the abort, then the body never begins.
    """

    __slots__ = ("_aborted", "_claim", "_clock", "_due", "_ended", "_registration", "_signal", "_timers")

    def __init__(self, signal: AbortSignal, clock: Clock) -> None:
        self._signal = signal
        self._clock = clock
        self._claim: dict[None, Literal["begun", "aborted"]] = {}
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._timers: list[Timer] = []
        self._registration: Registration | None = None
        self._aborted = False
        self._ended = False

    def after_abort(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back, in the clock's timer thread, if the leaf still runs `seconds` after the abort."""
        self._due.append((seconds, callback))
        if self._aborted:
            self._arm()

    def begin(self) -> bool:
        """True: the body begins now. False: the abort was first, and it must not begin."""
        self._registration = self._signal.add_listener(self._heard)
        return not self._signal.aborted and self._claim.setdefault(None, "begun") == "begun"

    def again(self, seconds: float, callback: Callable[[], object]) -> None:
        """From inside a callback: call back once more, later."""
        self._timers.append(self._clock.call_at(self._clock.monotonic() + seconds, callback))
        if self._ended:  # in this very moment
            self.end()

    def end(self) -> None:
        """The leaf has ended: nothing is due any more."""
        self._ended = True
        if self._registration is not None:
            self._registration.remove()
        for timer in self._timers:
            timer.disarm()

    def _heard(self) -> None:
        if self._claim.setdefault(None, "aborted") == "begun":
            self._aborted = True
            self._arm()

    def _arm(self) -> None:
        # `pop` gives each entry to one caller, also when the abort comes while an entry is being added.
        while self._due:
            try:
                seconds, callback = self._due.pop(0)
            except IndexError:
                return
            self.again(seconds, callback)
