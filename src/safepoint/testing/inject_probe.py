"""Owns what a scenario is given: a controller that also takes notes of effects and events.

Knows nothing of points and laws: whoever drives a run may listen to the notes.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..abort import AbortController, AbortReason, AbortSignal, Guard
from ..abort.guard import SENT, Waiter, abort_error
from ..abort.reason import caller, reason_from
from ..abort.signal import ControllerSignal
from .inject_chain import place, running, short

__all__ = ["Probe", "RecordedEffect"]


@dataclass(frozen=True, slots=True)
class RecordedEffect:
    """Something a scenario did to the world. `late`: after `abort()` had returned; `cleanup`: meant to come late."""

    what: object
    late: bool
    cleanup: bool
    place: str


class Probe(AbortController):
    """What a scenario is given: the controller that will abort it, and a place to note what it does.

    Use it as the controller it is (`probe.signal`, `probe.abort()`), `record()` every effect on the world, and hand
    `probe.event` to whatever emits events. Both may be called from any thread.
    """

    def __init__(self, on_event: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._source = self._hearing = Hearing()
        self.signal: AbortSignal = self._source
        self.events: list[object] = []
        self.effects: list[RecordedEffect] = []
        self.watched: list[AbortSignal] = [self.signal]
        self._on_event = on_event
        self._acknowledged = False

    @property
    def controller(self) -> AbortController:
        """Itself, for scenarios that like to say so."""
        return self

    @property
    def heard(self) -> bool:
        """True: somebody has looked at the signal, or listened to it."""
        return self._hearing.looks > 0

    @property
    def interrupted(self) -> tuple[str, ...]:
        """Where the abort has interrupted an await or raised AbortError, each place once."""
        return tuple(dict.fromkeys(self._hearing.interrupted))

    def abort(self, reason: AbortReason | BaseException | str | None = None) -> bool:
        """Abort, now and for ever; what is recorded from then on is late. True: this call did it."""
        done = super().abort(reason_from(reason, caller(1)))
        self._acknowledged = True
        return done

    def record(self, effect: object, *, cleanup: bool = False) -> None:
        """Note an effect on the world: a file written, money sent. `cleanup`: it belongs to the stop itself."""
        file, line = place(running(2))
        self.effects.append(RecordedEffect(effect, self._acknowledged, cleanup, f"{short(file)}:{line}"))

    def event(self, event: object) -> None:
        """Note an event. Each is a point at which the scenario will be aborted."""
        self.events.append(event)
        self._on_event()

    def watch(self, signal: AbortSignal) -> None:
        """Have one more signal checked for listeners that are left: one that outlives the scenario, say."""
        self.watched.append(signal)


class Hearing(ControllerSignal):
    """The signal of a probe. It knows whether anybody looked at it, and whom its abort has interrupted."""

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
        # A guard that has sent its cancellation has interrupted its body, whatever the body made of it.
        if isinstance(entry, Guard) and entry._state == SENT and _ABORTED.__get__(self):
            self._interrupts()
        return super().detach(entry)

    def _interrupts(self) -> None:
        file, line = place(running(3))
        self.interrupted.append(f"{short(file)}:{line}")


# The slots of the signal itself, which the properties above stand in front of.
_ABORTED: Any = ControllerSignal.__dict__["aborted"]
_REASON: Any = ControllerSignal.__dict__["reason"]


def _makes_error() -> bool:
    """True: the reason is being asked for because AbortError is about to be raised with it."""
    frame = sys._getframe(2)
    for _ in range(3):  # straight from the function that makes the error, or through a composite
        if frame.f_code is abort_error.__code__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
