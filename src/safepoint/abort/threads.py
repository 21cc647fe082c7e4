"""Owns running a synchronous function in a thread under a signal. Knows nothing of what the function does.

The threads are daemon threads of this module, not those of the loop's executor. A function that ignores its signal
occupies its thread; it must neither block a place in a bounded pool nor delay the end of the program.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from .ambient import current_signal
from .event_loop import fail, post, resolve
from .guard import Guard, Scope, scope
from .resource_account import accounted
from .signal import AbortSignal

__all__ = [
    "AbandonedThreads",
    "abandoned_calls",
    "abandoned_threads",
    "idle_threads",
    "run_in_thread",
    "run_jobs",
    "start_in_thread",
    "submit",
    "thread_call",
]

log = logging.getLogger("safepoint")
T = TypeVar("T")

IDLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class AbandonedThreads:
    """How many functions were abandoned because their caller was aborted.

    Attributes:
        running: How many of them still run.
        dropped: How many have ended since, so that their results were dropped.
    """

    running: int
    dropped: int


_abandoned: dict[object, Callable[..., object]] = {}  # the function of each abandoned call
_dropped: list[None] = []  # its length is the count: `append` is atomic, `+= 1` is not
_idle: "list[SimpleQueue[Callable[[], object]]]" = []


def abandoned_threads() -> AbandonedThreads:
    """How many functions still run although their caller was aborted, and how many late results were dropped."""
    return AbandonedThreads(len(_abandoned), len(_dropped))


def abandoned_calls() -> dict[object, Callable[..., object]]:
    """The abandoned calls that still run, each with its function."""
    return dict(_abandoned)


def idle_threads() -> int:
    """How many threads of the pool wait for a call."""
    return len(_idle)


async def run_in_thread(fn: Callable[..., T], *args: object, signal: AbortSignal | None = None) -> T:
    """Run `fn(*args)` in a thread and await its result.

    The function has the caller's context variables, and finds the signal with `current_signal()`. An abort ends the
    await at once. The function cannot be interrupted from here: it is abandoned, and its late result is dropped,
    counted and logged. If it has not begun by the time of the abort, it does not run.

    Args:
        fn: The function.
        args: Its arguments.
        signal: The signal; by default the ambient one.

    Returns:
        What `fn` returned.

    Raises:
        AbortError: The signal was aborted.
        Exception: Whatever `fn` raised.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {type(fn).__name__}")
    signal = current_signal() if signal is None else signal
    call = _Call(accounted(fn), args, signal)
    with Guard(signal):
        submit(call.run)
        try:
            return await call.future
        except asyncio.CancelledError:  # by the guard or from outside: either way the caller leaves
            call.abandon()
            raise


def start_in_thread(fn: Callable[..., T], *args: object) -> "asyncio.Future[T]":
    """Run `fn(*args)` in a thread, without the caller's signal: for functions that end by themselves."""
    run, future = thread_call(fn, *args)
    submit(run)
    return future


def thread_call(fn: Callable[..., T], *args: object) -> "tuple[Callable[[], None], asyncio.Future[T]]":
    """Prepare a call of `fn(*args)` in another thread.

    Returns:
        A function that makes the call, for that thread; and the future of its result, in the running event loop. The
        call is made even if the future is cancelled, and its result is dropped then.
    """
    call = _Call(fn, args, None)
    return call.run, call.future


class _Call(Generic[T]):
    """One call of a function in a thread.

    The end of the function (in the thread) and the leaving of its caller (in the loop) can happen at once. `_first` is
    a dict because `setdefault` is atomic: both sides write, and both read who was first. If the function ended first,
    its result is delivered to the loop, and a caller that leaves before it arrives drops it. If the caller left first,
    the thread drops the result. In both orders the call is removed from `_abandoned` exactly once, because `abandon`
    adds it before it writes to `_first`.
    """

    def __init__(self, fn: Callable[..., T], args: tuple[object, ...], signal: AbortSignal | None) -> None:
        self.fn = fn
        self.args = args
        self.signal = signal
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self._context = copy_context()
        if signal is not None:
            self._context.run(scope.set, Scope(signal, scope.get()))
        self._first: dict[None, str] = {}  # "ended" or "left", whichever came first

    def run(self) -> None:
        """Call the function. Runs in the thread."""
        deliver: Callable[[asyncio.Future[T]], None]
        try:
            if self.signal is not None:
                self.signal.raise_if_aborted()
            deliver = partial(resolve, value=self._context.run(self.fn, *self.args))
        except (StopIteration, asyncio.CancelledError) as raised:
            # A future does not accept StopIteration, and CancelledError would look like a cancellation of the caller.
            deliver = partial(fail, error=_replacement(self.fn, raised))
        except BaseException as raised:
            deliver = partial(fail, error=raised)
        if self._first.setdefault(None, "ended") == "left":
            self._drop()
        elif not post(self.loop, deliver, self.future):
            log.debug("The loop that waited for %r is closed", self.fn)
        # The traceback of an exception refers to this frame: through its variables, the exception would refer to itself
        # and to its future, and all of it would stay alive until the garbage collector runs.
        del self, deliver

    def abandon(self) -> None:
        """Leave before the result has arrived. Runs in the caller's loop."""
        _abandoned[self] = self.fn
        if self._first.setdefault(None, "left") == "ended":
            self._drop()

    def _drop(self) -> None:
        _abandoned.pop(self, None)
        _dropped.append(None)
        log.info("%r ended after its caller had been aborted; what it returned or raised is dropped", self.fn)


def _replacement(fn: object, raised: BaseException) -> RuntimeError:
    error = RuntimeError(f"{fn!r} raised {type(raised).__name__}")
    error.__cause__ = raised
    return error


def submit(job: Callable[[], object]) -> None:
    """Run the job in an idle thread of the pool, or in a new one."""
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=run_jobs, args=(inbox,), name="safepoint-worker", daemon=True).start()
    inbox.put(job)


def run_jobs(inbox: "SimpleQueue[Callable[[], object]]", idle_seconds: float = IDLE_SECONDS) -> None:
    """Run one thread of the pool: the jobs that are put into its inbox, until it was idle for `idle_seconds`."""
    while True:
        try:
            job = inbox.get(timeout=idle_seconds)
        except Empty:
            try:
                _idle.remove(inbox)
            except ValueError:
                continue  # `submit` has just taken this thread, and is about to put a job into the inbox
            return
        job()
        del job  # so that an idle thread keeps nothing alive
        _idle.append(inbox)


def _forget_threads() -> None:
    """Forget all threads, which do not exist in a forked child: a job given to one of them would never run."""
    _idle.clear()
    _abandoned.clear()


os.register_at_fork(after_in_child=_forget_threads)
