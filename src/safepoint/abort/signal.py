"""Owns the state of a signal: whether it is aborted, why, and who observes it. No locks, no loop, no threads.

Knows nothing of tasks (`guard.py`) and of who asks for the abort (`controller.py`).

Two kinds of signals have a state of their own, the roots: a `ControllerSignal` is aborted by its controller, a
`Deadline` (`deadline.py`) by time. A `CompositeSignal` reads the state of its roots. It is registered with them only
while it has listeners, so that a signal that lives for days does not accumulate the composites made of it.

Races are decided by single dict operations, which are atomic: `setdefault` finds the one winner of an abort, `pop`
the one caller that may run a listener or wake a guard. A lock would deadlock when `abort()` runs in a signal handler
or `__del__` that interrupts the code which holds it.

An abort has two steps, and their order matters. `decide()` sets the state; `announce()` then wakes guards and runs
listeners. So every listener and every woken task finds the signal, and all composites of it, aborted. With the steps
reversed, a listener that checks `aborted` would find False and start new work. Observers register first and look at
`aborted` second. An abort between the two either finds the registration (`pop` succeeds in `announce`) or has set the
state before the look (`pop` succeeds in the observer); since `pop` has one winner, a listener runs exactly once.
"""

import itertools
import math
import threading
from abc import abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ..errors import UsageError
from .clock import check_seconds, current_clock
from .guard import Guard, Waiter, abort_error, log_unreached, run, wake
from .listeners import Registration, run_all
from .reason import AbortReason, caller, reason_from

if TYPE_CHECKING:
    from .stream import Stream

__all__ = ["AbortSignal"]

T = TypeVar("T")
_created = itertools.count()


class AbortSignal:
    """The read side of an abort: whether it has happened and why, and ways to react to it.

    Signals are made by an `AbortController` or by the factories `any`, `timeout`, `already` and `never`.

    Attributes:
        aborted: Whether the signal is aborted. It stays so.
        reason: Why it was aborted; None before. The first reason stays.
        aborted_at: The time of the abort; None before.
        deadline: The time at which it will abort by itself; None if it does not.
    """

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        raise UsageError("AbortSignal() cannot be made directly; use `AbortController().signal` or a factory")

    if TYPE_CHECKING:  # `ControllerSignal` has slots instead: a property would cost ten times as much

        @property
        def aborted(self) -> bool:
            """Whether the signal is aborted. It stays so."""
            ...

        @property
        def reason(self) -> AbortReason | None:
            """Why it was aborted; None before. The first reason stays."""

        @property
        def aborted_at(self) -> float | None:
            """The absolute time of the abort; None before."""

        @property
        def deadline(self) -> float | None:
            """The absolute time at which it will abort by itself; None if it does not."""

    def remaining(self) -> float:
        """The seconds until the deadline, at least 0; `inf` without a deadline."""
        return math.inf if self.deadline is None else max(0.0, self.deadline - current_clock().monotonic())

    def raise_if_aborted(self) -> None:
        """Raise if the signal is aborted.

        Raises:
            AbortError: It is aborted; an AbortTimeout if its time was up.
        """
        if self.aborted:
            raise abort_error(self)

    def add_listener(self, fn: Callable[[], object]) -> Registration:
        """Call `fn()` once on abort, in the thread that aborts.

        If the signal is aborted already, `fn` is never called: check `aborted` first.
        """
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {type(fn).__name__}")
        if self.aborted:
            return Registration(fn, lambda _: False)
        registration = Registration(fn, self._forget)
        self._listen(registration)
        # Register first, look second: an abort in between has either run the listener or left it to this call.
        if self.aborted and self._forget(registration):
            registration.run()
        return registration

    @property
    @abstractmethod
    def observers(self) -> int:
        """The number of registered guards, listeners and composites with listeners. For tests and diagnosis."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the abort.

        Args:
            timeout: How many seconds to wait; None for no limit.

        Returns:
            True if the signal is aborted, False if the time was up first.
        """
        clock = current_clock()
        ends = None if timeout is None else clock.monotonic() + check_seconds("timeout", timeout)
        # A lock of this call alone. The inner lock of a `threading.Event` could be held by the thread that a signal
        # handler interrupts, and if the handler aborts, it would wait for itself.
        lock = threading.Lock()
        lock.acquire()
        with self.add_listener(lock.release):
            while not self.aborted:
                remaining = min((t - clock.monotonic() for t in (ends, self.deadline) if t is not None), default=None)
                if clock.acquire(lock, remaining) or (ends is not None and clock.monotonic() >= ends):
                    break
        return self.aborted

    async def wait_async(self) -> None:
        """Suspend this task until the abort."""
        if self.aborted:
            return
        waiter = Waiter()
        self.attach(waiter)
        try:
            if not self.aborted:
                await waiter.future
        finally:
            self.detach(waiter)

    async def sleep(self, seconds: float) -> None:
        """Suspend this task for `seconds`.

        Raises:
            AbortError: The signal was aborted; raised at once.
        """
        seconds = check_seconds("seconds", seconds)
        with Guard(self):
            await current_clock().sleep(seconds)

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Await `awaitable` under this signal and return its value.

        Raises:
            AbortError: The signal was aborted. The awaitable was interrupted, or closed if it had not begun.
        """
        return await run(self, awaitable)

    def guard(self) -> Guard:
        """A `with` block whose await is interrupted on abort: `with signal.guard(): await …` raises AbortError."""
        return Guard(self)

    def stream(self, source: AsyncIterable[T]) -> "Stream[T]":
        """Iterate over `source` under this signal.

        The signal is checked before each chunk, and the source is closed on abort, break and error.
        """
        from .stream import Stream  # imports this module: closing a source needs a shield, which is a signal

        return Stream(self, source)

    @staticmethod
    def any(signals: "Iterable[AbortSignal]") -> "AbortSignal":
        """A signal that is aborted as soon as one of `signals` is, with the same reason."""
        given = list(signals)
        roots = roots_of(given)
        for signal in given:
            if signal.aborted:
                return AbortSignal.already(signal.reason)
        return CompositeSignal(roots)

    @staticmethod
    def timeout(seconds: float) -> "AbortSignal":
        """A signal that aborts by itself after `seconds`. It needs no event loop and keeps nothing alive."""
        from .deadline import Deadline  # imports this module

        return Deadline(check_seconds("seconds", seconds), "timeout", caller(1))

    @staticmethod
    def already(reason: AbortReason | BaseException | str | None = None) -> "AbortSignal":
        """A signal that is aborted when it is made. Listeners added to it never run."""
        signal = ControllerSignal()
        signal.decide(reason_from(reason, caller(1)), current_clock().monotonic())
        return signal

    @staticmethod
    def never() -> "AbortSignal":
        """A signal that is never aborted."""
        return CompositeSignal(())

    @abstractmethod
    def attach(self, entry: Guard | Waiter) -> None:
        """Deliver to this entry on abort; used by `guard.py`."""

    @abstractmethod
    def detach(self, entry: Guard | Waiter) -> bool:
        """Remove the entry; used by `guard.py`. True if it was still attached to every root."""

    @abstractmethod
    def _listen(self, registration: Registration) -> None: ...

    @abstractmethod
    def _forget(self, registration: Registration) -> bool: ...


class RootSignal(AbortSignal):
    """A signal with a state of its own, and with guards, listeners and composites registered."""

    __slots__ = ("_decision", "_guards", "_listeners")

    if TYPE_CHECKING:

        @property
        def at(self) -> float:
            """The time at which it was aborted, or will be."""
            ...

    def __init__(self) -> None:
        self._decision: dict[None, tuple[AbortReason, float]] = {}
        self._guards: dict[Guard | Waiter, bool] = {}
        self._listeners: dict[Registration | CompositeSignal, bool] = {}

    @property
    def aborted_at(self) -> float | None:
        return self.at if self.aborted else None

    @property
    def observers(self) -> int:
        return len(self._guards) + len(self._listeners)

    def attach(self, entry: Guard | Waiter) -> None:
        self._guards[entry] = True

    def detach(self, entry: Guard | Waiter) -> bool:
        return self._guards.pop(entry, False)

    def _listen(self, registration: "Registration | CompositeSignal") -> None:
        self._listeners[registration] = True

    def _forget(self, registration: "Registration | CompositeSignal") -> bool:
        return self._listeners.pop(registration, False)

    def announce(self) -> None:
        """Wake the guards, then run the listeners in order, then those of composites, the oldest first.

        The state must be set before (`decide()`): see the module docstring.
        """
        if unreached := self.wake_guards():
            log_unreached(unreached)
        run_all(self._owned())

    def wake_guards(self) -> int:
        """Do the first part of `announce()`, which never blocks. Returns how many guards were not reached."""
        return wake([entry for entry in list(self._guards) if self._guards.pop(entry, False)])

    def _owned(self) -> Iterable[Registration]:
        """Take the listeners out, one at a time: each belongs to the one caller whose `pop` succeeds."""
        composites: list[CompositeSignal] = []
        for entry in list(self._listeners):
            if self._listeners.pop(entry, False):  # False if a listener that ran before has removed it
                if isinstance(entry, CompositeSignal):
                    composites.append(entry)
                else:
                    yield entry
        for composite in sorted(composites, key=lambda c: c.number):
            yield from composite.owned()


class ControllerSignal(RootSignal):
    """The root signal of an `AbortController`."""

    # Slots instead of the properties: reading a flag then costs a tenth.
    __slots__ = ("aborted", "at", "reason")
    deadline: float | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    if TYPE_CHECKING:
        aborted: bool  # pyright: ignore[reportIncompatibleMethodOverride]
        reason: AbortReason | None  # pyright: ignore[reportIncompatibleMethodOverride]
        at: float  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self) -> None:
        # Every request and every tool makes such a signal. Without the call of super() it costs a third less.
        self._decision = {}
        self._guards = {}
        self._listeners = {}
        self.aborted = False
        self.reason = None

    def decide(self, reason: AbortReason, at: float) -> bool:
        """Set the state, unless it is set. Either way the signal is aborted when this returns.

        Returns:
            True if this call set the state, and the caller therefore has to `announce()` it.
        """
        own = (reason, at)
        winner = self._decision.setdefault(None, own)
        # A losing call writes the winner's values, too: the winner may be suspended between `setdefault` and here.
        # `aborted` is written last, so that code that finds it True also finds the reason.
        self.reason, self.at = winner  # pyright: ignore[reportIncompatibleMethodOverride]
        self.aborted = True  # pyright: ignore[reportIncompatibleMethodOverride]
        return winner is own


class CompositeSignal(AbortSignal):
    """A signal that is aborted when any of its roots is.

    It reads its roots when asked, and is registered with them only while it has listeners.
    """

    __slots__ = ("_decision", "_listeners", "_roots", "number")

    def __init__(self, roots: tuple[RootSignal, ...]) -> None:
        self._roots = roots
        self._decision: dict[None, RootSignal] = {}
        self._listeners: dict[Registration, bool] = {}
        self.number = next(_created)

    @property
    def roots(self) -> tuple[RootSignal, ...]:
        """The roots that it follows. They are never composites: those are replaced by their own roots."""
        return self._roots

    @property
    def aborted(self) -> bool:
        for root in self._roots:  # a plain loop, because any() with a generator costs three times as much
            if root.aborted:
                return True
        return False

    @property
    def reason(self) -> AbortReason | None:
        first = self._first()
        return None if first is None else first.reason

    @property
    def aborted_at(self) -> float | None:
        first = self._first()
        return None if first is None else first.at

    def _first(self) -> RootSignal | None:
        """The root that was aborted first; of several at the same time, the first in the list. None before."""
        if not self._decision:
            aborted = [root for root in self._roots if root.aborted]
            if not aborted:
                return None
            # Decided at the first look, and kept even if a root with an earlier time is recorded later.
            self._decision.setdefault(None, min(aborted, key=lambda root: root.at))
        return self._decision[None]

    @property
    def deadline(self) -> float | None:
        return min((root.deadline for root in self._roots if root.deadline is not None), default=None)

    @property
    def observers(self) -> int:
        return len(self._listeners)

    def attach(self, entry: Guard | Waiter) -> None:
        for root in self._roots:
            root.attach(entry)

    def detach(self, entry: Guard | Waiter) -> bool:
        attached = True
        for root in self._roots:
            attached = root.detach(entry) and attached
        return attached

    def _listen(self, registration: Registration) -> None:
        self._listeners[registration] = True
        for root in self._roots:
            root._listen(self)

    def _forget(self, registration: Registration) -> bool:
        forgotten = self._listeners.pop(registration, False)
        if not self._listeners:
            for root in self._roots:
                root._forget(self)
            # Another thread may have added a listener in between. Then register again, and since the roots may have
            # been aborted while this was not registered, run the listeners here.
            if self._listeners:
                for root in self._roots:
                    root._listen(self)
                if self.aborted:
                    run_all(self.owned())
        return forgotten

    def owned(self) -> Iterable[Registration]:
        """Leave all roots and take the listeners out, each given to one caller only."""
        for root in self._roots:
            root._forget(self)
        for registration in list(self._listeners):
            if self._listeners.pop(registration, False):
                yield registration


def roots_of(signals: Iterable[object]) -> tuple[RootSignal, ...]:
    """The roots of these signals, each once, in order.

    Raises:
        TypeError: One of them is not a signal; the message gives its index.
    """
    roots: dict[RootSignal, None] = {}
    for index, signal in enumerate(signals):
        if isinstance(signal, RootSignal):
            roots[signal] = None
        elif isinstance(signal, CompositeSignal):
            roots.update(dict.fromkeys(signal.roots))
        else:
            raise TypeError(f"signals[{index}] must be an AbortSignal, not {type(signal).__name__}")
    return tuple(roots)
