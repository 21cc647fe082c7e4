"""Owns what people hang on a signal: registrations, and the alarm for work that does not end after an abort.

Knows nothing of how a signal finds out that it is aborted.
"""

import logging
import math
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from .clock import Timer, check_seconds, current_clock

if TYPE_CHECKING:
    from .signal import AbortSignal

__all__ = ["Registration", "on_abort_timeout"]

log = logging.getLogger("safepoint")


class Registration:
    """A listener in its place. `remove()` takes it out and says whether that prevented it; also usable as `with`."""

    __slots__ = ("_callback", "_forget")

    def __init__(self, callback: Callable[[], object], forget: "Callable[[Registration], bool]") -> None:
        self._callback = callback
        self._forget = forget

    def remove(self) -> bool:
        """True: the listener will never run. False: it has run, is running, or was removed before."""
        return self._forget(self)

    def __enter__(self) -> "Registration":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def run(self) -> None:
        """Call the listener; its exception is logged, so that it cannot keep the others from hearing."""
        try:
            self._callback()
        except Exception:
            log.exception("An abort listener failed; the others still run: %r", self._callback)


def run_all(registrations: Iterable[Registration]) -> None:
    """Run each, in order. KeyboardInterrupt and SystemExit come out at the end, when everybody has heard."""
    fatal: BaseException | None = None
    for registration in registrations:
        try:
            registration.run()
        except BaseException as error:
            fatal = fatal or error
    if fatal is not None:
        raise fatal


def on_abort_timeout(signal: "AbortSignal", seconds: float, callback: Callable[[], object]) -> Registration:
    """Call back if nobody has removed the registration within `seconds` after the abort.

    This finds work that ignores its signal: register when it begins, remove when it ends. On a signal that is
    already aborted the time is up at once and the callback runs before this returns; otherwise it runs on a
    callback thread of the clock. If it blocks, other timers go on, and a warning names it.
    """
    seconds = check_seconds("seconds", seconds)
    if not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")
    if signal.aborted:
        registration = Registration(callback, lambda _: False)
        registration.run()
        return registration
    clock = current_clock()
    alarm = Timer(math.inf, callback)  # whoever takes the callback out of it, alarm or removal, has won
    timers: list[Timer] = []

    def start() -> None:
        timer = clock.call_at(clock.monotonic() + seconds, alarm.fire)
        timers.append(timer)
        if not alarm.armed:  # removed while we were starting
            timer.disarm()

    def remove(_: Registration) -> bool:
        prevented = alarm.disarm()
        listener.remove()
        for timer in timers:
            timer.disarm()
        return prevented

    starting = Timer(-math.inf, start)
    listener = signal.add_listener(starting.fire)
    if signal.aborted:  # perhaps since our first look but before the listener had its place: then nobody called it
        starting.fire()
    return Registration(callback, remove)
