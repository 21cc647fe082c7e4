"""Owns time: the clock behind deadlines, sleeps and timers. Knows nothing of signals.

The system clock's timers live on one daemon thread. A deadline therefore needs no event loop, outlives the loop in
which it was created, and never keeps the process alive. The timer thread itself calls only code that never blocks
(`NonBlocking`) and passes other callbacks to the threads of `callbacks.py`. Tests install another clock with
`use_clock`.
"""

import _thread
import asyncio
import heapq
import itertools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from ..errors import UsageError
from .callbacks import BLOCKED_SECONDS, Callback, CallbackThreads, call, log_failure

__all__ = ["Clock", "NonBlocking", "SystemClock", "Timer", "current_clock", "use_clock"]

SWEEP = 64


class Timer:
    """A callback that is due at a time. `disarm()` is allowed anywhere, even in `__del__` and signal handlers."""

    __slots__ = ("_callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        # A list, because `pop()` is atomic: if one thread fires and another disarms, exactly one gets the callback.
        self._callback = [callback]

    @property
    def armed(self) -> bool:
        """Whether the timer has neither fired nor been disarmed."""
        return bool(self._callback)

    def disarm(self) -> bool:
        """Prevent the callback from running. True if this call did; False if it ran or was disarmed before."""
        return self.take() is not None

    def fire(self) -> None:
        """Run the callback unless it was taken before, and log what it raises, so that the clock keeps working."""
        callback = self.take()
        if callback is not None:
            call(callback)

    def take(self) -> Callable[[], object] | None:
        """Take the callback out of the timer. Only the first call gets it, later ones get None."""
        try:
            return self._callback.pop()
        except IndexError:
            return None


class NonBlocking:
    """A timer's callback whose first part never blocks.

    The system clock's timer thread calls `first` itself, so it is delayed neither by a lack of threads nor by other
    callbacks. Other threads then run the callbacks that `first` returned. For a clock without this distinction it is a
    plain callback, which runs both parts in the calling thread.

    Args:
        first: Does the part that never blocks, and returns callbacks that may block.
    """

    __slots__ = ("first",)

    def __init__(self, first: Callable[[], Iterable[Callback]]) -> None:
        self.first = first

    def __call__(self) -> None:
        failed: BaseException | None = None
        for callback in self.first():
            try:
                callback()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed


class Clock(Protocol):
    """The interface of a clock. A time is an absolute number of seconds of this clock, a duration a relative one."""

    def monotonic(self) -> float:
        """The current time."""
        ...

    def time(self) -> float:
        """The current date in seconds since 1970. It is for people and records; waiting uses `monotonic()`."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` once the time `when` is reached, in any thread."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend the current task for `seconds`."""
        ...

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        """Block this thread until it has acquired the lock (True) or `seconds` have passed (False)."""
        ...


def check_seconds(name: str, seconds: object) -> float:
    """Validate a relative duration.

    Args:
        name: The name of the argument, for the error message.
        seconds: The duration to check.

    Returns:
        The duration as a float.

    Raises:
        TypeError: It is not a number.
        UsageError: It is negative or NaN.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
    if not seconds >= 0:
        raise UsageError(f"{name} must be a relative number of seconds, 0 or more, not {seconds!r}")
    return float(seconds)


class SystemClock:
    """Real time. Every method may be called from any thread, signal handler or `__del__`.

    Args:
        blocked_seconds: How long a timer's callback may take before the next callbacks run on another thread. A longer
            time saves threads, a shorter one delays less what is due after a callback that blocks.
    """

    def __init__(self, *, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._blocked_seconds = check_seconds("blocked_seconds", blocked_seconds)
        self._alarms: _Alarms | None = None

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(when, callback)
        alarms = self._alarms
        if alarms is None:
            # Two threads may get here at once and both start a timer thread. That is wasteful but harmless, and it
            # needs no lock, which a signal handler could find held. `threading.Thread` would take one.
            alarms = _Alarms(self._blocked_seconds)
            _thread.start_new_thread(alarms.serve, ())
            self._alarms = alarms
        alarms.add(timer)
        return timer

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        if seconds is None:
            return lock.acquire()
        return lock.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def forget_thread(self) -> None:
        """Forget the timer thread, which does not exist in a forked child; the next timer starts a new one."""
        self._alarms = None


class _Alarms:
    """The timers of a clock and the thread that waits for them.

    Only the timer thread touches the heap; other threads add to the inbox. The timer thread calls nothing that could
    block, so no callback delays another timer. While it sleeps, it is woken only for a timer that is due before its
    own wake-up time, because waking a thread costs more than everything else here.

    That needs a lock-free agreement between `add` and `serve`. `add` first publishes (appends to the inbox), then
    checks (compares with `_wakes_at`). `serve` first publishes the time until which it will sleep (`_wakes_at`), then
    checks the inbox. Whatever the interleaving, one of the two sees what the other has published: `add` sees the sleep
    and wakes the thread, or the thread sees the timer and does not sleep. If either side checked before it publishes,
    both could miss each other, and the timer would fire only when the thread wakes up for another reason.
    """

    def __init__(self, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._inbox: deque[Timer] = deque()
        self._nudges: SimpleQueue[None] = SimpleQueue()
        self._wakes_at = -math.inf  # -inf while the thread is awake: then no timer needs to wake it
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()  # timers with equal times fire in the order in which they were added
        self._sweep_at = SWEEP
        self._callbacks = CallbackThreads(blocked_seconds)

    def add(self, timer: Timer) -> None:
        """Add a timer. May be called from any thread, signal handler or `__del__`."""
        self._inbox.append(timer)  # before `_wakes_at` is read: see the class docstring
        if timer.when < self._wakes_at or len(self._inbox) > SWEEP:
            self._nudges.put(None)

    def serve(self) -> None:
        """Run the timer thread."""
        threading.current_thread().name = "safepoint-timers"
        while True:
            self._take_in()
            while self._heap and (not self._heap[0][2].armed or self._heap[0][0] <= time.monotonic()):
                self._fire(heapq.heappop(self._heap)[2])
            next_look = self._callbacks.look(time.monotonic())
            self._wakes_at = min(next_look, self._heap[0][0] if self._heap else math.inf)
            if not self._inbox:  # after `_wakes_at` is set: see the class docstring
                self._sleep(self._wakes_at)
            self._wakes_at = -math.inf

    def _fire(self, timer: Timer) -> None:
        callback = timer.take()
        if callback is None:
            return
        rest: Iterable[Callback] = (callback,)
        if isinstance(callback, NonBlocking):
            try:
                rest = callback.first()
            except BaseException as error:
                rest = (partial(log_failure, callback, error),)
        if rest:
            self._callbacks.post(rest)

    def _take_in(self) -> None:
        """Move all timers from the inbox to the heap, before any fires: the inbox is not ordered by time."""
        while self._inbox:
            timer = self._inbox.popleft()
            heapq.heappush(self._heap, (timer.when, next(self._order), timer))
        if len(self._heap) > self._sweep_at:
            # Disarmed timers of distant deadlines would otherwise stay until their time. Dropping them each time the
            # heap has doubled costs O(1) per timer.
            self._heap = [entry for entry in self._heap if entry[2].armed]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP, 2 * len(self._heap))

    def _sleep(self, until: float) -> None:
        wait = None if until == math.inf else max(0.0, until - time.monotonic())
        try:
            self._nudges.get(timeout=None if wait is None else min(wait, threading.TIMEOUT_MAX))
            while True:  # one wake-up serves all requests that have arrived
                self._nudges.get_nowait()
        except Empty:
            pass


C = TypeVar("C", bound=Clock)
SYSTEM = SystemClock()
_clock: ContextVar[Clock] = ContextVar("safepoint_clock", default=SYSTEM)
os.register_at_fork(after_in_child=SYSTEM.forget_thread)


def current_clock() -> Clock:
    """The clock of the calling code: the system clock, unless `use_clock` has installed another."""
    return _clock.get()


@contextmanager
def use_clock(clock: C) -> Iterator[C]:
    """Use this clock inside the block, and in tasks and `run_in_thread` calls that are started there."""
    token = _clock.set(clock)
    try:
        yield clock
    finally:
        _clock.reset(token)
