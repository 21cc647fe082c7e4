"""Owns the functions that run in a thread on a leaf's account: when one is interrupted, and how often one looks.

One thread, the sampler, looks after all of them, with one reading of all frames per look. It looks less and less often
at a function that does not react, so that hundreds of them cost next to nothing.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol, TypeVar

from ...abort.guard import end_main_task
from ..interrupt import AbortInterrupt, InterruptibleCall
from . import connections
from .programs import FORKS

__all__ = ["SAMPLER", "Sampler", "ThreadWork"]

log = logging.getLogger("safepoint")
T = TypeVar("T")

# The time between two looks: it grows by this factor, from the first to the last.
FIRST_SECONDS, LAST_SECONDS, FACTOR = 0.01, 0.25, 1.5
# Looks that are due this soon, as a share of their pause, are done together: with one reading of the frames.
TOGETHER = 0.25
# A function that has stood at one instruction for long, such as one that waits for a lock, is looked at as a whole only
# every so many looks: of the others it needs no more than to be found where it was.
WHOLE_EVERY = 8


class Owner(Protocol):
    """What a function in a thread asks of the account it is on."""

    @property
    def ends_connections(self) -> bool: ...

    @property
    def has_programs(self) -> bool: ...

    def end_programs(self) -> None:
        """End the programs that the leaf has started, if there are any."""
        ...


class ThreadWork:
    """One function while it runs in a thread."""

    def __init__(self, call: "InterruptibleCall[Any]", owner: Owner) -> None:
        self.call = call
        self.native: int | None = None  # the thread's native id, once it runs
        self._owner = owner
        self._patient = True  # it may still return by itself: only what it is blocked in is ended
        self._cut = False  # what it was blocked in, or waited for, was ended under it
        self._main_tasks: list[object] = []  # those of loops that it runs inside, told once each
        self.due = 0.0
        self.pause = FIRST_SECONDS
        self._seen_at: tuple[int, int] | None = None  # its innermost frame and instruction, at the last whole look
        self._looks_since = 0

    def run(self) -> Any:
        """Call the function, in this thread. Raises: what it raised; AbortInterrupt, if it was cut off and returned."""
        self.native = threading.get_native_id()
        try:
            value = self.call.run()
        finally:
            FORKS.find_here()  # what this thread starts from now on is somebody else's
        if self._cut:
            # Where the exception could not be raised in time, the function has gone on with half of what it wanted. At
            # least nobody takes what it made of that for whole.
            raise AbortInterrupt
        return value

    def runs_in(self, ident: int) -> bool:
        """Whether it runs in this thread, now."""
        return self.call.thread_id == ident and not self.call.ended

    def end(self) -> None:
        """From now on: end what it started and what it is blocked in. It is not interrupted while it runs by itself."""
        SAMPLER.add(self)

    def interrupt(self) -> None:
        """From now on: interrupt it too, as soon as that is safe."""
        self._patient = False
        self.pause = FIRST_SECONDS
        SAMPLER.add(self)

    def look(self, frames: Mapping[int, FrameType]) -> bool:
        """Do what can be done now. False: it has ended, nobody needs to look again."""
        call = self.call
        if call.ended:
            return False
        if call.thread_id is None or self.native is None:  # it has not begun
            return True
        if self._owner.has_programs:
            self._owner.end_programs()
        if call.interrupted:  # it knows; what it does from now on is its clean-up
            return False
        frame = frames.get(call.thread_id)
        if frame is None or self._has_not_moved(frame):
            return True
        if call.cleaning_up(frame):  # it is not freed from anything under a clean-up, and nothing is raised in it
            return True
        free = self._blocked(call.thread_id, frames)
        if free is None:
            if not self._patient:
                call.interrupt(frame=frame)
        elif not call.cleaning_up():  # the frames are those of the whole round: before anything is ended it asks again
            self.cut()
            free()
        return True

    def _has_not_moved(self, frame: FrameType) -> bool:
        """Whether the thread stands where it stood at the last whole look, and that was not long ago."""
        at = (id(frame), frame.f_lasti)
        self._looks_since += 1
        if self.pause >= LAST_SECONDS and at == self._seen_at and self._looks_since < WHOLE_EVERY:
            return True
        self._seen_at, self._looks_since = at, 0
        return False

    def cut_program(self, by_helper: bool = False) -> None:
        """A program of its leaf is about to be ended. A function that waits for another thread does not wait for it.

        Args:
            by_helper: A helper of the leaf has started the program. Then it may be the helper that is waited for.
        """
        if self.native is not None and connections.waits_for_a_lock(self.native):
            self._cut = self._cut or by_helper
            self.call.interrupt()
            self.interrupt()
        else:
            self.cut()

    def cut(self) -> None:
        """Something under it is about to be ended: from now on its next line raises, and what it returns is dropped."""
        self._cut = True
        self.call.interrupt(cut=True)

    def _blocked(self, thread: int, frames: Mapping[int, FrameType]) -> Callable[[], object] | None:
        for loop, task in _nested_loops(frames.get(thread), self.call):
            if task not in self._main_tasks:
                self._main_tasks.append(task)
                return lambda: end_main_task(loop, task)
        if not self._owner.ends_connections or self.native is None:
            return None
        return connections.blocked_in(thread, self.native, frames)


def _nested_loops(frame: FrameType | None, call: "InterruptibleCall[Any]") -> "Iterator[tuple[Any, asyncio.Task[Any]]]":
    """The event loops that the function runs inside itself (`asyncio.run`), each with its main task."""
    while frame is not None:
        if frame.f_globals.get("__name__") in ("asyncio.runners", "asyncio.base_events"):
            for name in ("task", "future"):
                task = frame.f_locals.get(name)
                if isinstance(task, asyncio.Task) and not task.done():
                    yield task.get_loop(), task
        frame = frame.f_back


class Sampler:
    """The thread that looks after functions which are to be ended. It lives while there are any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._works: dict[ThreadWork, None] = {}
        self._wake = threading.Event()
        self._running = False

    def add(self, work: ThreadWork) -> None:
        """Look after this function, from now on."""
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
        """In a forked child the thread does not exist, nor do those it looked after."""
        self.__init__()  # type: ignore[misc]

    def _serve(self) -> None:
        while True:
            self._wake.clear()
            self._look_at(self._due())
            with self._lock:
                if not self._works:
                    self._running = False
                    return
                soonest = min(work.due for work in self._works)
            self._wake.wait(max(0.0, soonest - time.monotonic()))

    def _due(self) -> list[ThreadWork]:
        now = time.monotonic()
        with self._lock:
            return [work for work in self._works if work.due <= now + work.pause * TOGETHER]

    def _look_at(self, works: list[ThreadWork]) -> None:
        frames = connections.Reading(sys._current_frames() if works else {})
        now = time.monotonic()  # one for all: those that were looked at together stay together
        for work in works:
            try:
                goes_on = work.look(frames)
            except Exception:
                log.exception("Looking at a thread that is to be ended failed; it is looked at again")
                goes_on = True
            work.due = now + work.pause
            work.pause = min(LAST_SECONDS, work.pause * FACTOR)
            if not goes_on:
                with self._lock:
                    self._works.pop(work, None)
        frames.clear()


SAMPLER = Sampler()
os.register_at_fork(after_in_child=SAMPLER.forget_thread)
