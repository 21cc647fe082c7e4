"""Owns the event loop of one run: it shows every suspension, jumps over fake time, and does not hang forever.

**Suspensions.** Tasks are asyncio's own; only the coroutine that a task drives is wrapped. So `current_task()`,
cancellation, context variables and the attributes that guards read of a task are unchanged. When the coroutine yields,
the wrapper reports a suspension at that moment, before the task knows the future it waits for.

**Jumps of fake time.** Time may jump only when nothing else can make progress: no callback is ready, no descriptor is
readable, and nothing outside of the loop may still wake it (`pending.py`). `_Selector.select` checks that in
this order, and looks at descriptors and callbacks once more after the check of the outside: a thread may have sent its
result and only then become idle. Without the second look, time would jump over that result, and a timeout would fire
that never fires in real time.

Knows nothing of what is done at a suspension.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Never, TypeAlias, TypeVar

from ..clock import FakeClock
from .chain import place, short, suspended
from .left import Leftover, name_of_function, place_of_function
from .pending import STILL_SECONDS, DescriptorEnd, OutsideActivity

__all__ = ["CoroutineDriver", "Hang", "OnSuspension", "RunLoop"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
AnyAsyncGenerator: TypeAlias = AsyncGenerator[object, Never]
POLL_SECONDS = 0.01
TURNS = 16


class Hang(BaseException):
    """The run has reached its time limit, or nothing can ever wake its loop.

    It is not an Exception, so that the code under test does not catch it by chance.
    """


class CoroutineDriver(Coroutine[object, object, T_co]):
    """A coroutine that runs another one for a task, and reports each suspension at the moment it happens.

    Args:
        coroutine: The coroutine to run.
        on_suspension: Called when it has yielded, while its task is still the current one.
    """

    __slots__ = ("coroutine", "on_suspension", "role")

    def __init__(self, coroutine: Coroutine[object, object, T_co], on_suspension: "OnSuspension") -> None:
        self.coroutine = coroutine
        self.on_suspension = on_suspension
        self.role = ""

    def send(self, value: object) -> object:
        waits_for = self.coroutine.send(value)
        self.on_suspension(self)
        return waits_for

    def throw(self, *error: Any) -> object:  # Any: the argument forms of `throw` are overloads
        waits_for = self.coroutine.throw(*error)
        self.on_suspension(self)
        return waits_for

    def close(self) -> None:
        self.coroutine.close()

    def __await__(self) -> Generator[object, None, T_co]:
        return self.coroutine.__await__()

    def __getattr__(self, name: str) -> object:
        return getattr(self.coroutine, name)  # cr_frame, cr_await, __qualname__ and others, for introspection


OnSuspension: TypeAlias = Callable[[CoroutineDriver[object]], object]


class RunLoop(asyncio.SelectorEventLoop):
    """The event loop of one run. With a fake clock, its time is that of the clock, and jumps when everything waits.

    Args:
        clock: The fake clock; None for real time.
        seconds: The limit of real time, as for `allow()`.
        ignored: Whether a thread shall not hold up fake time.
        still: After how many seconds without a move something outside the loop does not hold up fake time any more.
    """

    def __init__(
        self,
        clock: FakeClock | None,
        seconds: float,
        ignored: Callable[[Leftover], bool] = lambda thing: False,
        *,
        still: float = STILL_SECONDS,
    ) -> None:
        self.clock = clock
        self.outside = OutsideActivity(ignored, still=still)
        self.jumped_over: dict[str, None] = {}  # what had not moved for some time when fake time jumped
        self.finalised: list[Leftover] = []
        self.blocking = False
        self.time_is_held_up = False  # fake time could not jump when the loop last had nothing to do
        self._selector_of_run = _Selector(self)
        self.allow(seconds)
        super().__init__(self._selector_of_run)
        if clock is not None:
            clock.on_wait = self._write_to_self  # type: ignore[attr-defined]  # wakes the loop: time may jump now

    def allow(self, seconds: float) -> None:
        """Set the limit of real time from now on, after which the running loop raises `Hang`."""
        self.seconds = seconds
        self.ends_at = time.monotonic() + seconds

    def show_suspensions(self, on_suspension: OnSuspension) -> None:
        """Report the suspensions of all tasks that are started from now on."""

        def start(
            loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, T], **options: Any
        ) -> "asyncio.Task[T]":
            return asyncio.Task(CoroutineDriver(coroutine, on_suspension), loop=loop, **options)

        self.set_task_factory(start)  # type: ignore[arg-type]  # it is never given a generator

    @property
    def has_ready_callbacks(self) -> bool:
        """Whether a callback will run in the next turn."""
        return bool(self._ready)  # type: ignore[attr-defined]

    @property
    def wakeup_descriptor(self) -> int:
        """The descriptor of its wake-up pipe."""
        descriptor: int = self._ssock.fileno()  # type: ignore[attr-defined]
        return descriptor

    def time(self) -> float:
        return super().time() if self.clock is None else self.clock.monotonic()

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        # In the loop's own thread, while it does not block, there is no need to wake it through the pipe.
        if threading.get_ident() == self._thread_id and not self.blocking:  # type: ignore[attr-defined]
            return self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: object) -> "asyncio.Future[T]":
        running, call = self.outside.running, object()

        def counted() -> T:
            running[call] = threading.get_ident()
            try:
                return func(*args)
            finally:
                running.pop(call, None)

        running[call] = None
        future = super().run_in_executor(executor, counted)
        # A call that is cancelled before it has begun never runs.
        future.add_done_callback(lambda done: running.pop(call, None) if running.get(call, 0) is None else None)
        return future

    @property
    def in_executor(self) -> int:
        """The number of calls in executors that have not ended."""
        return len(self.outside.running)

    def forget_executor(self) -> None:
        """Forget the default executor, so that closing the loop does not wait for its threads."""
        executor, self._default_executor = self._default_executor, None  # type: ignore[has-type]
        if executor is not None:
            executor.shutdown(wait=False)

    def _asyncgen_finalizer_hook(self, agen: AnyAsyncGenerator) -> None:
        self.finalised.append(describe_generator(agen))
        super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]  # private, but there is no public hook

    def open_generators(self) -> list[Leftover]:
        """The async generators that have begun and neither ended nor were closed."""
        alive = [agen for agen in list(self._asyncgens) if agen.ag_frame is not None]  # type: ignore[attr-defined]
        return [*self.finalised, *sorted(map(describe_generator, alive))]

    def armed_timers(self) -> list[Leftover]:
        """The timers of the loop and of its fake clock that would still fire."""
        armed = [describe_timer(handle) for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        pending = 0 if self.clock is None else self.clock.pending
        return [*armed, *([Leftover(f"{pending} of the fake clock", "fake clock")] if pending else [])]

    def others_pending(self) -> bool:
        """Whether something outside the loop may still wake it, so that fake time must not jump."""
        return self.outside.pending(self._descriptors(), self._transports)  # type: ignore[attr-defined]

    def _descriptors(self) -> list[int]:
        """The descriptors that the loop waits for, without its own wake-up pipe."""
        own = self.wakeup_descriptor
        return [key.fd for key in self._selector_of_run.get_map().values() if key.fd != own]

    def next_timer(self) -> float | None:
        """The time of the next timer of the loop or of its fake clock, or None."""
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if self.clock is not None and (due := self.clock.next_timer()) is not None:
            times.append(due)
        return min(times, default=None)

    def jump(self) -> bool:
        """Move the fake clock to the next timer.

        Returns:
            True if the clock was moved. False if there is no timer, but something outside may still wake the loop.

        Raises:
            Hang: Nothing can ever wake the loop.
        """
        assert self.clock is not None
        due = self.next_timer()
        if due is not None:
            self.jumped_over.update(dict.fromkeys(each.describe() for each in self.outside.resting))
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
        elif not self.outside.resting and not self._descriptors():
            text = "nothing can ever wake it: no timer, no I/O and no thread is pending"
            raise Hang("\n".join([text, *(f"  {each} waits without a limit" for each in self.outside.waiting())]))
        return due is not None

    def out_of_time(self) -> Hang:
        """The error for a run that has taken too long. It names what has held up fake time, if anything."""
        text = f"it did not end within {self.seconds:g} s"
        if not self.time_is_held_up:
            return Hang(text)
        why = [each.describe() for each in (*self.outside.moving, *self.outside.resting)]
        if self.next_timer() is None:
            text += "; no timer is armed, so that only these could still wake it:"
            why += [DescriptorEnd(fd).describe() for fd in self._descriptors()]
        else:
            text += "; fake time stood still, because these may still wake it"
            text += " (a thread that is older than the scenario, or ignored, does not hold it up):"
        return Hang("\n".join([text, *(f"  {each}" for each in dict.fromkeys(why))]))


class _Selector(selectors.DefaultSelector):
    """The selector of a `RunLoop`. It is called where the loop would block, so it checks the time limit and jumps."""

    def __init__(self, loop: RunLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        remaining = loop.ends_at - time.monotonic()
        if remaining <= 0:
            raise loop.out_of_time()
        busy = timeout is not None and timeout <= 0
        loop.time_is_held_up = loop.time_is_held_up and not busy
        self._turns += 1
        if busy and self._turns % TURNS and len(self.get_map()) == 1:
            return []  # only signals come through the loop's own pipe, and they can wait for a few turns
        ready = super().select(0)
        if busy or ready:
            return self._noted(ready, busy)
        if loop.clock is None:
            return self._block(remaining if timeout is None else min(timeout, remaining))
        if not loop.others_pending():
            ready = super().select(0)
            if ready or loop.has_ready_callbacks:  # a thread sent something, and only then became idle
                return self._noted(ready, False)
            if loop.jump():
                loop.time_is_held_up = False
                return []
        loop.time_is_held_up = True
        return self._noted(self._block(min(POLL_SECONDS, remaining)), False)

    def _noted(
        self, ready: list[tuple[selectors.SelectorKey, int]], busy: bool
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Count it as activity of the loop, unless only a thread has begun to wait for fake time."""
        loop = self._loop
        if busy or loop.has_ready_callbacks or any(key.fd != loop.wakeup_descriptor for key, _ in ready):
            loop.outside.activity += 1
            loop.time_is_held_up = False
        return ready

    def _block(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        loop.blocking = True
        try:  # a signal handler may have added a callback before `blocking` was set
            return super().select(0 if loop.has_ready_callbacks else seconds)
        finally:
            loop.blocking = False


def describe_generator(agen: AnyAsyncGenerator) -> Leftover:
    """The name of an async generator and the line that it has reached."""
    chain = suspended(agen)
    file, line = place(chain[:1])
    name = agen.__qualname__  # type: ignore[attr-defined]  # typeshed does not know it
    return Leftover(f"{name} at {short(file)}:{line}", name, f"{short(file)}:{line}")


def describe_timer(handle: asyncio.TimerHandle) -> Leftover:
    """A timer as the loop shows it, named after its callback."""
    callback = getattr(handle, "_callback", None)
    return Leftover(repr(handle), name_of_function(callback).partition(" (")[0], place_of_function(callback))
