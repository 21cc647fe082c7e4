"""Owns what it means to ask for a stop: when, how far down, until when, why, and how two requests become one.

Also when a run goes on without what does not end (`abandon`), and who is told so.

`StopRequest` is pure: requests join in any order to the same result and only get stricter. `Stop` is the live, joined
request of one run, in the tree of runs. Knows nothing of what runs, nor of where its safe points are.
"""

import logging
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, TypeAlias

from ..abort import AbortController, AbortError, AbortReason, Clock
from ..abort.clock import Timer, check_seconds
from ..abort.listeners import Registration
from ..abort.reason import reason_from
from ..errors import UsageError
from .receipt import Receipt

__all__ = ["NO_STOP", "AckLevel", "AckStatus", "Scope", "Stop", "StopAck", "StopAt", "StopRequest"]

log = logging.getLogger("safepoint")

# A second press of Stop this soon after the first is the same press: a double click, a key that bounces.
PRESS_SECONDS = 1.0

Scope: TypeAlias = Literal["root", "tree"]
AckStatus: TypeAlias = Literal["accepted", "already_stopping", "already_finished", "unknown"]
AckLevel: TypeAlias = Literal["accepted", "recorded", "delivered", "settled"]


class StopAt(Enum):
    """When to stop. TURN_END < AFTER_MODEL, AFTER_TOOLS < SAFE_POINT < NOW; those in the middle join to SAFE_POINT."""

    TURN_END = 0
    AFTER_MODEL = 1
    AFTER_TOOLS = 2
    SAFE_POINT = 3
    NOW = 7

    def join(self, other: "StopAt") -> "StopAt":
        """The stricter of the two; of two that cannot be compared, whichever comes first."""
        return StopAt(self.value | other.value)

    def includes(self, other: "StopAt") -> bool:
        """True: a stop at this time also stops there."""
        return self.join(other) is self


@dataclass(frozen=True, slots=True)
class StopRequest:
    """One request, or several joined.

    Attributes:
        at: When to stop.
        scope: How far down.
        deadline: The monotonic time at which the request becomes NOW.
        reason: Why.
        asked_at: The monotonic time at which the reason was given: of several, the oldest stays.
        abandon: What has not ended this many seconds after the abort, or after this request if the run was aborted
            before, is left behind. Relative, so that the same request delivered twice means the same.
    """

    at: StopAt = StopAt.TURN_END
    scope: Scope = "root"
    deadline: float | None = None
    reason: AbortReason | None = None
    asked_at: float = math.inf
    abandon: float | None = None

    def __post_init__(self) -> None:
        if self.at is StopAt.NOW:  # no child outlives its parent
            object.__setattr__(self, "scope", "tree")

    def join(self, other: "StopRequest") -> "StopRequest":
        """Both. Never weaker than either; the oldest reason wins."""
        oldest = min(self, other, key=_age)
        return StopRequest(
            self.at.join(other.at),
            "tree" if "tree" in (self.scope, other.scope) else "root",
            _earlier(self.deadline, other.deadline),
            oldest.reason,
            oldest.asked_at,
            _earlier(self.abandon, other.abandon),
        )

    def __str__(self) -> str:
        """What will happen, for people: `at NOW; what has not ended in 2 s is left behind`."""
        told = f"at {self.at.name}"
        if self.abandon is None:
            return told
        return f"{told}; what has not ended {f'in {self.abandon:g} s' if self.abandon else 'by then'} is left behind"


NO_STOP = StopRequest()


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((time for time in (one, other) if time is not None), default=None)


def _age(request: StopRequest) -> tuple[bool, float, str]:
    # The text decides between two of one instant: any rule will do, if it is the same in both orders.
    return (request.reason is None, request.asked_at, repr(request.reason))


@dataclass(frozen=True, slots=True)
class StopAck:
    """The answer to a stop, at once. `await ack.settled()`: what became of it.

    begun  False: what was stopped has not begun, and never will; only that its end is written may take time
    """

    status: AckStatus
    level: AckLevel = "accepted"
    message: str = ""
    id: str = ""
    _settled: Callable[[float | None], Awaitable[Receipt]] | None = field(default=None, repr=False, compare=False)
    begun: bool = field(default=True, kw_only=True)

    async def settled(self, timeout: float | None = None) -> Receipt:
        """The receipt, when everything has ended. Raises: TimeoutError after `timeout` seconds."""
        if self._settled is None:
            raise UsageError(f"nothing will settle here: this stop was answered {self.status!r} ({self.message})")
        return await self._settled(timeout)


class Stop:
    """The live request of one run. Any thread may ask; a `tree` request reaches the runs below, and later ones too.

    **Leaving behind what does not end.** The time begins to count when the run is aborted, by whomever. That is heard
    by a listener, and an abort may come in a signal handler, in the middle of anything: also while this thread holds
    `_lock`. So everything from that listener down to the callbacks takes no lock. Each step writes first and looks
    second: of two threads that meet, at least one sees the other, and a callback is taken out of its dict by one only.
    """

    __slots__ = (
        "_abandon_timers",
        "_abandoned",
        "_abort_listeners",
        "_below",
        "_closed",
        "_controller",
        "_escalated",
        "_lock",
        "_parent",
        "_timer",
        "_to_tell",
        "clock",
        "request",
    )

    def __init__(self, controller: AbortController | None, clock: Clock, parent: "Stop | None" = None) -> None:
        self._controller = controller
        self._parent = parent
        self._below: dict[Stop, None] = {}
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self.clock = clock
        self.request = NO_STOP
        self._escalated = False
        self._abandoned = False
        self._closed = False
        self._to_tell: dict[object, Callable[[], object]] = {}
        self._abort_listeners: list[Registration] = []
        self._abandon_timers: list[Timer] = []
        if parent is not None:
            parent._adopt(self)

    @property
    def asked(self) -> bool:
        """True: somebody has asked for a stop."""
        return self.request is not NO_STOP

    @property
    def escalated(self) -> bool:
        """True: the safe point was not reached in time, here or in a run around this one."""
        return self._escalated or (self._parent is not None and self._parent.escalated)

    @property
    def reason(self) -> AbortReason:
        """Why, as far as somebody said."""
        return self.request.reason or AbortReason("user", "")

    def due(self, place: StopAt) -> bool:
        """True: a run that is at this place stops here."""
        return self.request is not NO_STOP and self.request.at.includes(place)

    def raised(self, error: BaseException) -> bool:
        """True: this error comes from a safe point at which this stop was honoured, here or in a run below.

        Whose abort it is, the reason's identity tells: a stop hands its one reason down the tree.
        """
        if isinstance(error, BaseExceptionGroup):
            return any(map(self.raised, error.exceptions))
        return isinstance(error, AbortError) and error.reason is self.request.reason

    def ask(self, request: StopRequest) -> bool:
        """Join one more request. True: the stop became stricter by it."""
        with self._lock:
            joined = self.request.join(request)
            if joined == self.request:
                return False
            self.request = joined
            below = list(self._below) if joined.scope == "tree" else []
            self._arm()
        if joined.at is StopAt.NOW:
            self.commit()  # the signals of the runs below hang on this one
        self._watch_abort()
        for stop in below:
            stop.ask(_for_children(joined))
        return True

    def bind(self, controller: AbortController) -> None:
        """From now on a request for NOW aborts this; one that came before does so at once."""
        self._controller = controller
        if self.request.at is StopAt.NOW:
            self.commit()
        self._watch_abort()

    def when_abandoned(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back once, in any thread, when what has not ended is left behind; at once if that time has come.

        Returns:
            What removes the callback. Call it when there is nothing left to leave behind.
        """
        key = object()
        self._to_tell[key] = callback
        if self._abandoned:
            self._tell(key)
        return lambda: self._forget(key)

    def commit(self) -> None:
        """Stop now: the request becomes an abort."""
        if self._controller is not None:
            self._controller.abort(self.reason)

    def close(self) -> None:
        """The run has ended."""
        with self._lock:
            self._disarm()
        self._closed = True
        self._stop_counting()
        self._to_tell.clear()
        if self._parent is not None:
            self._parent._below.pop(self, None)

    def _adopt(self, child: "Stop") -> None:
        with self._lock:
            self._below[child] = None
            request = self.request
        if request.scope == "tree":
            child.ask(_for_children(request))
        if self._abandoned:
            child._abandon()

    def _arm(self) -> None:
        limit = self.request.deadline
        self._disarm()
        if limit is not None and self.request.at is not StopAt.NOW:
            self._timer = self.clock.call_at(limit, self._escalate)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.disarm()
            self._timer = None

    def _escalate(self) -> None:
        if self.request.at is not StopAt.NOW:
            self._escalated = True
            self.ask(StopRequest(StopAt.NOW))

    def _watch_abort(self) -> None:
        """Let the time after which things are left behind begin: now if the run is aborted, else with its abort."""
        controller = self._controller
        if self.request.abandon is None or controller is None:
            return
        if not self._abort_listeners:
            self._abort_listeners.append(controller.signal.add_listener(self._count))
        if controller.signal.aborted:  # a listener is not called for an abort that came before it
            self._count()
        if self._closed:
            self._stop_counting()

    def _count(self) -> None:
        seconds = self.request.abandon
        if seconds is None or self._abandoned or self._closed:
            return
        when = self.clock.monotonic() + seconds
        if seconds == 0:
            self._abandon()
        elif not any(timer.armed and timer.when <= when for timer in self._abandon_timers):
            self._drop_timers()
            self._abandon_timers.append(self.clock.call_at(when, self._abandon))
            if self._closed:
                self._drop_timers()

    def _abandon(self) -> None:
        """The time has come, for this run and for the runs inside it: their signals are aborted with this one's."""
        self._abandoned = True
        self._stop_counting()
        for key in list(self._to_tell):
            self._tell(key)
        for stop in list(self._below):
            stop._abandon()

    def _tell(self, key: object) -> None:
        callback = self._to_tell.pop(key, None)
        if callback is not None:
            try:
                callback()
            except Exception:
                log.exception("A callback of when_abandoned() failed; the others still run: %r", callback)

    def _forget(self, key: object) -> None:
        self._to_tell.pop(key, None)

    def _stop_counting(self) -> None:
        while self._abort_listeners:
            self._abort_listeners.pop().remove()
        self._drop_timers()

    def _drop_timers(self) -> None:
        while self._abandon_timers:
            self._abandon_timers.pop().disarm()


def _for_children(request: StopRequest) -> StopRequest:
    # One clock is enough: when the root's time is up, its abort reaches everybody.
    return replace(request, deadline=None)


def stop_request(
    at: StopAt | None,
    *,
    scope: Scope | None,
    within: float | None,
    reason: AbortReason | BaseException | str | None,
    before: StopRequest,
    now: float,
    origin: str | None,
    abandon: float | None = None,
) -> StopRequest:
    """What a call of `stop(…)` asks for. None leaves as it is; the first call's default is NOW. Raises: UsageError."""
    if scope not in (None, "root", "tree"):
        raise UsageError(f"scope must be 'root' or 'tree', not {scope!r}")
    if at is not None and not isinstance(at, StopAt):
        instead = f": to say why, use reason={at!r}" if isinstance(at, str) else ""
        raise UsageError(f"at must be a StopAt, such as StopAt.SAFE_POINT, not {at!r}{instead}")
    if within is not None and check_seconds("within", within) <= 0:
        raise UsageError(f"within must be more than 0 seconds, not {within!r}; to stop at once use at=StopAt.NOW")
    if abandon is not None:
        abandon = check_seconds("abandon", abandon)
    if at is None and before is NO_STOP:
        at = StopAt.NOW if within is None else StopAt.SAFE_POINT
    given = reason is not None or before.reason is None
    return StopRequest(
        at or before.at,
        scope or "root",
        None if within is None else now + within,
        reason_from(reason, origin) if given else None,
        now if given else math.inf,
        abandon,
    )
