"""Owns the signal that aborts when its time has come. Knows nothing of who set the time.

Asked, it looks at its clock: that needs no loop, no thread and no timer. Only while somebody observes it does it have a
timer, one for all.
"""

import weakref

from .clock import Timer, current_clock
from .guard import Guard, Waiter
from .listeners import Registration
from .reason import AbortReason, ReasonKind
from .signal import Composite, Root

__all__ = ["Deadline"]

# Deadlines with listeners, which nobody else may hold on to: they are kept until their time or the last removal.
_kept: "dict[Deadline, bool]" = {}


class Deadline(Root):
    """The root that aborts when its time has come. Asked, it looks at the clock; observed, it sets one timer."""

    __slots__ = ("_clock", "_kind", "_origin", "_seconds", "_timer", "deadline")

    def __init__(self, seconds: float, kind: ReasonKind, origin: str | None) -> None:
        super().__init__()
        self._clock = current_clock()
        self._seconds = seconds
        self._kind: ReasonKind = kind
        self._origin = origin
        self._timer: Timer | None = None
        self.deadline: float | None = self._clock.monotonic() + seconds

    @property
    def at(self) -> float:
        return self.deadline or 0.0

    @property
    def aborted(self) -> bool:
        return self._clock.monotonic() >= self.at

    @property
    def reason(self) -> AbortReason | None:
        if not self.aborted:
            return None
        reason = AbortReason(self._kind, f"{self._seconds:g} s passed", self._origin)
        return self._decision.setdefault(None, (reason, self.at))[0]

    def attach(self, entry: Guard | Waiter) -> None:
        super().attach(entry)
        self._arm()

    def _listen(self, registration: "Registration | Composite") -> None:
        super()._listen(registration)
        _kept[self] = True
        self._arm()

    def _forget(self, registration: "Registration | Composite") -> bool:
        forgotten = super()._forget(registration)
        if not self._listeners:
            _kept.pop(self, None)
            if self._listeners:  # another thread has just come to listen
                _kept[self] = True
        return forgotten

    def _arm(self) -> None:
        if self._timer is not None:
            return

        def expire() -> None:
            signal = ref()
            if signal is not None:
                signal._expire()

        # Weak, so that a far-off deadline does not keep what its guards and listeners held.
        ref = weakref.ref(self, lambda _: timer.disarm())
        timer = self._timer = self._clock.call_at(self.at, expire)

    def _expire(self) -> None:
        if not self.aborted:  # some clocks fire early
            self._timer = None
            self._arm()
            return
        self.announce()
        _kept.pop(self, None)
