"""Owns the fake clock, whose time moves only when a test moves it. Knows nothing of what waits for it."""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import ClassVar

from ..abort.clock import Timer, check_seconds

__all__ = ["FakeClock", "drain_ready_tasks"]

# How many turns `drain_ready_tasks` takes on a loop that does not show its queue (uvloop).
BLIND_TURNS = 50
EPOCH = 1_700_000_000.0
# How often a thread that waits in fake time tries to take its lock.
LOCK_POLL_SECONDS = 0.001


class ThreadWait:
    """One call of `FakeClock.acquire` that has not returned: a thread waits for a lock or for a time."""

    __slots__ = ("asleep", "clock", "gate", "lock", "thread")

    def __init__(self, clock: "FakeClock", lock: threading.Lock, gate: threading.Event) -> None:
        self.clock = clock
        self.thread = threading.get_ident()
        self.lock = lock
        self.gate = gate
        self.asleep = False

    @property
    def blocked(self) -> bool:
        """Whether the thread sleeps and nothing has happened yet that will let it continue.

        The order of the checks matters: first whether the lock is taken, last whether the thread is asleep. The thread
        takes its lock only while it is awake, and does not sleep again afterwards. So if the lock was taken and the
        thread was asleep later, another thread has the lock. In the reverse order, the thread could wake up and take
        the lock between the two checks, and would count as blocked although it runs.
        """
        return self.lock.locked() and not self.gate.is_set() and self.asleep


class FakeClock:
    """A clock for tests: `with use_clock(FakeClock()) as clock:`, then `clock.advance(3)`.

    Timers fire inside `advance`, in the order of their times; each sees its own time as the current one.

    Args:
        start: The time at the beginning.
    """

    _waits: ClassVar[dict[ThreadWait, None]] = {}

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []
        self._lock = threading.Lock()
        self.on_wait: Callable[[], object] | None = None  # called in each thread that begins to wait in `acquire`

    def monotonic(self) -> float:
        """The current time."""
        return self._now

    def time(self) -> float:
        """The current date, which moves with the time."""
        return EPOCH + self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` inside the call of `advance` that reaches `when`, or inside the next one if it has passed."""
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
            # The thread waits for two things at once, its lock and its time. It sleeps on the gate, which its time
            # opens, and polls the lock while it is awake.
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
        """The blocked calls of `acquire`, of all fake clocks.

        Each call of `acquire` is one object: if two results contain the same one, its thread has not moved in between.
        """
        return frozenset(wait for wait in list(cls._waits) if wait.blocked)

    @property
    def pending(self) -> int:
        """The number of armed timers."""
        with self._lock:
            return sum(timer.armed for _, _, timer in self._timers)

    def next_timer(self) -> float | None:
        """The time of the first armed timer, or None."""
        with self._lock:
            while self._timers and not self._timers[0][2].armed:
                heapq.heappop(self._timers)
            return self._timers[0][0] if self._timers else None

    def advance(self, seconds: float) -> None:
        """Move the time forward, and fire the timers that become due."""
        target = self._now + check_seconds("seconds", seconds)
        while (timer := self._due(target)) is not None:
            self._now = max(self._now, timer.when)
            timer.fire()
        self._now = max(self._now, target)  # a callback may have moved it further

    async def elapse(self, seconds: float) -> None:
        """Move the time forward from timer to timer, and run the tasks that become ready in between."""
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
    """Return when the loop has nothing ready to run but the caller, or after a limit of turns."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(BLIND_TURNS if ready is None else 10_000):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return
