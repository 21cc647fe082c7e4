"""Owns the probe that a scenario gets: a controller that also records effects and events.

Knows nothing of points and laws.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import MemberDescriptorType

from ...abort import AbortController, AbortReason, AbortSignal, Guard
from ...abort.guard import Waiter, abort_error
from ...abort.reason import caller, reason_from
from ...abort.signal import ControllerSignal
from .chain import place, running, short

__all__ = ["Probe", "RecordedEffect"]


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """An effect of a scenario on the world.

    Attributes:
        what: The effect, as the scenario has described it.
        late: Whether it came after `abort()` had returned.
        cleanup: Whether it belongs to the stop itself, so that it may come late.
        place: Where it was recorded, as `file:line`.
    """

    what: object
    late: bool
    cleanup: bool
    place: str


class Probe(AbortController):
    """The argument of a scenario: the controller that will abort it, which also records what the scenario does.

    Use it as a controller (`probe.signal`, `probe.abort()`), call `record()` for each effect on the world, and pass
    `probe.event` to code that emits events. Both may be called from any thread.

    Attributes:
        signal: The signal that will be aborted.
        events: The events so far.
        effects: The effects so far.
        watched: The signals that are checked for remaining listeners.

    Args:
        on_event: Called after each event.
    """

    def __init__(self, on_event: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._source = self._observed_signal = ObservedSignal()
        self.signal: AbortSignal = self._source
        self.events: list[object] = []
        self.effects: list[RecordedEffect] = []
        self.watched: list[AbortSignal] = [self.signal]
        self._on_event = on_event
        self._acknowledged = False

    @property
    def controller(self) -> AbortController:
        """The probe itself, for scenarios that prefer to name it so."""
        return self

    @property
    def observed(self) -> bool:
        """Whether any code has asked or observed the signal."""
        return self._observed_signal.looks > 0

    @property
    def interrupted(self) -> tuple[str, ...]:
        """The places at which the abort has interrupted an await or raised AbortError, each once."""
        return tuple(dict.fromkeys(self._observed_signal.interrupted))

    def abort(self, reason: AbortReason | BaseException | str | None = None) -> bool:
        """Abort now and permanently. Effects that are recorded after this call are late.

        Args:
            reason: Why, as for `AbortController.abort`.

        Returns:
            True if this call aborted the signal, False if it was aborted before.
        """
        done = super().abort(reason_from(reason, caller(1)))
        self._acknowledged = True
        return done

    def record(self, effect: object, *, cleanup: bool = False) -> None:
        """Record an effect on the world, such as a file that was written or money that was sent.

        Args:
            effect: A description of the effect.
            cleanup: Whether it belongs to the stop itself, so that it may come late.
        """
        file, line = place(running(2))
        self.effects.append(RecordedEffect(effect, self._acknowledged, cleanup, f"{short(file)}:{line}"))

    def event(self, event: object) -> None:
        """Record an event. Each event is a point at which the scenario will be aborted."""
        self.events.append(event)
        self._on_event()

    def watch(self, signal: AbortSignal) -> None:
        """Also check this signal for remaining listeners, such as one that outlives the scenario."""
        self.watched.append(signal)


class ObservedSignal(ControllerSignal):
    """The signal of a probe. It counts how often it is asked, and records the places that its abort has interrupted."""

    __slots__ = ("interrupted", "looks")

    def __init__(self) -> None:
        self.looks = 0
        self.interrupted: list[str] = []
        super().__init__()

    @property
    def aborted(self) -> bool:
        self.looks += 1
        return bool(_ABORTED.__get__(self))

    @aborted.setter
    def aborted(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        _ABORTED.__set__(self, value)

    @property
    def reason(self) -> AbortReason | None:
        reason: AbortReason | None = _REASON.__get__(self)
        if reason is not None and _makes_error():
            self._interrupts()
        return reason

    @reason.setter
    def reason(self, value: AbortReason | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        _REASON.__set__(self, value)

    def detach(self, entry: Guard | Waiter) -> bool:
        # A guard that has sent a cancellation has interrupted its body, even if the body suppressed that.
        if isinstance(entry, Guard) and entry.sent and _ABORTED.__get__(self):
            self._interrupts()
        return super().detach(entry)

    def _interrupts(self) -> None:
        file, line = place(running(3))
        self.interrupted.append(f"{short(file)}:{line}")


# The slots of the base class, which the properties above hide.
_ABORTED: MemberDescriptorType = ControllerSignal.__dict__["aborted"]
_REASON: MemberDescriptorType = ControllerSignal.__dict__["reason"]


def _makes_error() -> bool:
    """Whether the reason is being read in order to raise AbortError with it."""
    frame = sys._getframe(2)
    for _ in range(3):  # called by the function that makes the error, directly or through a composite signal
        if frame.f_code is abort_error.__code__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
