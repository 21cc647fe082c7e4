"""Owns the way from a signal to the await it interrupts: the ONLY file that cancels tasks.

Knows of a signal no more than `Observable`. Knows nothing of timers, threads or what the work is.

A guard registers the current task with a signal for the time of a `with` block. Its life:

    NEW ──enter──▶ ARMED ──deliver──▶ SENT ────exit──▶ LEFT     CancelledError becomes AbortError
                     │                                   ▲
                     ├──an inner guard raised it──▶ SERVED ─────┤     the abort is already on its way out
                     └──────────exit─────────────────────┘     nothing was sent, nothing to balance

Delivery always happens in a callback of the task's own loop, while the task is suspended inside the block. So a
cancellation is never left over after the block, and which of several nested guards delivers is decided in one place.
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
    """What a guard needs of a signal."""

    @property
    def aborted(self) -> bool: ...
    @property
    def reason(self) -> AbortReason | None: ...
    def attach(self, entry: "Guard | Waiter") -> None:
        """Deliver to this entry on abort. Checking `aborted` afterwards is the caller's part: no abort is lost."""
        ...

    def detach(self, entry: "Guard | Waiter") -> bool:
        """True: the entry was still attached, so no delivery is under way."""
        ...


class Scope:
    """One link of the chain of signals that surround the running code. `shields`: what lies outside is not heard."""

    __slots__ = ("outer", "shields", "signal", "task")

    def __init__(self, signal: Observable, outer: "Scope | None") -> None:
        self.signal = signal
        self.outer = outer
        self.shields = False
        self.task: asyncio.Task[object] | None = None


class Ambient(Scope):
    """`with Ambient(signal):` code inside finds the signal with `current_signal()`; nothing is interrupted."""

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
            pass  # another context: a coroutine whose loop is gone, being collected


scope: ContextVar[Scope | None] = ContextVar("safepoint_scope", default=None)


def enclosing() -> list[Observable]:
    """The signals around the running code, innermost first. Beyond a shield only the bounds of shields count."""
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
    """`with Guard(signal):` interrupts the await in its body on abort, and AbortError comes out.

    It delivers at most one cancellation and takes it back; an outer cancellation, a value and any other exception
    pass through unchanged. Once per object, entered and left by the same task.
    """

    __slots__ = ("_base", "_held", "_inner", "_pending", "_sent", "_state", "_token", "waited_for")

    def __init__(self, signal: Observable, *, shields: bool = False) -> None:
        self.signal = signal
        self.shields = shields
        self._state = NEW

    def __enter__(self) -> None:
        if self._state != NEW:
            raise UsageError("This guard was entered before; ask the signal for a new one: `with signal.guard():`")
        try:  # written out: one call less is a twentieth of the whole guard
            task = current_task()
        except RuntimeError:
            task = None
        if task is None:
            raise UsageError(NO_TASK)
        self.task = task
        base = self._base = task.cancelling()
        if base:
            # Asked for from outside, but not thrown yet: then the next CancelledError is not ours.
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
        """Left in another context, so not by the task that entered: that task must not be touched from here."""
        self.signal.detach(self)
        self._state = LEFT
        if isinstance(exc, GeneratorExit) and (
            asyncio._get_running_loop() is None or (task is not None and task.get_loop().is_closed())
        ):
            return  # a coroutine whose loop is gone, being collected, perhaps while another loop runs
        raise UsageError(
            "A guard was left by another task than the one that entered it. Was it held across `yield` in an"
            " async generator? Use `async with signal.stream(source)`, or guard each step."
        ) from exc

    def _leave_aborted(self, task: "asyncio.Task[object]", exc_type: type[BaseException] | None) -> Literal[False]:
        state, self._state = self._state, LEFT
        ours = False
        if state == SENT:
            left = 0
            for _ in range(self._sent):
                left = task.uncancel()
            ours = (
                exc_type is not None
                and issubclass(exc_type, asyncio.CancelledError)
                and left <= self._base
                and not (self._base and self._pending)
            )
        for guard in self._held:
            guard._released_by(self, task, raised=ours)
        if ours:
            raise abort_error(self.signal)
        return False

    def deliver(self, *, force: bool = False) -> None:
        """Interrupt the body's await, once. Runs as a callback of the task's loop."""
        task = self.task
        if self._state != ARMED or task is None:
            return
        inner = self._inner
        while inner is not None:
            if inner.signal.aborted or (inner.shields and not self.shields):
                inner._held += (self,)  # it is nearer to the await; its exit passes the abort on
                return
            inner = inner._inner
        waiter = getattr(task, "_fut_waiter", None)
        if waiter is not None and waiter.done() and not force:
            # What the body waits for has come, the task only has not run yet: let it have its result. If it is
            # still inside the block one tick later, it waits for something that it began after the abort.
            task.get_loop().call_soon(lambda: self.deliver(force=True))
            return
        self._state = SENT
        self._sent = 0
        # Who else hears of the end of this wait, such as a thread that goes on. Afterwards nobody could tell.
        self.waited_for: object = getattr(waiter, "_callbacks", None)
        self._send(task)

    @property
    def delivered(self) -> bool:
        """True: the interruption has reached the body, or the block is over. False: the body knows nothing of it."""
        return self._state != ARMED

    @property
    def sent(self) -> bool:
        """True: the body was interrupted, whatever it made of that."""
        return getattr(self, "_sent", 0) > 0

    @property
    def shielded(self) -> bool:
        """True: the body is inside of a shield, which holds the interruption off."""
        inner = self._inner if self._state != NEW else None
        while inner is not None and not inner.shields:
            inner = inner._inner
        return inner is not None

    def deliver_again(self) -> bool:
        """Interrupt once more a body that went on after the first time. True: sent. Call it in the task's loop.

        Each one is taken back on exit. A shield inside the body holds it off: that is clean-up, and bounded.
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
            self._state = SERVED  # the same abort: a second cancellation would only hit the clean-up
        else:
            task.get_loop().call_soon(self.deliver)


class Waiter:
    """A future of a loop that an abort resolves."""

    __slots__ = ("future", "task")

    def __init__(self) -> None:
        self.task = _running_task()
        self.future: asyncio.Future[None] = self.task.get_loop().create_future()

    def deliver(self) -> None:
        """Resolve it. Runs as a callback of the loop."""
        if not self.future.done():
            self.future.set_result(None)


def wake(entries: Iterable[Guard | Waiter]) -> int:
    """Deliver to all of them: one call per loop, from any thread, signal handler or `__del__`. Never blocks.

    Returns how many could not be reached, as their loop is closed. It does not log that itself: logging may block.

    Also from the loop's own thread it goes through the self-pipe: a raw signal handler interrupts `select()`, which
    then goes on sleeping, and a plain `call_soon` would wait for the next timer.
    """
    unreached = 0
    loops: dict[asyncio.AbstractEventLoop, list[Guard | Waiter]] = {}
    for entry in entries:
        task = entry.task
        if task is not None:  # None: the guard is being left at this moment, in its own thread
            loops.setdefault(task.get_loop(), []).append(entry)
    for loop, batch in loops.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, batch)
        except RuntimeError:
            unreached += len(batch)
    return unreached


def log_unreached(count: int) -> None:
    """Log what `wake` returned."""
    log.debug("An abort found a closed event loop with %d entries still attached", count)


def _deliver_all(batch: list[Guard | Waiter]) -> None:
    for entry in batch:
        entry.deliver()


async def run(signal: Observable, awaitable: Awaitable[T]) -> T:
    """The awaitable's value, or AbortError. An awaitable that could not begin is closed, not left behind."""
    begun = False
    try:
        with Guard(signal):
            begun = True
            return await awaitable
    except BaseExceptionGroup as group:
        # Some task groups collect the aborts of their children. If nothing else went wrong, that is the abort.
        if signal.aborted and group.split((AbortError, asyncio.CancelledError))[1] is None:
            raise abort_error(signal) from group
        raise
    finally:
        if not begun:
            discard(awaitable)


def discard(awaitable: object) -> None:
    """End an awaitable nobody will await: as if the abort had come a moment after the await began."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    elif isinstance(awaitable, asyncio.Future):
        awaitable.cancel("abort signal")


def external_cancel_count() -> int:
    """How often the running task was asked to end by somebody other than a guard: compare before and after."""
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
    """The error for a signal that is aborted."""
    reason = signal.reason
    assert reason is not None, "asked only of an aborted signal"
    return error_from(reason)


def end_main_task(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[object]") -> None:
    """End the main task of a loop that runs in another thread, as Ctrl-C would: for a loop inside a function."""
    try:
        loop.call_soon_threadsafe(task.cancel, "abort signal")
    except RuntimeError:
        pass  # that loop has just closed


async def end_tasks(tasks: "Iterable[asyncio.Task[object]]", seconds: float) -> None:
    """End tasks that nobody waits for any more, and wait until they have ended; not longer than this."""
    ending = list(tasks)
    for task in ending:
        task.cancel("abort signal")
    await asyncio.wait(ending, timeout=seconds)
