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

from ..abort import threads as pool
from .clock import FakeClock
from .inject_chain import place, short, suspended

__all__ = ["Driver", "Hang", "RunLoop", "SawSuspension"]

T = TypeVar("T")
POLL_SECONDS = 0.01
TURNS = 16


class Hang(BaseException):
    """The loop has run out of time, or nothing can ever wake it. Not an Exception: nobody may catch it by chance."""


class Driver(Coroutine[Any, Any, T]):
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


SawSuspension: TypeAlias = Callable[[Driver[Any]], object]


class RunLoop(asyncio.SelectorEventLoop):
    """A loop for one run. With a fake clock its time is the clock's, and jumps when everybody waits."""

    def __init__(self, clock: FakeClock | None, seconds: float) -> None:
        self.clock = clock
        self.in_executor: list[None] = []  # its length is the count: append and pop are atomic
        self.finalised: list[str] = []
        self.blocking = False
        self._threads_before = frozenset(threading.enumerate())
        self._selector_of_run = _Selector(self)
        self.allow(seconds)
        super().__init__(self._selector_of_run)

    def allow(self, seconds: float) -> None:
        """From here on this much real time, then `Hang` comes out of the running loop."""
        self.seconds = seconds
        self.ends_at = time.monotonic() + seconds

    def show_suspensions(self, saw: SawSuspension) -> None:
        """From here on every task that is started tells of its suspensions."""

        def start(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
            return asyncio.Task(Driver(coroutine, saw), loop=loop, **options)

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
        def counted() -> T:
            try:
                return func(*args)
            finally:
                self.in_executor.pop()

        self.in_executor.append(None)
        return super().run_in_executor(executor, counted)

    def forget_executor(self) -> None:
        """Do not wait for the threads of `run_in_executor` at the end."""
        executor, self._default_executor = self._default_executor, None  # type: ignore[has-type]
        if executor is not None:
            executor.shutdown(wait=False)

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        self.finalised.append(describe_generator(agen))
        super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]  # private, and the only way to see it

    def open_generators(self) -> list[str]:
        """The async generators that were begun and neither ended nor were closed."""
        alive = [agen for agen in list(self._asyncgens) if agen.ag_frame is not None]  # type: ignore[attr-defined]
        return [*self.finalised, *sorted(map(describe_generator, alive))]

    def armed_timers(self) -> list[str]:
        """Timers of the loop and of its fake clock that would still fire."""
        armed = [repr(handle) for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        pending = 0 if self.clock is None else self.clock.pending
        return [*armed, *([f"{pending} of the fake clock"] if pending else [])]

    def others_pending(self) -> bool:
        """True: something outside the loop may still wake it: a thread, a child process that is watched, a socket."""
        if len(self._selector_of_run.get_map()) > 1 or self.in_executor:  # one is the loop's own wake-up pipe
            return True
        workers = 0
        for thread in threading.enumerate():
            if thread.name == "safepoint-worker":
                workers += 1
            elif not (thread in self._threads_before or thread.name.startswith(("safepoint-", "asyncio_"))):
                return True
        return workers > len(pool._idle)

    def jump(self) -> None:
        """Move the fake clock to the next timer of the clock or of the loop. Raises: Hang if there is none."""
        assert self.clock is not None
        times = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if (due := self.clock.next_timer()) is not None:
            times.append(due)
        if not times:
            raise Hang("nothing can ever wake it: no timer, no I/O and no thread is pending")
        self.clock.advance(max(0.0, min(times) - self.clock.monotonic()))


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
            raise Hang(f"it did not end within {loop.seconds:g} s")
        busy = timeout is not None and timeout <= 0
        self._turns += 1
        if busy and self._turns % TURNS and len(self.get_map()) == 1:
            return []  # only signals could have come through the loop's own pipe: they can wait for a few turns
        ready = super().select(0)
        if busy or ready:
            return ready
        if loop.clock is None:
            return self._block(left if timeout is None else min(timeout, left))
        if loop.others_pending():
            return self._block(min(POLL_SECONDS, left))
        ready = super().select(0)
        if ready or loop._ready:  # type: ignore[attr-defined]  # a thread had news, and only then became idle
            return ready
        loop.jump()
        return []

    def _block(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        loop.blocking = True
        try:  # a signal handler may have made something ready before it could know that we would block
            return super().select(0 if loop._ready else seconds)  # type: ignore[attr-defined]
        finally:
            loop.blocking = False


def describe_generator(agen: AsyncGenerator[Any, Any]) -> str:
    """Its name, and the line at which it stands."""
    chain = suspended(agen)
    file, line = place(chain[:1])
    return f"{agen.__qualname__} at {short(file)}:{line}"  # type: ignore[attr-defined]  # typeshed does not know it
