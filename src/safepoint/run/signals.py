"""Signals of the operating system, such as Ctrl-C, as presses of Stop.

The first one stops the run, the second no longer waits for work that ignores the stop, and the third raises
KeyboardInterrupt. This module does not know what the run is.
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

# A hint for a user who presses again and again, and sees nothing change.
HINT = (
    "%s: the run is being stopped; a press within %g s of the first one counts as the same. Press again to go on"
    " without what ignores the stop, and once more to interrupt the program"
)


@contextmanager
def stopping_on_signals(
    stop: Callable[..., object], clock: Clock, numbers: tuple[int, ...], origin: str | None
) -> Iterator[None]:
    """Inside the block, the first signal calls `stop(reason=…)`, the second `stop(abandon=0)`; a third interrupts.

    Args:
        stop: The `stop` of a run.
        clock: The clock that tells a second press from a first one that bounced.
        numbers: The signals, such as `signal.SIGINT`.
        origin: The `file:line` of the caller, which becomes the origin of the abort.

    Raises:
        UsageError: No signal was given, or this is not the main thread.
        KeyboardInterrupt: Raised in the main thread at the third signal.
    """
    if not numbers:
        raise UsageError("on_signals() needs at least one signal number, such as signal.SIGINT")
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("on_signals() works only in the main thread, where Python runs signal handlers")
    context = copy_context()
    presses: list[float] = []
    hinted: list[bool] = []  # whether the hint about a press that came too early was logged

    def press(reason: AbortReason | None, abandon: float | None) -> None:
        # A handler interrupts the main thread anywhere, even while it holds the lock that `stop` needs, so `stop` is
        # called in another thread. `threading.Thread` takes locks when it starts; this function does not.
        _thread.start_new_thread(context.copy().run, (lambda: stop(reason=reason, abandon=abandon),))

    def on_signal(number: int, frame: FrameType | None) -> None:
        now = clock.monotonic()
        if not presses:
            presses.append(now)
            press(_reason(number, origin), None)
        elif len(presses) > 1:
            raise KeyboardInterrupt
        elif now - presses[0] >= PRESS_SECONDS:
            presses.append(now)
            press(None, 0.0)
        elif not hinted:
            hinted.append(True)
            _thread.start_new_thread(log.warning, (HINT, _name(number), PRESS_SECONDS))

    before = {}
    try:
        for number in numbers:
            before[number] = os_signals.signal(number, on_signal)
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
