"""Owns the threads that run callbacks of a clock's timers, so that one which blocks delays no other. Knows no timers.

Callbacks run in the order in which they were posted, one after the other, on one thread. If one has not returned after
`BLOCKED_SECONDS`, a new thread goes on with the next one, and the old thread ends when its callback returns. So a
thousand quick callbacks need one thread, and a callback that blocks costs a thread but holds up nothing. One that has
not returned after `WARN_SECONDS` is named in a warning.

Threads blocked in callbacks cannot watch themselves. The timer thread watches them: it alone calls `post` and `look`.
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

__all__ = ["Callback", "CallbackThreads", "call", "log_failure"]

log = logging.getLogger("safepoint")
Callback: TypeAlias = Callable[[], object]

BLOCKED_SECONDS = 0.02
WARN_SECONDS = 1.0
_FOLDER = os.path.dirname(__file__) + os.sep


class _Worker:
    """One callback thread, and the callback that it runs now."""

    __slots__ = ("began", "callback", "thread_id", "turn", "warned")

    def __init__(self) -> None:
        # Holds one item while a callback runs: the right to run the next callback. `pop()` is atomic, so exactly one
        # of two gets it: this thread, when its callback returns, or the timer thread, which starts another thread.
        self.turn: list[None] = []
        self.began: float | None = None  # None: no callback runs
        self.callback: Callback | None = None
        self.thread_id = 0
        self.warned = False


class CallbackThreads:
    """Runs what is posted, in order. Neither `post` nor `look` waits for a callback."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Iterator[Callback]] = SimpleQueue()
        self._posted = 0  # changed by the timer thread only
        self._finished = 0  # changed only by the thread whose turn it is, as is `_job`
        self._job: Iterator[Callback] | None = None
        self._worker: _Worker | None = None  # None: there is no thread yet, or the last one could not be started
        self._blocked: list[_Worker] = []
        self._reporting = False

    def post(self, job: Iterable[Callback]) -> None:
        """Call each of these, one after the other; the next one is taken only when it is to be called."""
        self._posted += 1
        self._jobs.put(iter(job))

    def look(self, now: float) -> float:
        """Let another thread go on where one is blocked; warn of those blocked for long.

        Returns:
            When to look again. `inf`: nothing runs, or only what has been warned of.
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
        # The more threads are blocked already, the sooner the next one counts as blocked. Otherwise 200 callbacks that
        # all block would have to wait for each other, the last one for 200 times the patience.
        return BLOCKED_SECONDS / (1 + len(self._blocked))

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
            worker.callback = None  # dropped while it is watched: this may run somebody's `__del__`
            worker.began = None
            if not _take(worker.turn):
                return  # it took too long: another thread has gone on

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
                # Logging may block, so it is a callback like any other.
                self._job = iter([partial(log_failure, self._job, error)])

    def _warn(self, now: float) -> float:
        due = [worker for worker in self._blocked if not worker.warned and _runs_for(worker, now) >= WARN_SECONDS]
        # On a thread of its own, as logging may be the very thing that blocks; on one at a time for the same reason.
        if due and not self._reporting:
            self._reporting = True  # before it starts: it says itself when it has ended
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
                what = _describe(callback, sys._current_frames().get(worker.thread_id))
                if worker.began is not None:  # looked at last: what was read before is of this callback
                    log.warning(
                        "A timer's callback or an abort listener has not returned for %g s: %s. Other timers go on"
                        " without it, but it keeps a thread. It should not block: see docs/signal.md",
                        WARN_SECONDS,
                        what,
                    )
        finally:
            self._reporting = False


def call(callback: Callback) -> None:
    """Call it. What it raises is logged: the thread outlives the mistakes of those who gave it something to call."""
    try:
        callback()
    except BaseException as error:
        with suppress(BaseException):  # a logging handler that fails as well: there is nobody left to tell
            log_failure(callback, error)


def log_failure(callback: object, error: BaseException) -> None:
    """Log what a timer's callback raised."""
    log.error("A timer's callback failed: %r", callback, exc_info=error)


def _take(turn: list[None]) -> bool:
    try:
        turn.pop()
    except IndexError:
        return False
    return True


def _started(target: Callback, name: str) -> bool:
    """False: the system has no thread to give; whoever asked tries again later."""
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _runs_for(worker: _Worker, now: float) -> float:
    """For how many seconds its callback runs; 0 when it runs none."""
    began = worker.began
    return 0.0 if began is None else now - began


def _describe(callback: Callback | None, innermost: FrameType | None) -> str:
    """The function that was called, the line it has reached, and the line of what it has called."""
    frames = []  # from the inside out, up to the loop of the callback thread
    frame = innermost
    while frame is not None and frame.f_code is not CallbackThreads._serve.__code__:
        frames.append(frame)
        frame = frame.f_back
    # Between that loop and somebody's function stands only what is in this folder, such as `Registration.run`.
    outside = [frame for frame in frames if not frame.f_code.co_filename.startswith(_FOLDER)]
    if not outside:
        return repr(callback)
    function, inner = outside[-1], frames[0]
    told = f"{function.f_code.co_qualname} at {_place(function)}"
    return told if inner is function else f"{told} (in {_place(inner)} in {inner.f_code.co_name})"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
