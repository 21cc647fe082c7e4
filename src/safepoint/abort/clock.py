"""Owns time: what deadlines, sleeps and timers ask. Knows nothing of signals.

The system clock's timers live on one daemon thread, so that a deadline needs no event loop, outlives the loop that
first looked at it, and never keeps the process alive. That thread calls only what never blocks (`NonBlocking`); other
callbacks it hands to the threads of `callbacks.py`. A test puts a clock of its own in place with `use_clock`.
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
from .callbacks import Callback, CallbackThreads, call, log_failure

__all__ = ["Clock", "NonBlocking", "SystemClock", "Timer", "current_clock", "use_clock"]

SWEEP = 64


class Timer:
    """A callback that is due at a time. `disarm()` is allowed anywhere, also in `__del__` and signal handlers."""

    __slots__ = ("_callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        # A list, because `pop()` is atomic: of a firing and a disarming thread exactly one gets the callback.
        self._callback = [callback]

    @property
    def armed(self) -> bool:
        """True until it fired or was disarmed."""
        return bool(self._callback)

    def disarm(self) -> bool:
        """True: the callback will not run, because of this call."""
        return self.take() is not None

    def fire(self) -> None:
        """Run the callback, if nobody has yet. What it raises is logged: a clock outlives its users' mistakes."""
        callback = self.take()
        if callback is not None:
            call(callback)

    def take(self) -> Callable[[], object] | None:
        """The callback, for the one caller who gets it; None for everybody else."""
        try:
            return self._callback.pop()
        except IndexError:
            return None


class NonBlocking:
    """A timer's callback whose first part never blocks: `first()` posts or wakes, and returns what may block.

    The system clock's timer thread calls `first` itself, so that nothing can delay it: no thread has to be free and
    no other callback has to return. What `first` returns it hands to other threads, which call each by itself. To a
    clock that knows nothing of this it is a plain callback, which does all of it in the thread that calls.
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
    """What a clock must do. Times are absolute seconds of this clock, durations relative ones."""

    def monotonic(self) -> float:
        """The time now."""
        ...

    def time(self) -> float:
        """The date now, in seconds since 1970: for people and records, never for waiting."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call back once `when` has come, in any thread."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend the current task."""
        ...

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        """Block this thread until it has the lock (True) or the time is up (False)."""
        ...


class SystemClock:
    """Real time. Every method may be called from any thread, signal handler or `__del__`."""

    def __init__(self) -> None:
        self._alarms: _Alarms | None = None

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(when, callback)
        alarms = self._alarms
        if alarms is None:
            # Two threads may get here at once and both start a timer thread: wasteful once, harmless, and no lock
            # that a signal handler could find held. For the same reason not a `threading.Thread`, which takes one.
            alarms = _Alarms()
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
        """In a forked child the timer thread does not exist: start a new one when next needed."""
        self._alarms = None


class _Alarms:
    """The timers of a clock, and the thread that waits for them. It alone owns the heap; others only add to its inbox.

    It calls nothing that could block, so that no callback can delay the timer of another. While it sleeps it is woken
    only for what comes before its own time: waking it costs more than all the rest.
    """

    def __init__(self) -> None:
        self._inbox: deque[Timer] = deque()
        self._nudges: SimpleQueue[None] = SimpleQueue()
        self._wakes_at = -math.inf  # while it is awake nobody has to wake it
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()  # equal times fire in the order in which they were asked for
        self._sweep_at = SWEEP
        self._callbacks = CallbackThreads()

    def add(self, timer: Timer) -> None:
        """Any thread, and in the middle of anything."""
        # It is in the inbox before the time is looked at, and the thread does the reverse: one sees the other.
        self._inbox.append(timer)
        if timer.when < self._wakes_at or len(self._inbox) > SWEEP:
            self._nudges.put(None)

    def serve(self) -> None:
        """The timer thread."""
        threading.current_thread().name = "safepoint-timers"
        while True:
            self._take_in()
            while self._heap and (not self._heap[0][2].armed or self._heap[0][0] <= time.monotonic()):
                self._fire(heapq.heappop(self._heap)[2])
            next_look = self._callbacks.look(time.monotonic())
            self._wakes_at = min(next_look, self._heap[0][0] if self._heap else math.inf)
            if not self._inbox:
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
        """All there are, before any fires: the first in the inbox need not be the first in time."""
        while self._inbox:
            timer = self._inbox.popleft()
            heapq.heappush(self._heap, (timer.when, next(self._order), timer))
        if len(self._heap) > self._sweep_at:
            # Disarmed timers of far-off deadlines would otherwise stay until their time: drop them each time the
            # heap has doubled, which costs nothing per timer.
            self._heap = [entry for entry in self._heap if entry[2].armed]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP, 2 * len(self._heap))

    def _sleep(self, until: float) -> None:
        wait = None if until == math.inf else max(0.0, until - time.monotonic())
        try:
            self._nudges.get(timeout=None if wait is None else min(wait, threading.TIMEOUT_MAX))
            while True:  # one waking is enough for all who asked for it
                self._nudges.get_nowait()
        except Empty:
            pass


C = TypeVar("C", bound=Clock)
SYSTEM = SystemClock()
_clock: ContextVar[Clock] = ContextVar("safepoint_clock", default=SYSTEM)
os.register_at_fork(after_in_child=SYSTEM.forget_thread)


def current_clock() -> Clock:
    """The clock of the code that asks: the system's, unless `use_clock` put another in its place."""
    return _clock.get()


@contextmanager
def use_clock(clock: C) -> Iterator[C]:
    """Everything made inside the block runs on this clock, also in tasks and `run_in_thread` calls started there."""
    token = _clock.set(clock)
    try:
        yield clock
    finally:
        _clock.reset(token)


def check_seconds(name: str, seconds: object) -> float:
    """A relative duration: a number that is not negative and not NaN. The error names the argument."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
    if not seconds >= 0:
        raise UsageError(f"{name} must be a relative number of seconds, 0 or more, not {seconds!r}")
    return float(seconds)
