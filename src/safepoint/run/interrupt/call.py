"""Interrupting a synchronous function from another thread, as Ctrl-C interrupts the main thread.

**Why the thread raises the exception in itself.** CPython can send an exception to a thread from outside
(`PyThreadState_SetAsyncExc`), but between the decision and the delivery the thread goes on: it may have acquired a lock
in between, or have left the function, so that the exception hits the next call of a pool thread. Here nothing is sent.
While an interrupt is requested, Python calls `InterruptibleCall.before_instruction` in the thread itself, before
instructions of the function's own code. It looks at the frame and raises at the first instruction where that leaves
nothing held (`safety.py`). Looking and raising happen in one thread, before one and the same instruction:

- the place that was judged is the place of the exception, because the judged frame cannot run while it is judged;
- `interrupted` is set before the exception is raised, so it is raised at most once;
- `ended` is set when the function returns or raises, so no exception reaches the code that called it.

**Who sees whom.** The requesting thread publishes `watched`, then checks `ended`. The function's thread publishes
`ended`, then checks `watched`. Whatever the interleaving, at least one of them sees the other and stops the calls. With
either pair swapped, both could miss it, and the thread would be watched for ever.

docs/interrupting-threads.md describes the rules. This module does not know signals.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Generic, TypeVar

from safepoint.errors import UsageError

from .instruction_events import CALL_BOUNDARIES, stop_watching, thread_state, watch
from .own_code import CodePosition, OwnCode
from .safety import holds_something, in_clean_up, safe_to_interrupt, stack

if TYPE_CHECKING:
    from _typeshed import TraceFunction

__all__ = ["AbortInterrupt", "InterruptibleCall"]

T_co = TypeVar("T_co", covariant=True)


class AbortInterrupt(BaseException):
    """Raised inside a synchronous function whose run was aborted, as Ctrl-C would."""


class InterruptibleCall(Generic[T_co]):
    """One call of a function that other threads can interrupt.

    Args:
        fn: The function. It is called without arguments.
        interruptible: Installed packages whose code may be interrupted like the function's own.

    Attributes:
        thread_id: The thread in which the function runs or ran; None before it began.
        interrupted: Whether the exception was raised.
        ended: Whether the thread has left the function.
        requested: Whether an interrupt was requested.
        cut: Whether what the function was blocked in is ended from outside as well, so that its result is not whole.
        watched: Whether `before_instruction` is called.
    """

    def __init__(self, fn: Callable[[], T_co], *, interruptible: tuple[str, ...] = ()) -> None:
        self.thread_id: int | None = None
        self.thread_state = 0
        self.interrupted = False
        self.ended = False
        self.requested = False
        self.cut = False
        self.watched = False
        self.tracer: TraceFunction | None = None
        self._fn = fn
        self._packages = interruptible
        self._own: OwnCode | None = None
        self._deciding = False

    def run(self) -> T_co:
        """Call the function in this thread.

        Raises:
            AbortInterrupt: It was interrupted and did not catch the exception.
            BaseException: What the function raised.
            UsageError: `run` was called before.
        """
        if self.thread_id is not None:
            raise UsageError("an InterruptibleCall runs once: make another one for another call")
        self.tracer = sys.gettrace()
        self.thread_state = thread_state()
        self.thread_id = threading.get_ident()
        try:
            return self._fn()
        finally:
            # In this order: `watch` sets `watched` first and checks `ended` second, so one of the two sees the other.
            self.ended = True
            if self.watched:
                stop_watching(self)

    def interrupt(self, *, cut: bool = False, frame: FrameType | None = None) -> bool:
        """Request that AbortInterrupt is raised at the next place where that leaves nothing held.

        Args:
            cut: What the function is blocked in is about to be ended from outside, so its result is not whole. The
                exception is then raised before the function's own code can use that result; only clean-up code is
                still skipped.
            frame: The thread's innermost frame, if the caller has read it a moment ago. For a repeated request it is
                enough, and saves reading the frames of all threads.

        Returns:
            True if nothing more has to be tried: the exception will be raised, was raised, or the function has ended.
            False if it is not possible now; try again later.
        """
        if self.thread_id is None:
            return False
        self.requested = True
        self.cut = self.cut or cut
        if self.ended or self.interrupted:
            return True
        return watch(self, frame)

    def raise_if_requested(self) -> None:
        """Raise AbortInterrupt now, in the function's thread, if an interrupt was requested and not yet raised.

        It is for code that knows that the function must not go on, such as an audit hook that refuses a new program.
        It does not raise in clean-up code of the function, or while the function holds something.
        """
        if not self.requested or self.interrupted or self.ended or self._deciding:
            return
        if threading.get_ident() != self.thread_id:
            return
        self._deciding = True  # deciding may read a source file, which calls audit hooks, which call this method
        try:
            frames = stack(sys._getframe(1), _RUN_CODE)
            must_end = in_clean_up(frames, self.owns, cut=self.cut) or holds_something(frames, self.owns)
        finally:
            self._deciding = False
        if not must_end:
            self._raise()

    def cleaning_up(self, frame: FrameType | None = None) -> bool:
        """Whether the function is now in code that not even a cut may leave: it cleans up, or is `holding()`.

        For other threads. Code that ends a connection or a program that the function waits for checks this first: in a
        clean-up no exception is raised, so the function would take the cut result for whole.

        Args:
            frame: The thread's innermost frame, if the caller has read it a moment ago.
        """
        frames = self._frames(frame)
        found = in_clean_up(frames, self.owns, cut=True) or holds_something(frames, self.owns)
        return found and not self.ended

    def holding(self) -> bool:
        """Whether the function now holds something that no block releases yet. For other threads."""
        return holds_something(self._frames(), self.owns) and not self.ended

    def cleaned_up_at(self, places: Sequence[CodePosition]) -> bool:
        """Whether the function was in clean-up code, or held something, when these were its frames."""
        return in_clean_up(places, self.owns, cut=True) or holds_something(places, self.owns)

    def _frames(self, frame: FrameType | None = None) -> Sequence[CodePosition]:
        if self.ended:
            return ()
        frame = frame or sys._current_frames().get(self.thread_id or 0)
        return () if frame is None else stack(frame, _RUN_CODE)

    def before_instruction(self, frame: FrameType) -> None:
        """Decide whether to interrupt the function before this instruction. Called in the function's thread.

        Raises:
            AbortInterrupt: An exception at this instruction leaves nothing held.
        """
        if self._deciding or self.interrupted or self.ended:
            return
        self._deciding = True
        try:
            safe = safe_to_interrupt(frame, self.owns, outermost=_RUN_CODE, cut=self.cut)
        except RecursionError:  # the function has used up the stack, and is about to get the same error itself
            safe = False
        finally:
            self._deciding = False
        if safe:
            self._raise()

    def _raise(self) -> None:
        self.interrupted = True
        if self.watched:
            stop_watching(self)
        raise AbortInterrupt

    def where(self) -> str | None:
        """Return `file:line in function` of the function's own code, with the place in a library that it has called."""
        if self.thread_id is None or self.ended:
            return None
        inner = frame = sys._current_frames().get(self.thread_id)
        while frame is not None and frame.f_code is not _RUN_CODE and not self.owns(frame):
            frame = frame.f_back
        if inner is None or frame is None or frame.f_code is _RUN_CODE:
            return None
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return place if frame is inner else f"{place} (in {inner.f_code.co_filename}:{inner.f_lineno})"

    def owns(self, frame: CodePosition) -> bool:
        """Whether the frame's code is the function's own, and not that of a library."""
        if self._own is None:
            self._own = OwnCode(self._fn, self._packages)
        return self._own.has(frame)


_RUN_CODE = InterruptibleCall.run.__code__
CALL_BOUNDARIES.add(_RUN_CODE)
