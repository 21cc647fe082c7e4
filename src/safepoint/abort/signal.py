"""Owns the state of a signal: aborted or not, why, and who wants to hear of it. No locks, no loop, no threads.

Knows nothing of tasks (`guard.py`) and of what asks for the abort (`controller.py`).

Two kinds of signal abort by themselves, the roots: a `ControllerSignal` when its controller says so, a `Deadline`
(`deadline.py`) when its time has come. A `CompositeSignal` only looks at its roots, and is registered with them only
while somebody listens, so that a signal that lives for days does not grow with the composites made over it.

Races are decided by single dict operations, which are atomic: `setdefault` finds the one winner of an abort, `pop`
the one owner of an entry. A lock would deadlock when `abort()` runs in a signal handler or `__del__`.
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
    """The read side: is it aborted, why, tell me when. Made by an `AbortController` or the factories below."""

    __slots__ = ("__weakref__",)

    def __init__(self) -> None:
        raise UsageError("AbortSignal() cannot be made directly; use `AbortController().signal` or a factory")

    if TYPE_CHECKING:  # plain slots on a Source, where a property would cost ten times as much

        @property
        def aborted(self) -> bool:
            """True from the abort on, for ever."""
            ...

        @property
        def reason(self) -> AbortReason | None:
            """Why it was aborted, or None. The first reason stays."""

        @property
        def aborted_at(self) -> float | None:
            """The absolute time of the abort, or None."""

        @property
        def deadline(self) -> float | None:
            """The absolute time of its clock at which it will abort by itself, or None."""

    def remaining(self) -> float:
        """Seconds until the deadline, not below 0; `inf` without one."""
        return math.inf if self.deadline is None else max(0.0, self.deadline - current_clock().monotonic())

    def raise_if_aborted(self) -> None:
        """Raises: AbortError once aborted; AbortTimeout when time was up."""
        if self.aborted:
            raise abort_error(self)

    def add_listener(self, fn: Callable[[], object]) -> Registration:
        """Call `fn()` once on abort, in the thread that aborts. Never, if it is aborted already: check first."""
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {type(fn).__name__}")
        if self.aborted:
            return Registration(fn, lambda _: False)
        registration = Registration(fn, self._forget)
        self._listen(registration)
        # Inserted first, looked second: an abort in between either found it or leaves it to us.
        if self.aborted and self._forget(registration):
            registration.run()
        return registration

    @property
    @abstractmethod
    def observers(self) -> int:
        """How many guards, listeners and listened-to composites are registered here now. For tests and diagnosis."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the abort (True) or until `timeout` seconds have passed (False)."""
        clock = current_clock()
        ends = None if timeout is None else clock.monotonic() + check_seconds("timeout", timeout)
        # A bare lock of our own: an Event's inner lock could be held by the very thread a signal handler interrupts.
        lock = threading.Lock()
        lock.acquire()
        with self.add_listener(lock.release):
            while not self.aborted:
                left = min((t - clock.monotonic() for t in (ends, self.deadline) if t is not None), default=None)
                if clock.acquire(lock, left) or (ends is not None and clock.monotonic() >= ends):
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
        """Raises: AbortError, at once on abort."""
        seconds = check_seconds("seconds", seconds)
        with Guard(self):
            await current_clock().sleep(seconds)

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Await it. Raises: AbortError on abort; the awaitable is interrupted, or closed if it had not begun."""
        return await run(self, awaitable)

    def guard(self) -> Guard:
        """`with signal.guard():` interrupts the await in the body on abort, and AbortError comes out."""
        return Guard(self)

    def stream(self, source: AsyncIterable[T]) -> "Stream[T]":
        """Iterate over `source` under this signal: checked before each chunk, closed on abort, break and error."""
        from .stream import Stream  # it stands above this file: closing a source needs a shield, which is a signal

        return Stream(self, source)

    @staticmethod
    def any(signals: "Iterable[AbortSignal]") -> "AbortSignal":
        """A signal that is aborted as soon as one of these is, with its reason."""
        given = list(signals)
        roots = roots_of(given)
        for signal in given:
            if signal.aborted:
                return AbortSignal.already(signal.reason)
        return CompositeSignal(roots)

    @staticmethod
    def timeout(seconds: float) -> "AbortSignal":
        """A signal that aborts by itself after `seconds`. Needs no loop and keeps nothing alive."""
        from .deadline import Deadline  # it stands above this file: it is a signal

        return Deadline(check_seconds("seconds", seconds), "timeout", caller(1))

    @staticmethod
    def already(reason: AbortReason | BaseException | str | None = None) -> "AbortSignal":
        """A signal that is aborted from birth. Its listeners never run."""
        signal = ControllerSignal()
        signal.decide(reason_from(reason, caller(1)), current_clock().monotonic())
        return signal

    @staticmethod
    def never() -> "AbortSignal":
        """A signal that is never aborted."""
        return CompositeSignal(())

    @abstractmethod
    def attach(self, entry: Guard | Waiter) -> None:
        """Deliver to this entry on abort. For `guard.py`."""

    @abstractmethod
    def detach(self, entry: Guard | Waiter) -> bool:
        """True: it was still attached everywhere. For `guard.py`."""

    @abstractmethod
    def _listen(self, registration: Registration) -> None: ...

    @abstractmethod
    def _forget(self, registration: Registration) -> bool: ...


class RootSignal(AbortSignal):
    """A signal that aborts by itself: it has the guards, the listeners and the composites that are listened to."""

    __slots__ = ("_decision", "_guards", "_listeners")

    if TYPE_CHECKING:

        @property
        def at(self) -> float:
            """When it was aborted, or will be."""
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
        """Wake the guards, then the listeners in order, then composites by age. The state is set before, everywhere."""
        if unreached := self.wake_guards():
            log_unreached(unreached)
        run_all(self._owned())

    def wake_guards(self) -> int:
        """The first part of it, which never blocks. Returns how many guards could not be reached."""
        return wake([entry for entry in list(self._guards) if self._guards.pop(entry, False)])

    def _owned(self) -> Iterable[Registration]:
        composites: list[CompositeSignal] = []
        for entry in list(self._listeners):
            if self._listeners.pop(entry, False):  # False: a listener that ran before has removed it
                if isinstance(entry, CompositeSignal):
                    composites.append(entry)
                else:
                    yield entry
        for composite in sorted(composites, key=lambda c: c.number):
            yield from composite.owned()


class ControllerSignal(RootSignal):
    """The root behind an `AbortController`."""

    # Slots in place of the properties: a flag check costs a tenth.
    __slots__ = ("aborted", "at", "reason")
    deadline: float | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    if TYPE_CHECKING:
        aborted: bool  # pyright: ignore[reportIncompatibleMethodOverride]
        reason: AbortReason | None  # pyright: ignore[reportIncompatibleMethodOverride]
        at: float  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self) -> None:
        # Every request and every tool makes one of these: written out, it costs a third less than with super().
        self._decision = {}
        self._guards = {}
        self._listeners = {}
        self.aborted = False
        self.reason = None

    def decide(self, reason: AbortReason, at: float) -> bool:
        """Set the state. True: this call did it. Also for a losing call the signal is aborted when it returns."""
        mine = (reason, at)
        won = self._decision.setdefault(None, mine)
        self.reason, self.at = won  # pyright: ignore[reportIncompatibleMethodOverride]
        self.aborted = True  # pyright: ignore[reportIncompatibleMethodOverride]
        return won is mine


class CompositeSignal(AbortSignal):
    """A signal that follows roots: any of them. Pulled when asked, registered with them only while listened to."""

    __slots__ = ("_decision", "_listeners", "_roots", "number")

    def __init__(self, roots: tuple[RootSignal, ...]) -> None:
        self._roots = roots
        self._decision: dict[None, RootSignal] = {}
        self._listeners: dict[Registration, bool] = {}
        self.number = next(_created)

    @property
    def roots(self) -> tuple[RootSignal, ...]:
        """What it follows. Never composites: those are replaced by their own roots."""
        return self._roots

    @property
    def aborted(self) -> bool:
        for root in self._roots:  # a plain loop: any() with a generator costs three times as much
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
        """The root whose abort is this one's: the first in time; in one instant, the first in the list."""
        if not self._decision:
            aborted = [root for root in self._roots if root.aborted]
            if not aborted:
                return None
            # Kept from the first look on, also where a root with an earlier time is slow to say so.
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
            if self._listeners:  # another thread has just come to listen: back to the roots, which may have aborted
                for root in self._roots:
                    root._listen(self)
                if self.aborted:
                    run_all(self.owned())
        return forgotten

    def owned(self) -> Iterable[Registration]:
        """The listeners, each given to one caller only; the roots that did not abort are left."""
        for root in self._roots:
            root._forget(self)
        for registration in list(self._listeners):
            if self._listeners.pop(registration, False):
                yield registration


def roots_of(signals: Iterable[object]) -> tuple[RootSignal, ...]:
    """The roots of these signals, each once, in order. Raises: TypeError that names the wrong one."""
    roots: dict[RootSignal, None] = {}
    for index, signal in enumerate(signals):
        if isinstance(signal, RootSignal):
            roots[signal] = None
        elif isinstance(signal, CompositeSignal):
            roots.update(dict.fromkeys(signal.roots))
        else:
            raise TypeError(f"signals[{index}] must be an AbortSignal, not {type(signal).__name__}")
    return tuple(roots)
