"""Owns time that only moves when a test says so. Knows nothing of what waits for it."""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import ClassVar

from ..abort.clock import Timer, check_seconds

__all__ = ["FakeClock", "drain_ready_tasks"]

# A loop that does not show its queue (uvloop) is given this many turns instead: enough for any chain of wake-ups.
BLIND_TURNS = 50
EPOCH = 1_700_000_000.0
# How often a thread that waits in fake time looks whether it can have its lock.
LOCK_POLL_SECONDS = 0.001


class ThreadWait:
    """One call of `FakeClock.acquire` that has not returned: a thread that waits for a lock, or for its time."""

    __slots__ = ("asleep", "clock", "gate", "lock", "thread")

    def __init__(self, clock: "FakeClock", lock: threading.Lock, gate: threading.Event) -> None:
        self.clock = clock
        self.thread = threading.get_ident()
        self.lock = lock
        self.gate = gate
        self.asleep = False

    @property
    def blocked(self) -> bool:
        """True: it sleeps, and nothing has happened yet that will let it go on.

        It takes its lock only while it is awake, and does not sleep again once it has it. So if the lock was taken,
        and after that the thread is seen asleep, then somebody else has the lock. The order of the looks matters.
        """
        return self.lock.locked() and not self.gate.is_set() and self.asleep


class FakeClock:
    """A clock for tests: `with use_clock(FakeClock()) as clock:`, then `clock.advance(3)`.

    Timers fire inside `advance`, in the order of their times, each at its own time.
    """

    _waits: ClassVar[dict[ThreadWait, None]] = {}

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []
        self._lock = threading.Lock()
        self.on_wait: Callable[[], object] | None = None  # called by each thread that begins to wait in `acquire`

    def monotonic(self) -> float:
        """The time now."""
        return self._now

    def time(self) -> float:
        """The date now: it moves with the time."""
        return EPOCH + self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call back inside the `advance` that reaches `when`; a time that has passed: inside the next one."""
        timer = Timer(when, callback)
        with self._lock:
            heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """Suspend the current task until `advance` has reached the time."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_at(self._now + seconds, lambda: loop.call_soon_threadsafe(wake))
        try:
            if seconds <= 0:
                await asyncio.sleep(0)
            else:
                await woken
        finally:
            timer.disarm()

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        """Block this thread until it has the lock or `advance` has reached the time."""
        gate = threading.Event()
        timer = None if seconds is None else self.call_at(self._now + seconds, gate.set)
        wait = ThreadWait(self, lock, gate)
        announce = self.on_wait
        try:
            self._waits[wait] = None
            # The thread waits for two things at once; fake time has no other way to be heard by a blocked thread. It
            # sleeps on the gate, so that its time wakes it at once, and takes the lock only while it is awake.
            while not lock.acquire(blocking=False):
                if gate.is_set() or (seconds is not None and seconds <= 0):
                    return False
                wait.asleep = True
                if announce is not None:
                    announce()
                    announce = None
                gate.wait(LOCK_POLL_SECONDS)
                wait.asleep = False
            return True
        finally:
            self._waits.pop(wait, None)
            if timer is not None:
                timer.disarm()

    @classmethod
    def waiting_threads(cls) -> frozenset[ThreadWait]:
        """The threads that wait in `acquire`, of any fake clock, and that nothing which has happened so far will wake.

        A wait is one object for one call of `acquire`: if the same one is in two answers, its thread has not moved in
        between.
        """
        return frozenset(wait for wait in list(cls._waits) if wait.blocked)

    @property
    def pending(self) -> int:
        """How many timers are armed."""
        with self._lock:
            return sum(timer.armed for _, _, timer in self._timers)

    def next_timer(self) -> float | None:
        """When the first armed timer is due, or None."""
        with self._lock:
            while self._timers and not self._timers[0][2].armed:
                heapq.heappop(self._timers)
            return self._timers[0][0] if self._timers else None

    def advance(self, seconds: float) -> None:
        """Move on, firing what is due."""
        target = self._now + check_seconds("seconds", seconds)
        while (timer := self._due(target)) is not None:
            self._now = max(self._now, timer.when)
            timer.fire()
        self._now = max(self._now, target)  # a callback may have moved it further

    async def elapse(self, seconds: float) -> None:
        """Move on from timer to timer, letting everything that became ready run in between."""
        target = self._now + check_seconds("seconds", seconds)
        await drain_ready_tasks()
        while (timer := self._due(target)) is not None:
            self._now = max(self._now, timer.when)
            timer.fire()
            await drain_ready_tasks()
        self._now = max(self._now, target)
        await drain_ready_tasks()

    def _due(self, target: float) -> Timer | None:
        with self._lock:
            while self._timers and (self._timers[0][0] <= target or not self._timers[0][2].armed):
                timer = heapq.heappop(self._timers)[2]
                if timer.armed:
                    return timer
        return None


async def drain_ready_tasks() -> None:
    """Return when the loop has nothing ready to run but the caller. Bounded."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(BLIND_TURNS if ready is None else 10_000):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return
