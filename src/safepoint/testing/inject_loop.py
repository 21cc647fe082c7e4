"""Owns the event loop of one run: it shows every suspension, jumps over fake time, and does not hang for ever.

Knows nothing of what is done at a suspension. Tasks are asyncio's own; only the coroutine they drive is wrapped, so
`current_task()`, cancellation, context variables and what guards read of a task are what they always are.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeAlias, TypeVar

from .clock import FakeClock
from .inject_chain import place, short, suspended
from .inject_left import Leftover, name_of_function, place_of_function
from .inject_pending import DescriptorEnd, OutsideActivity

__all__ = ["CoroutineDriver", "Hang", "RunLoop", "SawSuspension"]

T = TypeVar("T")
POLL_SECONDS = 0.01
TURNS = 16


class Hang(BaseException):
    """The loop has run out of time, or nothing can ever wake it. Not an Exception: nobody may catch it by chance."""


class CoroutineDriver(Coroutine[Any, Any, T]):
    """Stands between a task and its coroutine, and tells of each suspension at the moment it happens."""

    __slots__ = ("coroutine", "role", "saw")

    def __init__(self, coroutine: Coroutine[Any, Any, T], saw: "SawSuspension") -> None:
        self.coroutine = coroutine
        self.saw = saw
        self.role = ""

    def send(self, value: Any) -> Any:
        waits_for = self.coroutine.send(value)
        self.saw(self)
        return waits_for

    def throw(self, *error: Any) -> Any:
        waits_for = self.coroutine.throw(*error)
        self.saw(self)
        return waits_for

    def close(self) -> None:
        self.coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coroutine, name)  # cr_frame, cr_await, __qualname__: what inspection asks for


SawSuspension: TypeAlias = Callable[[CoroutineDriver[Any]], object]


class RunLoop(asyncio.SelectorEventLoop):
    """A loop for one run. With a fake clock its time is the clock's, and jumps when everybody waits."""

    def __init__(
        self, clock: FakeClock | None, seconds: float, ignored: Callable[[Leftover], bool] = lambda thing: False
    ) -> None:
        self.clock = clock
        self.outside = OutsideActivity(ignored)
        self.jumped_over: dict[str, None] = {}  # what had not moved for long when time jumped nevertheless
        self.finalised: list[Leftover] = []
        self.blocking = False
        self.stands = False  # fake time could not jump when the loop last had nothing to do
        self._selector_of_run = _Selector(self)
        self.allow(seconds)
        super().__init__(self._selector_of_run)
        if clock is not None:
            clock.on_wait = self._write_to_self  # type: ignore[attr-defined]  # so that it looks whether time may jump

    def allow(self, seconds: float) -> None:
        """From here on this much real time, then `Hang` comes out of the running loop."""
        self.seconds = seconds
        self.ends_at = time.monotonic() + seconds

    def show_suspensions(self, saw: SawSuspension) -> None:
        """From here on every task that is started tells of its suspensions."""

        def start(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
            return asyncio.Task(CoroutineDriver(coroutine, saw), loop=loop, **options)

        self.set_task_factory(start)

    def time(self) -> float:
        return super().time() if self.clock is None else self.clock.monotonic()

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed's variadic types
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        # From the loop's own thread, while it does not block, nobody needs to be woken through the pipe.
        if threading.get_ident() == self._thread_id and not self.blocking:  # type: ignore[attr-defined]
            return self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]  # as above
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        running, call = self.outside.running, object()

        def counted() -> T:
            running[call] = threading.get_ident()
            try:
                return func(*args)
            finally:
                running.pop(call, None)

        running[call] = None
        future = super().run_in_executor(executor, counted)
        # One that is cancelled before it has begun never runs.
        future.add_done_callback(lambda done: running.pop(call, None) if running.get(call, 0) is None else None)
        return future

    @property
    def in_executor(self) -> int:
        """How many calls in executors have not ended."""
        return len(self.outside.running)

    def forget_executor(self) -> None:
        """Do not wait for the threads of `run_in_executor` at the end."""
        executor, self._default_executor = self._default_executor, None  # type: ignore[has-type]
        if executor is not None:
            executor.shutdown(wait=False)

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self.finalised.append(describe_generator(agen))
        super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]  # private, and the only way to see it

    def open_generators(self) -> list[Leftover]:
        """The async generators that were begun and neither ended nor were closed."""
        alive = [agen for agen in list(self._asyncgens) if agen.ag_frame is not None]  # type: ignore[attr-defined]
        return [*self.finalised, *sorted(map(describe_generator, alive))]

    def armed_timers(self) -> list[Leftover]:
        """Timers of the loop and of its fake clock that would still fire."""
        armed = [describe_timer(handle) for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        pending = 0 if self.clock is None else self.clock.pending
        return [*armed, *([Leftover(f"{pending} of the fake clock", "fake clock")] if pending else [])]

    def others_pending(self) -> bool:
        """True: something outside the loop may still wake it, so that time may not jump."""
        return self.outside.pending(self._descriptors(), self._transports)  # type: ignore[attr-defined]

    def _descriptors(self) -> list[int]:
        """What it waits for, without its own wake-up pipe."""
        own = self._ssock.fileno()  # type: ignore[attr-defined]
        return [key.fd for key in self._selector_of_run.get_map().values() if key.fd != own]

    def next_timer(self) -> float | None:
        """When the next timer of the loop or of its fake clock is due."""
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if self.clock is not None and (due := self.clock.next_timer()) is not None:
            times.append(due)
        return min(times, default=None)

    def jump(self) -> bool:
        """Move the fake clock to the next timer. False: there is none, but something outside may wake the loop yet.

        Raises:
            Hang: Nothing can ever wake it.
        """
        assert self.clock is not None
        due = self.next_timer()
        if due is not None:
            self.jumped_over.update(dict.fromkeys(each.words() for each in self.outside.still))
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
        elif not self.outside.still and not self._descriptors():
            text = "nothing can ever wake it: no timer, no I/O and no thread is pending"
            raise Hang("\n".join([text, *(f"  {each} waits without a limit" for each in self.outside.waiting())]))
        return due is not None

    def out_of_time(self) -> Hang:
        """The run has taken too long; and if fake time stands still, because of what."""
        text = f"it did not end within {self.seconds:g} s"
        if not self.stands:
            return Hang(text)
        why = [each.words() for each in (*self.outside.moving, *self.outside.still)]
        if self.next_timer() is None:
            text += "; no timer is armed, so that only these could still wake it:"
            why += [DescriptorEnd(fd).words() for fd in self._descriptors()]
        else:
            text += "; fake time stood still, because these may still wake it"
            text += " (a thread that is older than the scenario, or ignored, does not hold it up):"
        return Hang("\n".join([text, *(f"  {each}" for each in dict.fromkeys(why))]))


class _Selector(selectors.DefaultSelector):
    """Where the loop would block: the place to look at the time, and to jump."""

    def __init__(self, loop: RunLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        left = loop.ends_at - time.monotonic()
        if left <= 0:
            raise loop.out_of_time()
        busy = timeout is not None and timeout <= 0
        loop.stands = loop.stands and not busy
        self._turns += 1
        if busy and self._turns % TURNS and len(self.get_map()) == 1:
            return []  # only signals could have come through the loop's own pipe: they can wait for a few turns
        ready = super().select(0)
        if busy or ready:
            return self._noted(ready, busy)
        if loop.clock is None:
            return self._block(left if timeout is None else min(timeout, left))
        if not loop.others_pending():
            ready = super().select(0)
            if ready or loop._ready:  # type: ignore[attr-defined]  # a thread had news, and only then became idle
                return self._noted(ready, False)
            if loop.jump():
                loop.stands = False
                return []
        loop.stands = True
        return self._noted(self._block(min(POLL_SECONDS, left)), False)

    def _noted(
        self, ready: list[tuple[selectors.SelectorKey, int]], busy: bool
    ) -> list[tuple[selectors.SelectorKey, int]]:
        """Count it as activity of the loop, unless only a thread has begun to wait for fake time."""
        loop = self._loop
        own = loop._ssock.fileno()  # type: ignore[attr-defined]
        if busy or loop._ready or any(key.fd != own for key, _ in ready):  # type: ignore[attr-defined]
            loop.outside.activity += 1
            loop.stands = False
        return ready

    def _block(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        loop.blocking = True
        try:  # a signal handler may have made something ready before it could know that we would block
            return super().select(0 if loop._ready else seconds)  # type: ignore[attr-defined]
        finally:
            loop.blocking = False


def describe_generator(agen: AsyncGenerator[Any, Any]) -> Leftover:
    """Its name, and the line at which it stands."""
    chain = suspended(agen)
    file, line = place(chain[:1])
    name = agen.__qualname__  # type: ignore[attr-defined]  # typeshed does not know it
    return Leftover(f"{name} at {short(file)}:{line}", name, f"{short(file)}:{line}")


def describe_timer(handle: asyncio.TimerHandle) -> Leftover:
    """As the loop shows it; named after its callback."""
    callback = getattr(handle, "_callback", None)
    return Leftover(repr(handle), name_of_function(callback).partition(" (")[0], place_of_function(callback))
