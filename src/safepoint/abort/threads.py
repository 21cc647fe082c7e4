"""Owns running a synchronous function in a thread under a signal. Knows nothing of what the function does.

The threads are our own daemon threads, not the loop's executor: a function that ignores its signal keeps its thread,
and must neither take the place of the next one nor hold up the end of the program.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from .ambient import current_signal
from .guard import Guard, Scope, scope
from .resource_account import accounted
from .signal import AbortSignal

__all__ = ["AbandonedThreads", "abandoned_threads", "run_in_thread", "start_in_thread", "submit"]

log = logging.getLogger("safepoint")
T = TypeVar("T")

IDLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class AbandonedThreads:
    """What was left behind when its caller was aborted: functions still running, and late ends that were dropped."""

    running: int
    dropped: int


_abandoned: "dict[_Call[Any], bool]" = {}
_dropped: list[None] = []  # its length is the count: `append` is atomic where `+= 1` is not
_idle: "list[SimpleQueue[Callable[[], None]]]" = []


def abandoned_threads() -> AbandonedThreads:
    """How many functions go on although nobody waits for them, and how many late ends were dropped so far."""
    return AbandonedThreads(len(_abandoned), len(_dropped))


async def run_in_thread(fn: Callable[..., T], *args: object, signal: AbortSignal | None = None) -> T:
    """Run `fn(*args)` in a thread and await it. Without `signal` the ambient one counts.

    The function has the caller's context variables, and finds the signal with `current_signal()`. An abort ends the
    await at once; the function, which cannot be interrupted from here, is abandoned: its late end is dropped,
    counted and logged. It does not begin after the abort. Raises: AbortError, or what `fn` raised.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {type(fn).__name__}")
    signal = current_signal() if signal is None else signal
    call = _Call(accounted(fn), args, signal)
    with Guard(signal):
        submit(call.run)
        try:
            return await call.future
        except asyncio.CancelledError:  # ours or an outer one: nobody waits any more
            call.abandon()
            raise


def start_in_thread(fn: Callable[..., T], *args: object) -> "asyncio.Future[T]":
    """Run `fn(*args)` in a thread, deaf to the caller's signal: for functions that end by themselves."""
    call = _Call(fn, args, None)
    submit(call.run)
    return call.future


class _Call(Generic[T]):
    """One call on its way through a thread and back to its loop."""

    def __init__(self, fn: Callable[..., T], args: tuple[object, ...], signal: AbortSignal | None) -> None:
        self.fn = fn
        self.args = args
        self.signal = signal
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self._context = copy_context()
        if signal is not None:
            self._context.run(scope.set, Scope(signal, scope.get()))
        self._first: dict[None, str] = {}  # which came first: the function's end or the caller's leaving

    def run(self) -> None:
        """The thread's part."""
        value: T | None = None
        error: BaseException | None = None
        try:
            if self.signal is not None:
                self.signal.raise_if_aborted()
            value = self._context.run(self.fn, *self.args)
        except (StopIteration, asyncio.CancelledError) as raised:
            # On the way back these two would end the caller's loop or task instead of telling it.
            error = RuntimeError(f"{self.fn!r} raised {type(raised).__name__}")
            error.__cause__ = raised
        except BaseException as raised:
            error = raised
        if self._first.setdefault(None, "ended") == "left":
            self._drop()
            return
        try:
            self.loop.call_soon_threadsafe(self._deliver, value, error)
        except RuntimeError:
            log.debug("The loop that waited for %r is closed", self.fn)

    def abandon(self) -> None:
        """The caller's part, when it leaves before the result has reached it."""
        _abandoned[self] = True
        if self._first.setdefault(None, "left") == "ended":
            self._drop()

    def _deliver(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)

    def _drop(self) -> None:
        _abandoned.pop(self, None)
        _dropped.append(None)
        log.info("%r ended after its caller had been aborted; what it returned or raised is dropped", self.fn)


def submit(job: Callable[[], None]) -> None:
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=_work, args=(inbox,), name="safepoint-worker", daemon=True).start()
    inbox.put(job)


def _work(inbox: "SimpleQueue[Callable[[], None]]") -> None:
    while True:
        try:
            job = inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            try:
                _idle.remove(inbox)
            except ValueError:
                continue  # somebody has just taken this thread: its job is on the way
            return
        job()
        del job  # an idle thread holds on to nothing
        _idle.append(inbox)


def _forget_threads() -> None:
    """In a forked child none of them exists: a job given to an idle one would wait for ever."""
    _idle.clear()
    _abandoned.clear()


os.register_at_fork(after_in_child=_forget_threads)
