"""The time from an abort to the end of the leaves: the gate before each body, and what is due if a body does not end.

This module does not know what a leaf is, and reports nothing by itself.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias

from ..abort import AbortSignal, Clock, Timer
from ..abort.clock import NonBlocking
from ..abort.listeners import Registration

__all__ = ["AbortTimers", "StartGate"]

ROUNDING_SECONDS = 1e-6

# Seconds after the abort, and what to call then.
DueCallback: TypeAlias = tuple[float, Callable[[], object]]


class StartGate:
    """The gate before the body of one leaf, and the callbacks that are due if the body goes on after an abort.

    **The claim.** A body must not begin after an abort was reported, and `abort()` may come from any thread at any
    moment. Both sides therefore claim the gate by taking the one item out of a list, which is atomic: the first one
    gets it.

    - The body claims it in `begin()`, after the gate was registered with the timers of the signal.
    - The abort claims it in `on_abort()`, a listener of the signal. `abort()` runs all listeners before it returns.

    If the body wins, it had begun before anybody could be told that the run was stopped, and it is interrupted like any
    other. If the abort wins, `begin()` returns False, and the receipt says `not_started`. An abort that happened before
    the registration reaches no listener, so `begin()` also checks the signal itself; the registration comes first, so
    no abort falls between the two (see `AbortTimers.add`).

    Args:
        timers: The timers of the signal.
        due: What is due if the body goes on, as for `after_abort()`.

    Attributes:
        due: What is due after an abort.
        ended: Whether the leaf has ended.
        unclaimed: One item until the body or an abort has claimed the gate.
    """

    __slots__ = ("_timers", "due", "ended", "unclaimed")

    def __init__(self, timers: "AbortTimers", due: list[DueCallback] | None = None) -> None:
        self._timers = timers
        self.unclaimed = [None]
        self.due: list[DueCallback] = [] if due is None else due
        self.ended = False

    def after_abort(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back, in a callback thread of the clock, if the leaf still runs `seconds` after the abort."""
        self.due.append((seconds, callback))
        if self._timers.aborted_at is not None:
            self._timers.arm()

    def begin(self) -> bool:
        """Claim the gate for the body.

        Returns:
            True if the body begins now; False if the abort was first, and the body must not begin.
        """
        return self._timers.add(self) and self.claim()

    def repeat_after(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back once more, `seconds` from now. To be used inside a callback."""
        self.after_abort(self._timers.since_abort() + seconds, callback)

    def end(self) -> None:
        """The leaf has ended: nothing is due from now on."""
        self.ended = True
        timers = self._timers
        timers.gates.pop(self, None)
        if not timers.gates:
            timers.stop()
        self.due.clear()  # break the cycle leaf → gate → callbacks → leaf, so that it needs no garbage collection

    def claim(self) -> bool:
        """Claim the gate: for the body, or for the abort.

        Returns:
            True if this call is the first.
        """
        try:
            self.unclaimed.pop()
        except IndexError:
            return False
        return True

    def take_due(self, seconds: float) -> list[DueCallback]:
        """Remove and return what is due `seconds` after the abort. Each entry is returned to one caller only."""
        taken: list[DueCallback] = []
        while self.due:  # emptied in place, one by one: an entry that another thread adds meanwhile is not lost
            taken.append(self.due.pop())
        self.due += [entry for entry in taken if entry[0] > seconds]
        if self.ended:
            return []
        return sorted((entry for entry in taken if entry[0] <= seconds), key=lambda entry: entry[0])


class AbortTimers:
    """The gates of all leaves under one signal: one listener for all, and after the abort one timer for all.

    A thousand leaves that end at once on abort should not cost a thousand timers.

    Attributes:
        aborted_at: When the listener noticed the abort.
        gates: The gates of the leaves that run.
    """

    __slots__ = ("_clock", "_registration", "_signal", "_timers", "aborted_at", "gates")

    def __init__(self, signal: AbortSignal, clock: Clock) -> None:
        self._signal = signal
        self._clock = clock
        self.gates: dict[StartGate, None] = {}
        self._registration: Registration | None = None
        self._timers: list[Timer] = []
        self.aborted_at: float | None = None

    def add(self, gate: StartGate) -> bool:
        """Register a gate.

        Returns:
            False if the signal is aborted already. The gate is registered first and the signal read second: an abort
            in between claims the gate through the listener, so none passes unnoticed.
        """
        self.gates[gate] = None
        if self._registration is None:
            self._registration = self._signal.add_listener(self._on_abort)
        return not self._signal.aborted

    def stop(self) -> None:
        """Drop the listener and the timers: the last gate was removed."""
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.remove()
        while self._timers:
            self._timers.pop().disarm()

    def since_abort(self) -> float:
        """Seconds since the listener noticed the abort; 0 before it."""
        return 0.0 if self.aborted_at is None else self._clock.monotonic() - self.aborted_at

    def arm(self) -> None:
        """Set a timer for the callback that is due first."""
        if self.aborted_at is None or not (dues := [entry[0] for gate in list(self.gates) for entry in gate.due]):
            return
        when = self.aborted_at + min(dues)
        if not any(timer.armed and timer.when <= when for timer in self._timers):
            self._drop_fired()
            self._timers.append(self._clock.call_at(when, NonBlocking(self._fire)))
            if not self.gates:  # the last leaf ended at this very moment
                self._timers[-1].disarm()

    def _on_abort(self) -> None:
        self.aborted_at = self._clock.monotonic()
        for gate in list(self.gates):
            if gate.unclaimed:
                gate.claim()
        self.arm()

    def _drop_fired(self) -> None:
        for timer in list(self._timers):
            if not timer.armed:
                with suppress(ValueError):  # another thread has removed it
                    self._timers.remove(timer)

    def _fire(self) -> Iterator[Callable[[], object]]:
        """Yield what is due now. The clock calls each by itself, so one that blocks or raises delays no other.

        This is a generator so that the timer thread only creates it; a callback thread runs it.
        """
        # Sums of floats are rounded: without this a timer that fires exactly on time may find nothing due, and be set
        # again for the same time.
        now = self.since_abort() + ROUNDING_SECONDS
        due = [(gate, callback) for gate in list(self.gates) for _, callback in gate.take_due(now)]
        self.arm()  # before any of them is called: what is due later has its timer even if one of these blocks
        for gate, callback in due:
            if not gate.ended:
                yield callback
