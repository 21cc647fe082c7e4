"""Owns the threads that run the callbacks of a clock's timers, so that a callback that blocks delays no other.

Callbacks run one after the other on one thread, in the order in which they were posted. If one has not returned after
`blocked_seconds`, a new thread continues with the next one, and the old thread ends when its callback returns. So a
thousand quick callbacks need one thread, and a callback that blocks costs one thread but delays nothing. A callback
that has not returned after `WARN_SECONDS` is named in a warning.

A thread that is blocked in a callback cannot watch itself. The timer thread does that: it alone calls `post` and
`look`, so their state needs no lock. Between the timer thread and a callback thread there is one race, when a callback
returns at the moment at which its thread counts as blocked. Both then try to take the one item of `_Worker.turn` with
`pop()`, which is atomic. Exactly one gets it and runs the next callback: the callback thread continues, or the timer
thread starts a new thread and the old one ends. Two threads would run callbacks out of order, none would stop them all.
"""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import TypeAlias

__all__ = ["BLOCKED_SECONDS", "Callback", "CallbackThreads", "call", "log_failure"]

log = logging.getLogger("safepoint")
Callback: TypeAlias = Callable[[], object]

BLOCKED_SECONDS = 0.02
WARN_SECONDS = 1.0
_FOLDER = os.path.dirname(__file__) + os.sep


class _Worker:
    """One callback thread and the callback that it is running."""

    __slots__ = ("began", "callback", "thread_id", "turn", "warned")

    def __init__(self) -> None:
        # Holds one item while a callback runs: the right to run the next callback.
        self.turn: list[None] = []
        self.began: float | None = None  # None while no callback runs
        self.callback: Callback | None = None
        self.thread_id = 0
        self.warned = False


class CallbackThreads:
    """Runs the posted callbacks in order. Neither `post` nor `look` waits for a callback.

    Args:
        blocked_seconds: After how long a callback counts as blocked.
    """

    def __init__(self, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._blocked_seconds = blocked_seconds
        self._jobs: SimpleQueue[Iterator[Callback]] = SimpleQueue()
        self._posted = 0  # changed by the timer thread only
        self._finished = 0  # changed only by the thread whose turn it is, as is `_job`
        self._job: Iterator[Callback] | None = None
        self._worker: _Worker | None = None  # None if no thread was started yet, or the last one could not be started
        self._blocked: list[_Worker] = []
        self._reporting = False

    def post(self, job: Iterable[Callback]) -> None:
        """Run these callbacks one after the other. Each is taken from the iterable only when it is about to run."""
        self._posted += 1
        self._jobs.put(iter(job))

    def look(self, now: float) -> float:
        """Start a new thread if the current one is blocked, and warn of callbacks that block for long.

        Args:
            now: The time, by `time.monotonic()`.

        Returns:
            The time of the next look; `inf` if nothing runs but callbacks that were already reported.
        """
        self._blocked = [worker for worker in self._blocked if worker.began is not None]
        worker = self._worker
        if worker is not None and _runs_for(worker, now) >= self._patience and _take(worker.turn):
            self._blocked.append(worker)
            worker = self._worker = None
        if worker is None and self._busy:
            self._start()
        next_look = now + self._patience if self._busy else math.inf
        return min(next_look, self._warn(now))

    @property
    def _busy(self) -> bool:
        return self._posted != self._finished

    @property
    def _patience(self) -> float:
        # The more threads are blocked, the sooner the next one counts as blocked. With a constant limit, the last of
        # 200 callbacks that all block would start after 200 times that limit.
        return self._blocked_seconds / (1 + len(self._blocked))

    def _start(self) -> None:
        worker = _Worker()
        if _started(partial(self._serve, worker), "safepoint-callbacks"):
            self._worker = worker

    def _serve(self, worker: _Worker) -> None:
        worker.thread_id = threading.get_ident()
        while True:
            worker.callback = self._next()
            worker.turn.append(None)
            worker.began = time.monotonic()
            call(worker.callback)
            worker.callback = None  # while `began` is still set: this may run a `__del__` that blocks
            worker.began = None
            if not _take(worker.turn):
                return  # the callback took too long, and another thread has continued

    def _next(self) -> Callback:
        while True:
            if self._job is None:
                self._job = self._jobs.get()
            try:
                return next(self._job)
            except StopIteration:
                self._job = None
                self._finished += 1
            except BaseException as error:
                # Logging may block, so it runs as a callback, too.
                self._job = iter([partial(log_failure, self._job, error)])

    def _warn(self, now: float) -> float:
        due = [worker for worker in self._blocked if not worker.warned and _runs_for(worker, now) >= WARN_SECONDS]
        # Logging may be what blocks, so warnings have a thread of their own, and no more than one at a time.
        if due and not self._reporting:
            self._reporting = True  # set before the start: the thread itself resets it
            if _started(partial(self._report, due), "safepoint-watchdog"):
                for worker in due:
                    worker.warned = True
            else:
                self._reporting = False
        return math.inf if all(worker.warned for worker in self._blocked) else now + WARN_SECONDS / 4

    def _report(self, workers: list[_Worker]) -> None:
        try:
            for worker in workers:
                callback = worker.callback
                description = _describe(callback, sys._current_frames().get(worker.thread_id))
                if worker.began is not None:  # checked last: the description is of a callback that still runs
                    log.warning(
                        "A timer's callback or an abort listener has not returned for %g s: %s. Other timers continue"
                        " without it, but it occupies a thread. It should not block: see docs/signal.md",
                        WARN_SECONDS,
                        description,
                    )
        finally:
            self._reporting = False


def call(callback: Callback) -> None:
    """Run the callback and log what it raises, so that its thread survives."""
    try:
        callback()
    except BaseException as error:
        with suppress(BaseException):  # the logging handler failed, too: there is no way left to report it
            log_failure(callback, error)


def log_failure(callback: object, error: BaseException) -> None:
    """Log the error that a timer's callback raised."""
    log.error("A timer's callback failed: %r", callback, exc_info=error)


def _take(turn: list[None]) -> bool:
    try:
        turn.pop()
    except IndexError:
        return False
    return True


def _started(target: Callback, name: str) -> bool:
    """Start a daemon thread. False if the system has no thread available; the caller tries again later."""
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _runs_for(worker: _Worker, now: float) -> float:
    """For how many seconds the worker's callback has been running; 0 if it runs none."""
    began = worker.began
    return 0.0 if began is None else now - began


def _describe(callback: Callback | None, innermost: FrameType | None) -> str:
    """The function that was called and the line it has reached, and the innermost line below it."""
    frames = []  # from the inside out, up to the loop of the callback thread
    frame = innermost
    while frame is not None and frame.f_code is not CallbackThreads._serve.__code__:
        frames.append(frame)
        frame = frame.f_back
    # Between that loop and the user's function there are only frames of this folder, such as `Registration.run`.
    outside = [frame for frame in frames if not frame.f_code.co_filename.startswith(_FOLDER)]
    if not outside:
        return repr(callback)
    function, inner = outside[-1], frames[0]
    text = f"{function.f_code.co_qualname} at {_place(function)}"
    return text if inner is function else f"{text} (in {_place(inner)} in {inner.f_code.co_name})"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
