"""Owns signals of the operating system as presses of Stop: first a stop, then one that waits for nothing, then the end.

Knows nothing of what runs.
"""

import _thread
import logging
import signal as os_signals
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from types import FrameType

from ..abort import AbortReason, Clock
from ..abort.reason import ReasonKind
from ..errors import UsageError
from .stop import PRESS_SECONDS

__all__ = ["stopping_on_signals"]

log = logging.getLogger("safepoint")

# For whoever presses again and again, and sees nothing change.
HINT = (
    "%s: the run is being stopped; a press within %g s of the first one counts as the same. Press again to go on"
    " without what ignores the stop, and once more to interrupt the program"
)


@contextmanager
def stopping_on_signals(
    stop: Callable[..., object], clock: Clock, numbers: tuple[int, ...], origin: str | None
) -> Iterator[None]:
    """Inside the block the first signal calls `stop(reason=…)`, the second `stop(abandon=0)`; a third interrupts.

    Args:
        stop: The `stop` of a run.
        clock: Tells a second press from a first one that bounced.
        numbers: Which signals, such as `signal.SIGINT`.
        origin: The line that asked for this, which is the origin of the abort.

    Raises:
        UsageError: No signal was named, or this is not the main thread.
        KeyboardInterrupt: Out of whatever runs in the main thread, at the third signal.
    """
    if not numbers:
        raise UsageError("on_signals() needs at least one signal number, such as signal.SIGINT")
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("on_signals() works in the main thread only: there the system delivers signals")
    context = copy_context()
    pressed: list[float] = []
    told: list[bool] = []  # that a press was too early

    def press(reason: AbortReason | None, abandon: float | None) -> None:
        # In a thread: a handler interrupts the main thread anywhere, also where it holds the lock that `stop` needs.
        # A bare one, because starting a `threading.Thread` takes locks as well.
        _thread.start_new_thread(context.copy().run, (lambda: stop(reason=reason, abandon=abandon),))

    def heard(number: int, frame: FrameType | None) -> None:
        now = clock.monotonic()
        if not pressed:
            pressed.append(now)
            press(_reason(number, origin), None)
        elif len(pressed) > 1:
            raise KeyboardInterrupt
        elif now - pressed[0] >= PRESS_SECONDS:
            pressed.append(now)
            press(None, 0.0)
        elif not told:
            told.append(True)
            _thread.start_new_thread(log.warning, (HINT, _name(number), PRESS_SECONDS))

    before = {}
    try:
        for number in numbers:
            before[number] = os_signals.signal(number, heard)
        yield
    finally:
        for number, handler in before.items():
            os_signals.signal(number, handler)


def _reason(number: int, origin: str | None) -> AbortReason:
    kind: ReasonKind = "user" if number == os_signals.SIGINT else "shutdown"
    return AbortReason(kind, _name(number), origin)


def _name(number: int) -> str:
    try:
        return os_signals.Signals(number).name
    except ValueError:  # most real-time signals have a number only
        return f"signal {number}"
