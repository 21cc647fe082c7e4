"""Owns raising an exception in a synchronous function that another thread wants to end, as Ctrl-C would.

The thread raises it in itself: while an interrupt is asked for, `before` is called in the thread before instructions
of the function's own code, and raises at the first one where that leaves nothing held (`safe_place.py`). So the place
that was judged is the place at which it is raised, at most once, and only while the function runs.
docs/interrupting-threads.md explains it. Knows nothing of signals.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

from safepoint.errors import UsageError

from .instruction_events import _RUN, stop_watching, thread_state, watch
from .interrupt_safety import holds_something, in_clean_up, safe_to_interrupt, stack
from .own_code import CodePosition, OwnCode

__all__ = ["AbortInterrupt", "InterruptibleCall"]

T_co = TypeVar("T_co", covariant=True)


class AbortInterrupt(BaseException):
    """Raised inside a synchronous function whose run was aborted, as Ctrl-C would."""


class InterruptibleCall(Generic[T_co]):
    """One call of a function, which other threads can interrupt.

    Args:
        fn: The function. It is called without arguments.
        interruptible: Installed packages in whose code it may be interrupted as in its own.
    """

    def __init__(self, fn: Callable[[], T_co], *, interruptible: tuple[str, ...] = ()) -> None:
        self.thread_id: int | None = None  # in which it runs, or ran
        self.thread_state = 0
        self.interrupted = False  # the exception was raised
        self.ended = False  # the thread has left the function
        self.asked = False  # somebody wants it interrupted
        self.cut = False  # and what it is blocked in is ended from outside
        self.watched = False  # `before` is called
        self.tracer: Any = None
        self._fn = fn
        self._packages = interruptible
        self._own: OwnCode | None = None
        self._judging = False

    def run(self) -> T_co:
        """Call the function in this thread. Raises: what it raised; AbortInterrupt only if the function let it out."""
        if self.thread_id is not None:
            raise UsageError("an InterruptibleCall runs once: make another one for another call")
        self.tracer = sys.gettrace()
        self.thread_state = thread_state()
        self.thread_id = threading.get_ident()
        try:
            return self._fn()
        finally:
            # In this order: who begins to watch sets `watched` first and then looks at `ended`. One of the two sees it.
            self.ended = True
            if self.watched:
                stop_watching(self)

    def interrupt(self, *, cut: bool = False, frame: FrameType | None = None) -> bool:
        """Have AbortInterrupt raised at the next place where it leaves nothing held.

        Args:
            cut: What the function is blocked in is about to be ended from outside, so what that returns is not whole.
                It is then raised before the function's own code can use it. Only clean-up code is still passed over.
            frame: The thread's innermost frame, where the caller has read it a moment ago. It is enough for a call that
                is asked again, and spares reading the frames of all threads.

        Returns:
            True when nothing more has to be tried: it will be raised, was raised, or the function has ended.
            False: not possible now, try again.
        """
        if self.thread_id is None:
            return False
        self.asked = True
        self.cut = self.cut or cut
        if self.ended or self.interrupted:
            return True
        return watch(self, frame)

    def raise_if_owed(self) -> None:
        """Raise AbortInterrupt here if the function is to be interrupted and has not been. For the function's thread.

        It is for those who know that the function must not go on, such as a hook that refuses a new program. Clean-up
        code of the function is left alone, and so is what holds something.
        """
        if not self.asked or self.interrupted or self.ended or self._judging:
            return
        if threading.get_ident() != self.thread_id:
            return
        self._judging = True  # reading a source is seen by hooks too
        try:
            frames = stack(sys._getframe(1), _CODE)
            must_end = in_clean_up(frames, self.owns, cut=self.cut) or holds_something(frames, self.owns)
        finally:
            self._judging = False
        if not must_end:
            self._raise()

    def cleaning_up(self, frame: FrameType | None = None) -> bool:
        """Whether the function is in code now that not even a cut leaves: it cleans up, or is `holding()`.

        For other threads. Who ends a connection or a program that the function waits for asks this first: there what
        was cut would look whole to the function.

        Args:
            frame: The thread's innermost frame, where the caller has read it a moment ago.
        """
        frames = self._frames(frame)
        found = in_clean_up(frames, self.owns, cut=True) or holds_something(frames, self.owns)
        return found and not self.ended

    def holding(self) -> bool:
        """Whether the function holds something now for which no block has begun yet. For other threads."""
        return holds_something(self._frames(), self.owns) and not self.ended

    def cleaned_up_at(self, places: Sequence[CodePosition]) -> bool:
        """Whether the function was in clean-up code when these were its frames, or held something."""
        return in_clean_up(places, self.owns, cut=True) or holds_something(places, self.owns)

    def _frames(self, frame: FrameType | None = None) -> Sequence[CodePosition]:
        if self.ended:
            return ()
        frame = frame or sys._current_frames().get(self.thread_id or 0)
        return () if frame is None else stack(frame, _CODE)

    def before(self, frame: FrameType) -> None:
        """Called in the function's thread before an instruction of its own code. Raises: AbortInterrupt."""
        if self._judging or self.interrupted or self.ended:
            return
        self._judging = True
        try:
            safe = safe_to_interrupt(frame, self.owns, outermost=_CODE, cut=self.cut)
        except RecursionError:  # the function has used up the stack: it is about to learn of that itself
            safe = False
        finally:
            self._judging = False
        if safe:
            self._raise()

    def _raise(self) -> None:
        self.interrupted = True
        if self.watched:
            stop_watching(self)
        raise AbortInterrupt

    def where(self) -> str | None:
        """`file:line in function` in the function's own code, with what that has called if it is elsewhere."""
        if self.thread_id is None or self.ended:
            return None
        inner = frame = sys._current_frames().get(self.thread_id)
        while frame is not None and frame.f_code is not _CODE and not self.owns(frame):
            frame = frame.f_back
        if inner is None or frame is None or frame.f_code is _CODE:
            return None
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return place if frame is inner else f"{place} (in {inner.f_code.co_filename}:{inner.f_lineno})"

    def owns(self, frame: CodePosition) -> bool:
        """Whether the frame's code is the function's own, and not that of a library."""
        if self._own is None:
            self._own = OwnCode(self._fn, self._packages)
        return self._own.has(frame)


_CODE = InterruptibleCall.run.__code__
_RUN.add(_CODE)
