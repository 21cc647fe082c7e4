"""Owns the time from an abort to the end of the leaves: the gate before each body, and what is due if it does not end.

Knows nothing of what a leaf is; says nothing by itself.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal, TypeAlias

from ..abort import AbortSignal, Clock, Timer
from ..abort.clock import NonBlocking
from ..abort.listeners import Registration

__all__ = ["AbortTimers", "StartGate"]

ROUNDING_SECONDS = 1e-6

Due: TypeAlias = tuple[float, Callable[[], object]]


class StartGate:
    """One leaf's. `begin()` decides whether its body may start; `after_abort()` says what is due if it goes on.

    **The gate.** `abort()` runs its listeners before it returns. So the first of two to claim the watch decides: the
    body, then it had begun before anybody was told "stopped"; or the abort, then the body never begins.
    """

    __slots__ = ("_alarm", "_claim", "due", "ended")

    def __init__(self, alarm: "AbortTimers") -> None:
        self._alarm = alarm
        self._claim: dict[None, Literal["begun", "aborted"]] = {}
        self.due: list[Due] = []
        self.ended = False

    def after_abort(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back, in a callback thread of the clock, if the leaf still runs `seconds` after the abort."""
        self.due.append((seconds, callback))
        if self._alarm.heard_at is not None:
            self._alarm.arm()

    def begin(self) -> bool:
        """True: the body begins now. False: the abort was first, and it must not begin."""
        return self._alarm.enter(self) and self._claim.setdefault(None, "begun") == "begun"

    def again(self, seconds: float, callback: Callable[[], object]) -> None:
        """From inside a callback: call back once more, later."""
        self.after_abort(self._alarm.since_abort() + seconds, callback)

    def end(self) -> None:
        """The leaf has ended: nothing is due any more."""
        self.ended = True
        self._alarm.leave(self)
        self.due.clear()  # its callbacks hold the leaf, which holds this: nobody should have to look for such a ring

    def heard(self) -> None:
        """The abort claims the gate, if the body has not."""
        self._claim.setdefault(None, "aborted")

    def take(self, seconds: float) -> list[Due]:
        """What is due by now, each entry for one caller only."""
        taken: list[Due] = []
        while self.due:  # emptied one by one, in place: what another thread adds meanwhile is not lost
            taken.append(self.due.pop())
        self.due += [entry for entry in taken if entry[0] > seconds]
        return (
            [] if self.ended else sorted((entry for entry in taken if entry[0] <= seconds), key=lambda entry: entry[0])
        )


class AbortTimers:
    """All the leaves under one signal: one listener while there are any, and after the abort one timer for all.

    A thousand leaves that end at once on abort should not cost a thousand timers.
    """

    __slots__ = ("_clock", "_registration", "_signal", "_timers", "_watches", "heard_at")

    def __init__(self, signal: AbortSignal, clock: Clock) -> None:
        self._signal = signal
        self._clock = clock
        self._watches: dict[StartGate, None] = {}
        self._registration: Registration | None = None
        self._timers: list[Timer] = []
        self.heard_at: float | None = None

    def enter(self, gate: StartGate) -> bool:
        """False: the signal is aborted already. Entered first, looked second: no abort passes unnoticed."""
        self._watches[gate] = None
        if self._registration is None:
            self._registration = self._signal.add_listener(self._heard)
        return not self._signal.aborted

    def leave(self, gate: StartGate) -> None:
        """This leaf needs no alarm any more; the last one takes listener and timer with it."""
        self._watches.pop(gate, None)
        if not self._watches:
            registration, self._registration = self._registration, None
            if registration is not None:
                registration.remove()
            while self._timers:
                self._timers.pop().disarm()

    def since_abort(self) -> float:
        """Seconds since the abort was heard."""
        return 0.0 if self.heard_at is None else self._clock.monotonic() - self.heard_at

    def arm(self) -> None:
        """Set a timer for what is due first."""
        if self.heard_at is None or not (dues := [entry[0] for gate in list(self._watches) for entry in gate.due]):
            return
        when = self.heard_at + min(dues)
        if not any(timer.armed and timer.when <= when for timer in self._timers):
            self._forget_fired()
            self._timers.append(self._clock.call_at(when, NonBlocking(self._fire)))
            if not self._watches:  # the last leaf has ended in this very moment
                self._timers[-1].disarm()

    def _heard(self) -> None:
        self.heard_at = self._clock.monotonic()
        for gate in list(self._watches):
            gate.heard()
        self.arm()

    def _forget_fired(self) -> None:
        for timer in list(self._timers):
            if not timer.armed:
                with suppress(ValueError):  # another thread has done it
                    self._timers.remove(timer)

    def _fire(self) -> Iterator[Callable[[], object]]:
        """What is due now, for the clock to call each by itself: one that blocks or raises delays no other.

        A generator: the timer thread only makes it, a callback thread goes through it.
        """
        # Sums of floats are rounded: without this a timer that fires at its very time may find nothing due, and be
        # set again for the same time.
        now = self.since_abort() + ROUNDING_SECONDS
        due = [(gate, callback) for gate in list(self._watches) for _, callback in gate.take(now)]
        self.arm()  # before any of them is called: what is due later has its timer, whatever they do
        for gate, callback in due:
            if not gate.ended:
                yield callback
