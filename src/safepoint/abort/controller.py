"""Owns the write side of a signal: the controller, and OS signals as aborts. Knows nothing of who observes it."""

import signal as os_signals
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..errors import UsageError
from .clock import current_clock
from .reason import AbortReason, ReasonKind, called_by_safepoint, caller, reason_from, user_line
from .signal import AbortSignal, CompositeSignal, ControllerSignal, roots_of

__all__ = ["AbortController"]


class AbortController:
    """Aborts the work that was given its `signal`.

    Keep the controller where the decision to abort is made, and pass only `signal` on.

    Args:
        parent: A signal whose abort also aborts `signal`.
    """

    __slots__ = ("__weakref__", "_source", "signal")

    def __init__(self, parent: AbortSignal | None = None) -> None:
        source = self._source = ControllerSignal()
        self.signal: AbortSignal = source
        if parent is not None:
            if not isinstance(parent, AbortSignal):
                raise TypeError(f"parent must be an AbortSignal, not {type(parent).__name__}")
            self.signal = CompositeSignal(roots_of((source, parent)))

    def abort(self, reason: AbortReason | BaseException | str | None = None) -> bool:
        """Abort now and permanently. May be called from any thread, signal handler or `__del__`.

        When it returns, all signals that depend on this one are aborted, all listeners have run, and every guarded
        task has been woken.

        Args:
            reason: Why. A string is a user's message. An exception becomes a reason of kind `error`, even if its
                `__str__` fails. An AbortReason without an `origin` gets the line of the caller.

        Returns:
            True if this call aborted the signal, False if it was aborted before.
        """
        # A reason made by Safepoint itself is passed on unchanged: other layers compare it with `is`. If it has no
        # origin, the line found on the stack would only be the one that started the event loop.
        if not isinstance(reason, AbortReason) or not called_by_safepoint(1):
            reason = reason_from(reason, caller(1))
        if self.signal.aborted or not self._source.decide(reason, current_clock().monotonic()):
            return False
        self._source.announce()
        return True

    @contextmanager
    def on_signals(self, *numbers: int) -> Iterator[None]:
        """Abort on these OS signals inside the block: `with controller.on_signals(signal.SIGINT):`.

        The first Ctrl-C aborts instead of raising KeyboardInterrupt; a second one raises it.

        Args:
            numbers: The OS signals.

        Raises:
            UsageError: No signal was given, or the caller is not in the main thread.
        """
        if not numbers:
            raise UsageError("on_signals() needs at least one signal number, such as signal.SIGINT")
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("on_signals() works in the main thread only: there the system delivers signals")
        received: list[int] = []

        def handle(number: int, frame: FrameType | None) -> None:
            received.append(number)
            if len(received) > 1:
                raise KeyboardInterrupt
            kind: ReasonKind = "user" if number == os_signals.SIGINT else "shutdown"
            self.abort(AbortReason(kind, _name(number), user_line(frame)))

        before = {}
        try:
            for number in numbers:
                before[number] = os_signals.signal(number, handle)
            yield
        finally:
            for number, handler in before.items():
                os_signals.signal(number, handler)


def _name(number: int) -> str:
    try:
        return os_signals.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
