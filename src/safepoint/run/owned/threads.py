"""Owns functions that run in threads on a leaf's account: when they are interrupted, and how often they are checked.

One thread, the sampler, checks all of them, and reads the frames of all threads once per round. A function that does
not react is checked less and less often, so that hundreds of them cost little.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Generic, Protocol, TypeVar

from ...abort.guard import end_main_task
from ..interrupt import AbortInterrupt, InterruptibleCall
from . import connections
from .programs import FORKS

__all__ = ["SAMPLER", "Sampler", "ThreadWork"]

log = logging.getLogger("safepoint")
T_co = TypeVar("T_co", covariant=True)

# The time between two checks grows by this factor, from the first value to the last.
FIRST_SECONDS, LAST_SECONDS, FACTOR = 0.01, 0.25, 1.5
# Checks that are due within this share of their pause are done together, with one reading of the frames.
TOGETHER = 0.25
# A function that has been at one instruction for long, such as one that waits for a lock, is checked completely only
# every this many times. The other times it is only checked whether it has moved.
WHOLE_EVERY = 8


class Owner(Protocol):
    """The part of an account that its functions in threads use."""

    @property
    def ends_connections(self) -> bool: ...

    @property
    def has_programs(self) -> bool: ...

    def end_programs(self) -> None:
        """End the programs that the leaf has started."""
        ...


class ThreadWork(Generic[T_co]):
    """One function that runs in a thread.

    Args:
        call: The function.
        owner: The account that it is on.
    """

    def __init__(self, call: InterruptibleCall[T_co], owner: Owner) -> None:
        self.call = call
        self.native: int | None = None  # the native id of the thread, once it runs
        self._owner = owner
        self._may_return = True  # it has time to return by itself, so only what it is blocked in is ended
        self._cut = False  # whether something that it waited for was ended
        self._main_tasks: list[object] = []  # of loops that run inside the function; each is cancelled once
        self.due = 0.0
        self.pause = FIRST_SECONDS
        self._seen_at: tuple[int, int] | None = None  # innermost frame and instruction, at the last complete check
        self._checks_since = 0

    def run(self) -> T_co:
        """Call the function in this thread.

        Raises:
            AbortInterrupt: Something that the function waited for was ended.
            BaseException: Whatever the function raised.
        """
        self.native = threading.get_native_id()
        try:
            value = self.call.run()
        finally:
            FORKS.find_here()  # later programs of this thread belong to other functions
        if self._cut:
            # The exception could not be raised in time, so the function has continued with a partial result. What it
            # made of that must not be used.
            raise AbortInterrupt
        return value

    def runs_in(self, ident: int) -> bool:
        """Whether it is running in this thread."""
        return self.call.thread_id == ident and not self.call.ended

    def end(self) -> None:
        """From now on, end what it started and what it is blocked in, but do not interrupt it yet."""
        SAMPLER.add(self)

    def interrupt(self) -> None:
        """From now on, also interrupt it as soon as that is safe."""
        self._may_return = False
        self.pause = FIRST_SECONDS
        SAMPLER.add(self)

    def check(self, frames: Mapping[int, FrameType]) -> bool:
        """Do what can be done now to end the function. False if it needs no further checks.

        The order of the steps matters. Before anything is cut, the thread must not be in clean-up code, because
        nothing is raised there and it would use the partial result. `frames` are as old as the round, so that is
        checked again, with fresh frames, right before the cut. And `self.cut()` comes before `unblock()`: the exception
        is prepared first, so that the thread meets it on its next line, and not after it has used the partial result.
        """
        call = self.call
        if call.ended:
            return False
        if call.thread_id is None or self.native is None:  # it has not begun
            return True
        if self._owner.has_programs:
            self._owner.end_programs()
        if call.interrupted:  # what it does from now on is clean-up
            return False
        frame = frames.get(call.thread_id)
        if frame is None or self._has_not_moved(frame):
            return True
        if call.cleaning_up(frame):
            return True
        unblock = self._unblocking(call.thread_id, frames)
        if unblock is None:
            if not self._may_return:
                call.interrupt(frame=frame)
        elif not call.cleaning_up():
            self.cut()
            unblock()
        return True

    def _has_not_moved(self, frame: FrameType) -> bool:
        """Whether the thread is where it was at the last complete check, and that was not long ago."""
        at = (id(frame), frame.f_lasti)
        self._checks_since += 1
        if self.pause >= LAST_SECONDS and at == self._seen_at and self._checks_since < WHOLE_EVERY:
            return True
        self._seen_at, self._checks_since = at, 0
        return False

    def cut_program(self, by_helper: bool = False) -> None:
        """Prepare the function: a program of its leaf is about to be ended, for which it may wait.

        A function that waits for a lock waits for another thread, not for the program, so its result is not dropped.

        Args:
            by_helper: Whether a helper of the leaf has started the program. Then the function may wait for the helper.
        """
        if self.native is not None and connections.waits_for_a_lock(self.native):
            self._cut = self._cut or by_helper
            self.call.interrupt()
            self.interrupt()
        else:
            self.cut()

    def cut(self) -> None:
        """Prepare the function: something that it waits for is about to be ended.

        The next line of its own code raises, and what it returns is dropped.
        """
        self._cut = True
        self.call.interrupt(cut=True)

    def _unblocking(self, thread: int, frames: Mapping[int, FrameType]) -> Callable[[], object] | None:
        """A function that ends what the thread is blocked in, if there is something that may be ended."""
        for loop, task in _nested_loops(frames.get(thread)):
            if task not in self._main_tasks:
                self._main_tasks.append(task)
                return lambda: end_main_task(loop, task)
        if not self._owner.ends_connections or self.native is None:
            return None
        return connections.blocked_in(thread, self.native, frames)


def _nested_loops(frame: FrameType | None) -> "Iterator[tuple[asyncio.AbstractEventLoop, asyncio.Task[object]]]":
    """The event loops that the function itself runs (`asyncio.run`), each with its main task."""
    while frame is not None:
        if frame.f_globals.get("__name__") in ("asyncio.runners", "asyncio.base_events"):
            for name in ("task", "future"):
                task = frame.f_locals.get(name)
                if isinstance(task, asyncio.Task) and not task.done():
                    yield task.get_loop(), task
        frame = frame.f_back


class Sampler:
    """The thread that checks functions which are to be ended. It runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._works: dict[ThreadWork[object], None] = {}
        self._wake = threading.Event()
        self._running = False

    def add(self, work: ThreadWork[object]) -> None:
        """Check this function from now on."""
        with self._lock:
            work.due = 0.0
            self._works[work] = None
            start = not self._running
            self._running = True
        if start:
            threading.Thread(target=self._serve, name="safepoint-sampler", daemon=True).start()
        else:
            self._wake.set()

    def forget_thread(self) -> None:
        """Start afresh in a forked child, where neither this thread nor those of the functions exist."""
        self.__init__()  # type: ignore[misc]

    def _serve(self) -> None:
        while True:
            self._wake.clear()
            self._check(self._due())
            with self._lock:
                if not self._works:
                    self._running = False
                    return
                soonest = min(work.due for work in self._works)
            self._wake.wait(max(0.0, soonest - time.monotonic()))

    def _due(self) -> list[ThreadWork[object]]:
        now = time.monotonic()
        with self._lock:
            return [work for work in self._works if work.due <= now + work.pause * TOGETHER]

    def _check(self, works: list[ThreadWork[object]]) -> None:
        frames = connections.ThreadFrames(sys._current_frames() if works else {})
        now = time.monotonic()  # one time for all, so that functions that were checked together stay together
        for work in works:
            try:
                needs_more = work.check(frames)
            except Exception:
                log.exception("Checking a thread that is to be ended failed; it will be checked again")
                needs_more = True
            work.due = now + work.pause
            work.pause = min(LAST_SECONDS, work.pause * FACTOR)
            if not needs_more:
                with self._lock:
                    self._works.pop(work, None)
        frames.clear()


SAMPLER = Sampler()
os.register_at_fork(after_in_child=SAMPLER.forget_thread)
