"""Owns the signal that aborts when its time has come. Knows nothing of who set the time.

Asked, it looks at its clock: that needs no loop, no thread and no timer. Only while somebody observes it does it have a
timer, one for all. When it fires, guards are woken by the clock's timer thread itself, listeners run elsewhere.
"""

import os
import weakref
from collections.abc import Iterable, Iterator
from functools import partial

from .callbacks import Callback
from .clock import NonBlocking, Timer, current_clock
from .guard import Guard, Waiter, log_unreached
from .listeners import Registration
from .reason import AbortReason, ReasonKind
from .signal import CompositeSignal, RootSignal

__all__ = ["Deadline"]

# Deadlines with listeners, which nobody else may hold on to: they are kept until their time or the last removal.
_kept: "dict[Deadline, bool]" = {}
# How often this process is a fork of a fork. A timer of an earlier one has no thread here that would fire it.
_forks = [0]


def _forked() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_forked)


class Deadline(RootSignal):
    """The root that aborts when its time has come. Asked, it looks at the clock; observed, it sets one timer."""

    __slots__ = ("_clock", "_forks", "_kind", "_origin", "_seconds", "_timer", "deadline")

    def __init__(self, seconds: float, kind: ReasonKind, origin: str | None) -> None:
        super().__init__()
        self._clock = current_clock()
        self._seconds = seconds
        self._kind: ReasonKind = kind
        self._origin = origin
        self._timer: Timer | None = None
        self._forks = 0  # at the time when the timer was set
        # A slot in place of the property: it is read at every look.
        self.deadline: float | None = self._clock.monotonic() + seconds  # pyright: ignore[reportIncompatibleMethodOverride]

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

    def _listen(self, registration: "Registration | CompositeSignal") -> None:
        super()._listen(registration)
        _kept[self] = True
        self._arm()

    def _forget(self, registration: "Registration | CompositeSignal") -> bool:
        forgotten = super()._forget(registration)
        if not self._listeners:
            _kept.pop(self, None)
            if self._listeners:  # another thread has just come to listen
                _kept[self] = True
        return forgotten

    def _arm(self) -> None:
        # After a fork whoever observes it in the child sets the timer anew. It is not set by the fork itself: what was
        # registered before belongs to the parent, and would send its signals and messages twice.
        if self._timer is not None and self._forks == _forks[0]:
            return

        def expire() -> Iterable[Callback]:
            signal = ref()
            return () if signal is None else signal._expire()

        # Weak, so that a far-off deadline does not keep what its guards and listeners held.
        ref = weakref.ref(self, lambda _: timer.disarm())
        self._forks = _forks[0]
        timer = self._timer = self._clock.call_at(self.at, NonBlocking(expire))

    def _expire(self) -> Iterable[Callback]:
        """Wake the guards. Returns what is left of `announce()`: to run the listeners, which may block."""
        if not self.aborted:  # some clocks fire early
            self._timer = None
            self._arm()
            return ()
        unreached = self.wake_guards()
        return self._announcements(unreached) if unreached or self._listeners else ()

    def _announcements(self, unreached: int) -> Iterator[Callback]:
        if unreached:
            yield partial(log_unreached, unreached)
        for registration in self._owned():
            yield registration.run
        _kept.pop(self, None)
