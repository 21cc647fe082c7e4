"""Owns how an abort interrupts an await: this is the only file that cancels tasks.

It knows a signal only as `Observable`, and knows nothing of timers, threads or the work itself.

A guard registers the current task with a signal for the duration of a `with` block. Its states:

    NEW ──enter──▶ ARMED ──deliver──▶ SENT ────exit──▶ LEFT     CancelledError becomes AbortError
                     │                                   ▲
                     ├──an inner guard raised it──▶ SERVED ─────┤     the abort is already propagating
                     └──────────exit─────────────────────┘     nothing was sent, nothing to balance

Four things can race: the abort, the end of the awaited operation, a cancellation from outside, and the exit of the
block. Each case is covered by one rule:

- Abort during exit. Delivery always runs as a callback of the task's own loop, so the task is suspended and cannot
  leave the block meanwhile. Exit and delivery therefore never overlap, and a callback that runs after the exit finds
  the state LEFT and does nothing: no cancellation is left over for code behind the block.
- Abort before the first await. `__enter__` registers first and looks at `aborted` second. In the reverse order, an
  abort between the two lines would find no guard and would never be delivered.
- Abort when the result is already there. `deliver()` lets a task whose awaited future is done run first, so that the
  result is not lost. It tries once more one tick later, with `force`: by then the task either has left the block or
  waits for something that it began after the abort.
- Cancellation from outside. `task.cancelling()` counts all requests. `__enter__` notes the count, exit takes back
  exactly the requests that this guard sent (`uncancel()`), and CancelledError becomes AbortError only if the count is
  then not above the note. Otherwise somebody else cancelled too, and that cancellation passes through.

With nested guards only the innermost affected one sends; it holds back the outer ones (`_held`) and releases them on
exit. If it raised the same abort, they send nothing: a second cancellation would interrupt the clean-up code.
"""

import asyncio
import inspect
import logging
from asyncio import current_task
from collections.abc import Awaitable, Iterable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Literal, Protocol, TypeVar

from ..errors import UsageError
from .reason import AbortError, AbortReason, error_from

__all__ = [
    "Guard",
    "Observable",
    "Scope",
    "Waiter",
    "abort_error",
    "enclosing",
    "end_main_task",
    "end_tasks",
    "external_cancel_count",
    "run",
    "scope",
    "wake",
]

log = logging.getLogger("safepoint")
T = TypeVar("T")

NEW, ARMED, SENT, SERVED, LEFT = range(5)
NO_TASK = (
    "There is no running asyncio task to interrupt. In a thread use `signal.wait()`, `signal.raise_if_aborted()` or a"
    " listener; in async code call this inside a task."
)


class Observable(Protocol):
    """The part of a signal that a guard uses."""

    @property
    def aborted(self) -> bool: ...
    @property
    def reason(self) -> AbortReason | None: ...
    def attach(self, entry: "Guard | Waiter") -> None:
        """Deliver to this entry on abort.

        The caller must check `aborted` afterwards: an abort just before this call does not deliver to the entry.
        """
        ...

    def detach(self, entry: "Guard | Waiter") -> bool:
        """Remove the entry. True if it was still attached, so that no delivery is under way."""
        ...


class Scope:
    """One link of the chain of signals that surround the running code.

    Attributes:
        signal: The signal of this link.
        outer: The next link outward, None for the outermost.
        shields: Whether signals outside of this link do not interrupt code inside it.
        task: The guarded task; None if this link guards no task, or its guard was left.
    """

    __slots__ = ("outer", "shields", "signal", "task")

    def __init__(self, signal: Observable, outer: "Scope | None") -> None:
        self.signal = signal
        self.outer = outer
        self.shields = False
        self.task: asyncio.Task[object] | None = None


class Ambient(Scope):
    """Make a signal the ambient one inside a `with` block: `current_signal()` finds it, but it interrupts nothing."""

    __slots__ = ("_token",)

    def __init__(self, signal: Observable) -> None:
        super().__init__(signal, scope.get())

    def __enter__(self) -> None:
        self._token: Token[Scope | None] = scope.set(self)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            scope.reset(self._token)
        except ValueError:
            pass  # left in another context: the coroutine is being garbage-collected after its loop was closed


scope: ContextVar[Scope | None] = ContextVar("safepoint_scope", default=None)


def enclosing() -> list[Observable]:
    """The signals around the running code, innermost first.

    Outside of a shield, only the time limits of enclosing shields are listed.
    """
    signals: dict[Observable, None] = {}
    shielded = False
    link = scope.get()
    while link is not None:
        if link.shields or not shielded:
            signals[link.signal] = None
        shielded = shielded or link.shields
        link = link.outer
    return list(signals)


class Guard(Scope):
    """A `with` block whose await is interrupted on abort; the block then raises AbortError.

    A guard balances every cancellation that it sends. A cancellation from outside, a value and any other exception
    pass through unchanged. A guard can be entered once, and must be entered and left by the same task.

    Args:
        signal: The signal whose abort interrupts the block.
        shields: Hold back the aborts of all signals outside of this guard until the block is over.
    """

    __slots__ = ("_base", "_held", "_inner", "_pending", "_sent", "_state", "_token", "waited_for")

    def __init__(self, signal: Observable, *, shields: bool = False) -> None:
        self.signal = signal
        self.shields = shields
        self._state = NEW

    def __enter__(self) -> None:
        if self._state != NEW:
            raise UsageError("This guard was entered before; ask the signal for a new one: `with signal.guard():`")
        try:  # `_running_task()` inlined: the call alone would add 5 % to the cost of a guard
            task = current_task()
        except RuntimeError:
            task = None
        if task is None:
            raise UsageError(NO_TASK)
        self.task = task
        base = self._base = task.cancelling()
        if base:
            # A cancellation from outside was requested but not thrown yet: the next CancelledError is that one.
            self._pending: bool = getattr(task, "_must_cancel", False)
        self._inner: Guard | None = None
        self._held: tuple[Guard, ...] = ()
        outer = self.outer = scope.get()
        if outer is not None and outer.task is task and isinstance(outer, Guard):
            outer._inner = self
        self._token: Token[Scope | None] = scope.set(self)
        self._state = ARMED
        signal = self.signal
        signal.attach(self)
        if signal.aborted:
            self.__exit__(None, None, None)
            raise abort_error(signal)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        task = self.task
        outer = self.outer
        if outer is not None and outer.task is task and isinstance(outer, Guard):
            outer._inner = None
        self.task = None
        try:
            scope.reset(self._token)
        except ValueError:
            self._leave_elsewhere(task, exc)
            return False
        if self.signal.detach(self) and not self._held:
            self._state = LEFT
            return False
        assert task is not None  # set on entry; a guard is left once
        return self._leave_aborted(task, exc_type)

    def _leave_elsewhere(self, task: "asyncio.Task[object] | None", exc: BaseException | None) -> None:
        """Exit in another context, so not in the task that entered: that task must not be changed from here."""
        self.signal.detach(self)
        self._state = LEFT
        if isinstance(exc, GeneratorExit) and (
            asyncio._get_running_loop() is None or (task is not None and task.get_loop().is_closed())
        ):
            return  # garbage collection of a coroutine whose loop is closed, perhaps while another loop runs
        raise UsageError(
            "A guard was left by another task than the one that entered it. Was it held across `yield` in an"
            " async generator? Use `async with signal.stream(source)`, or guard each step."
        ) from exc

    def _leave_aborted(self, task: "asyncio.Task[object]", exc_type: type[BaseException] | None) -> Literal[False]:
        state, self._state = self._state, LEFT
        ours = False
        if state == SENT:
            remaining = 0
            for _ in range(self._sent):
                remaining = task.uncancel()
            ours = (
                exc_type is not None
                and issubclass(exc_type, asyncio.CancelledError)
                and remaining <= self._base
                and not (self._base and self._pending)
            )
        for guard in self._held:
            guard._released_by(self, task, raised=ours)
        if ours:
            raise abort_error(self.signal)
        return False

    def deliver(self, *, force: bool = False) -> None:
        """Interrupt the body's await, once. Must run as a callback of the task's loop.

        Args:
            force: Interrupt even if the awaited future is done.
        """
        task = self.task
        if self._state != ARMED or task is None:
            return
        inner = self._inner
        while inner is not None:
            if inner.signal.aborted or (inner.shields and not self.shields):
                inner._held += (self,)  # the inner guard is nearer to the await: on exit it releases this one
                return
            inner = inner._inner
        waiter = getattr(task, "_fut_waiter", None)
        if waiter is not None and waiter.done() and not force:
            # The awaited result is there, but the task has not run since: let it take the result. If it is still
            # inside the block one tick later, it waits for something that it began after the abort.
            task.get_loop().call_soon(lambda: self.deliver(force=True))
            return
        self._state = SENT
        self._sent = 0
        # The callbacks of the awaited future show what else depended on this wait, such as a call in an executor
        # thread. They are read before the cancellation, which clears them.
        self.waited_for: object = getattr(waiter, "_callbacks", None)
        self._send(task)

    @property
    def delivered(self) -> bool:
        """Whether the interruption was delivered to the body, or the block is over."""
        return self._state != ARMED

    @property
    def sent(self) -> bool:
        """Whether a cancellation was sent to the body, even if the body suppressed it."""
        return getattr(self, "_sent", 0) > 0

    @property
    def shielded(self) -> bool:
        """Whether the body is inside a shield, which holds the interruption back."""
        inner = self._inner if self._state != NEW else None
        while inner is not None and not inner.shields:
            inner = inner._inner
        return inner is not None

    def deliver_again(self) -> bool:
        """Interrupt a body again that continued after the first interruption. Must be called in the task's loop.

        Exit balances each cancellation that was sent.

        Returns:
            True if it was sent. False if nothing was sent before, the block is over, or the body is inside a shield:
            that is clean-up, and has a time limit of its own.
        """
        task = self.task
        if self._state != SENT or task is None or self.shielded:
            return False
        self._send(task)
        return True

    def _send(self, task: "asyncio.Task[object]") -> None:
        self._sent += 1
        task.cancel("abort signal")

    def _released_by(self, inner: "Guard", task: "asyncio.Task[object]", *, raised: bool) -> None:
        if self._state != ARMED:
            return
        if raised and self.signal.reason is inner.signal.reason:
            self._state = SERVED  # the same abort: a second cancellation would only interrupt the clean-up
        else:
            task.get_loop().call_soon(self.deliver)


class Waiter:
    """A future in the running loop that an abort resolves."""

    __slots__ = ("future", "task")

    def __init__(self) -> None:
        self.task = _running_task()
        self.future: asyncio.Future[None] = self.task.get_loop().create_future()

    def deliver(self) -> None:
        """Resolve the future. Must run as a callback of its loop."""
        if not self.future.done():
            self.future.set_result(None)


def wake(entries: Iterable[Guard | Waiter]) -> int:
    """Schedule the delivery to all entries, with one call per loop. Never blocks.

    It may be called from any thread, signal handler or `__del__`. It writes to the loop's wake-up pipe even in the
    loop's own thread: a signal handler may interrupt `select()`, which then continues to sleep, so a callback added
    with `call_soon` would wait for the next timer.

    Returns:
        How many entries were not reached because their loop is closed. The caller logs it: logging may block.
    """
    unreached = 0
    loops: dict[asyncio.AbstractEventLoop, list[Guard | Waiter]] = {}
    for entry in entries:
        task = entry.task
        if task is not None:  # None: the task is leaving the guard at this moment, in another thread
            loops.setdefault(task.get_loop(), []).append(entry)
    for loop, batch in loops.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, batch)
        except RuntimeError:
            unreached += len(batch)
    return unreached


def log_unreached(count: int) -> None:
    """Log the number of entries that `wake` did not reach."""
    log.debug("An abort found a closed event loop with %d entries still attached", count)


def _deliver_all(batch: list[Guard | Waiter]) -> None:
    for entry in batch:
        entry.deliver()


async def run(signal: Observable, awaitable: Awaitable[T]) -> T:
    """Await the awaitable under a guard and return its value.

    Args:
        signal: The signal that interrupts it.
        awaitable: What to await. If the signal is aborted already, it is closed without being started.

    Raises:
        AbortError: The signal was aborted.
    """
    begun = False
    try:
        with Guard(signal):
            begun = True
            return await awaitable
    except BaseExceptionGroup as group:
        # Task groups may collect the aborts of their children. A group with nothing else in it is the abort.
        if signal.aborted and group.split((AbortError, asyncio.CancelledError))[1] is None:
            raise abort_error(signal) from group
        raise
    finally:
        if not begun:
            discard(awaitable)


def discard(awaitable: object) -> None:
    """End an awaitable that will not be awaited, as if the abort had come just after the await began."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    elif isinstance(awaitable, asyncio.Future):
        awaitable.cancel("abort signal")


def external_cancel_count() -> int:
    """The number of pending requests to cancel the running task.

    Guards balance their own requests, so a difference between two calls outside of guards shows that the task was
    cancelled from outside in between.
    """
    return _running_task().cancelling()


def _running_task() -> "asyncio.Task[object]":
    try:
        task = current_task()
    except RuntimeError:  # no running loop
        task = None
    if task is None:
        raise UsageError(NO_TASK)
    return task


def abort_error(signal: Observable) -> AbortError:
    """The error to raise for a signal that is aborted."""
    reason = signal.reason
    assert reason is not None, "the signal is not aborted"
    return error_from(reason)


def end_main_task(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[object]") -> None:
    """Cancel the main task of a loop that runs in another thread, as Ctrl-C would."""
    try:
        loop.call_soon_threadsafe(task.cancel, "abort signal")
    except RuntimeError:
        pass  # the loop was closed meanwhile


async def end_tasks(tasks: "Iterable[asyncio.Task[object]]", seconds: float) -> None:
    """Cancel abandoned tasks and wait until they have ended, at most `seconds`."""
    ending = list(tasks)
    for task in ending:
        task.cancel("abort signal")
    await asyncio.wait(ending, timeout=seconds)
