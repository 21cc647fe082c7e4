"""Owns the write side: the controller, and Ctrl-C as an abort. Knows nothing of what hears it."""

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
    """Whoever holds it may abort; give away its `signal`. With a parent, the parent's abort is also this one's."""

    __slots__ = ("__weakref__", "_source", "signal")

    def __init__(self, parent: AbortSignal | None = None) -> None:
        source = self._source = ControllerSignal()
        self.signal: AbortSignal = source
        if parent is not None:
            if not isinstance(parent, AbortSignal):
                raise TypeError(f"parent must be an AbortSignal, not {type(parent).__name__}")
            self.signal = CompositeSignal(roots_of((source, parent)))

    def abort(self, reason: AbortReason | BaseException | str | None = None) -> bool:
        """Abort, now and for ever. True: this call did it. Any thread, any signal handler, `__del__`.

        When it returns, the whole graph is aborted, all listeners have run, and every guarded task has been woken.
        An exception as the reason is put into words; one whose own `__str__` fails aborts all the same. An AbortReason
        without an `origin` gets the line of the caller.
        """
        # A reason that Safepoint itself made is passed on as it is: code above compares it with `is`, and where it has
        # no origin, the line found on the stack would only be the one that started the event loop.
        if not isinstance(reason, AbortReason) or not called_by_safepoint(1):
            reason = reason_from(reason, caller(1))
        if self.signal.aborted or not self._source.decide(reason, current_clock().monotonic()):
            return False
        self._source.announce()
        return True

    @contextmanager
    def on_signals(self, *numbers: int) -> Iterator[None]:
        """Inside the block these OS signals abort: Ctrl-C does not raise KeyboardInterrupt; a second one does."""
        if not numbers:
            raise UsageError("on_signals() needs at least one signal number, such as signal.SIGINT")
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("on_signals() works in the main thread only: there the system delivers signals")
        seen: list[int] = []

        def heard(number: int, frame: FrameType | None) -> None:
            seen.append(number)
            if len(seen) > 1:
                raise KeyboardInterrupt
            kind: ReasonKind = "user" if number == os_signals.SIGINT else "shutdown"
            self.abort(AbortReason(kind, _name(number), user_line(frame)))

        before = {}
        try:
            for number in numbers:
                before[number] = os_signals.signal(number, heard)
            yield
        finally:
            for number, handler in before.items():
                os_signals.signal(number, handler)


def _name(number: int) -> str:
    try:
        return os_signals.Signals(number).name
    except ValueError:  # most real-time signals have a number only
        return f"signal {number}"
