"""Owns the listeners of a signal: their registrations, and the alarm for work that does not end after an abort.

Knows nothing of how a signal is aborted.
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
    """A registered listener. As a context manager it removes the listener at the end of the block."""

    __slots__ = ("_callback", "_forget")

    def __init__(self, callback: Callable[[], object], forget: "Callable[[Registration], bool]") -> None:
        self._callback = callback
        self._forget = forget

    def remove(self) -> bool:
        """Remove the listener.

        Returns:
            True if it will never run. False if it has run, is running, or was removed before.
        """
        return self._forget(self)

    def __enter__(self) -> "Registration":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def run(self) -> None:
        """Call the listener and log its exception, so that the other listeners run as well."""
        try:
            self._callback()
        except Exception:
            log.exception("An abort listener failed; the others still run: %r", self._callback)


def run_all(registrations: Iterable[Registration]) -> None:
    """Run all listeners in order. KeyboardInterrupt and SystemExit are raised at the end, after the last one."""
    fatal: BaseException | None = None
    for registration in registrations:
        try:
            registration.run()
        except BaseException as error:
            fatal = fatal or error
    if fatal is not None:
        raise fatal


def on_abort_timeout(signal: "AbortSignal", seconds: float, callback: Callable[[], object]) -> Registration:
    """Run `callback` unless the registration is removed within `seconds` after the abort.

    It finds work that ignores its signal: register when the work begins, remove when it ends. If the signal is aborted
    already, the callback runs before this function returns. Otherwise it runs in a callback thread of the clock; if it
    blocks there, other timers continue and a warning names it.

    Args:
        signal: The signal to watch.
        seconds: How long the work may take to end after the abort.
        callback: What to run then.
    """
    seconds = check_seconds("seconds", seconds)
    if not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")
    if signal.aborted:
        registration = Registration(callback, lambda _: False)
        registration.run()
        return registration
    clock = current_clock()
    alarm = Timer(math.inf, callback)  # not scheduled: it decides between the alarm and the removal
    timers: list[Timer] = []

    def start() -> None:
        timer = clock.call_at(clock.monotonic() + seconds, alarm.fire)
        timers.append(timer)
        if not alarm.armed:  # the registration was removed meanwhile
            timer.disarm()

    def remove(_: Registration) -> bool:
        prevented = alarm.disarm()
        listener.remove()
        for timer in timers:
            timer.disarm()
        return prevented

    starting = Timer(-math.inf, start)
    listener = signal.add_listener(starting.fire)
    if signal.aborted:  # perhaps aborted before the listener was added: then the signal did not call it
        starting.fire()
    return Registration(callback, remove)
