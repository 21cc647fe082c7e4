"""Owns the signal that aborts at a given time. Knows nothing of who set the time.

A deadline that is only asked (`aborted`) compares its time with the clock: that needs no loop, thread or timer. Only
an observed deadline has a timer, one for all observers. When it fires, the clock's timer thread itself wakes the
guards, and other threads run the listeners, which may block.
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

# Deadlines with listeners. There may be no other reference to them, so they are kept alive here until they have
# aborted or the last listener is removed.
_kept: "dict[Deadline, bool]" = {}
# The generation of this process: how many forks lie between it and the first one. A timer that was set in an earlier
# generation will not fire, because its thread does not exist in this process.
_forks = [0]


def _forked() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_forked)


class Deadline(RootSignal):
    """The root signal that aborts at a given time.

    Args:
        seconds: How long after now it aborts.
        kind: The kind of its reason.
        origin: The `file:line` of the code that set the time.
    """

    __slots__ = ("_clock", "_forks", "_timer", "deadline", "kind", "origin", "seconds")

    def __init__(self, seconds: float, kind: ReasonKind, origin: str | None) -> None:
        super().__init__()
        self._clock = current_clock()
        self.seconds = seconds
        self.kind: ReasonKind = kind
        self.origin = origin
        self._timer: Timer | None = None
        self._forks = 0  # the generation of the process that set the timer
        # A slot instead of the property, for speed: every check reads it.
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
        reason = AbortReason(self.kind, f"{self.seconds:g} s passed", self.origin)
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
            if self._listeners:  # another thread added a listener in between
                _kept[self] = True
        return forgotten

    def _arm(self) -> None:
        # In a forked child the first new observer sets the timer again. The fork itself does not: observers that were
        # registered before it belong to the parent, and would act twice.
        if self._timer is not None and self._forks == _forks[0]:
            return

        def expire() -> Iterable[Callback]:
            signal = ref()
            return () if signal is None else signal._expire()

        # A weak reference, so that the timer of a distant deadline does not keep the deadline and its observers alive.
        ref = weakref.ref(self, lambda _: timer.disarm())
        self._forks = _forks[0]
        timer = self._timer = self._clock.call_at(self.at, NonBlocking(expire))

    def _expire(self) -> Iterable[Callback]:
        """Wake the guards, and return the rest of `announce()`: running the listeners, which may block."""
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
