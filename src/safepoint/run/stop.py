"""Requests to stop a run: when, how far down, until when and why, and how several requests become one.

This module also decides when a run goes on without work that does not end (`abandon`), and notifies the leaves of it.

`StopRequest` is a pure value: requests join in any order to the same result and only get stricter. `Stop` is the live,
joined request of one run, linked to those of the runs around and inside it. Neither knows what the work is, nor where
its safe points are.
"""

import logging
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal, TypeAlias, TypedDict

from ..abort import AbortController, AbortError, AbortReason, Clock
from ..abort.clock import Timer, check_seconds
from ..abort.listeners import Registration
from ..abort.reason import reason_from
from ..errors import UsageError
from ..receipt import Receipt

__all__ = ["NO_STOP", "AckLevel", "AckStatus", "Scope", "Stop", "StopAck", "StopAt", "StopOptions", "StopRequest"]

log = logging.getLogger("safepoint")

# A second press of Stop within this time counts as the same press: a double click, or a key that bounces.
PRESS_SECONDS = 1.0

Scope: TypeAlias = Literal["root", "tree"]
AckStatus: TypeAlias = Literal["accepted", "already_stopping", "already_finished", "unknown"]
AckLevel: TypeAlias = Literal["accepted", "recorded", "delivered", "settled"]


class StopAt(Enum):
    """When to stop, from the mildest to the strictest.

    TURN_END < AFTER_MODEL, AFTER_TOOLS < SAFE_POINT < NOW. The two in the middle cannot be compared with each other;
    they join to SAFE_POINT. (The values are bit sets, and `join` is their union.)
    """

    TURN_END = 0
    AFTER_MODEL = 1
    AFTER_TOOLS = 2
    SAFE_POINT = 3
    NOW = 7

    def join(self, other: "StopAt") -> "StopAt":
        """Return the stricter of the two. If they cannot be compared: at either of the two points."""
        return StopAt(self.value | other.value)

    def includes(self, other: "StopAt") -> bool:
        """Whether a stop with this value also stops the run at the point `other`."""
        return self.join(other) is self


@dataclass(frozen=True, slots=True)
class StopRequest:
    """One request to stop a run, or several joined.

    Attributes:
        at: When to stop.
        scope: `"root"` stops only the run itself at its safe point; `"tree"` also stops the runs inside it, each at its
            own. NOW always means the tree, because no child outlives its parent.
        deadline: The monotonic time at which the request becomes NOW.
        reason: Why.
        asked_at: The monotonic time at which the reason was given. Of several reasons the oldest is kept.
        abandon: Work that has not ended this many seconds after the abort is left behind. If the run was aborted
            before the request came, the time counts from the request. It is relative, so that a request that is
            delivered twice means the same.
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
        """Combine two requests: never weaker than either of them, with the older reason."""
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
        """Describe what will happen, for people: `at NOW; what has not ended in 2 s is left behind`."""
        text = f"at {self.at.name}"
        if self.abandon is None:
            return text
        return f"{text}; what has not ended {f'in {self.abandon:g} s' if self.abandon else 'by then'} is left behind"


NO_STOP = StopRequest()


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((time for time in (one, other) if time is not None), default=None)


def _age(request: StopRequest) -> tuple[bool, float, str]:
    # Two reasons given at the same instant are ordered by their text. Any order would do, but it must not depend on
    # which of the two requests came first, or joining would not be commutative.
    return (request.reason is None, request.asked_at, repr(request.reason))


@dataclass(frozen=True, slots=True)
class StopOptions:
    """The arguments of one call of `stop()`, as the caller gave them: None leaves a setting as it is.

    Attributes:
        at: When to stop. The first call's default is NOW, or SAFE_POINT if it has a time limit (`within`).
        scope: How far down.
        within: Seconds after which the request becomes NOW.
        abandon: Seconds after the abort when work that has not ended is left behind.
        reason: Why.
    """

    at: StopAt | None = None
    scope: Scope | None = None
    within: float | None = None
    abandon: float | None = None
    reason: AbortReason | BaseException | str | None = None

    def check(self) -> None:
        """Refuse arguments that make no sense.

        Raises:
            UsageError: The message names the argument, and says what to give instead.
        """
        if self.scope not in (None, "root", "tree"):
            raise UsageError(f"scope must be 'root' or 'tree', not {self.scope!r}")
        if self.at is not None and not isinstance(self.at, StopAt):
            hint = f": to say why, use reason={self.at!r}" if isinstance(self.at, str) else ""
            raise UsageError(f"at must be a StopAt, such as StopAt.SAFE_POINT, not {self.at!r}{hint}")
        if self.within is not None and check_seconds("within", self.within) <= 0:
            raise UsageError(
                f"within must be more than 0 seconds, not {self.within!r}; to stop at once use at=StopAt.NOW"
            )
        if self.abandon is not None:
            check_seconds("abandon", self.abandon)

    def request(self, before: StopRequest, *, now: float, origin: str | None) -> StopRequest:
        """Make the request that these arguments ask for, to be joined to `before`.

        Args:
            before: What has been requested so far.
            now: The monotonic time.
            origin: The `file:line` that called `stop()`.

        Raises:
            UsageError: The arguments make no sense.
        """
        self.check()
        at = self.at
        if at is None and before is NO_STOP:
            at = StopAt.NOW if self.within is None else StopAt.SAFE_POINT
        # A later call without a reason of its own must not replace the reason of the first.
        has_reason = self.reason is not None or before.reason is None
        return StopRequest(
            at or before.at,
            self.scope or "root",
            None if self.within is None else now + self.within,
            reason_from(self.reason, origin) if has_reason else None,
            now if has_reason else math.inf,
            None if self.abandon is None else float(self.abandon),
        )


class StopKeywords(TypedDict):
    """The keyword arguments of `stop()`, for code that passes them on."""

    scope: Scope | None
    within: float | None
    abandon: float | None
    reason: AbortReason | str | None


@dataclass(frozen=True, slots=True)
class StopAck:
    """The immediate answer to a stop. `await ack.settled()` gives the receipt once everything has ended.

    Attributes:
        status: Whether the stop was accepted.
        level: How far it has come; matters for work on other machines.
        message: What will happen, for people.
        id: The run or turn that the stop was for.
        begun: False if that run or turn has not begun and never will: only recording its end may take time.
    """

    status: AckStatus
    level: AckLevel = "accepted"
    message: str = ""
    id: str = ""
    _settled: Callable[[float | None], Awaitable[Receipt]] | None = field(default=None, repr=False, compare=False)
    begun: bool = field(default=True, kw_only=True)

    async def settled(self, timeout: float | None = None) -> Receipt:
        """Wait until everything has ended.

        Returns:
            The receipt.

        Raises:
            TimeoutError: It has not ended after `timeout` seconds.
            UsageError: The stop was refused, so there is nothing to wait for.
        """
        if self._settled is None:
            raise UsageError(
                f"there is nothing to wait for: this stop was answered with {self.status!r} ({self.message})"
            )
        return await self._settled(timeout)


class Stop:
    """The live request of one run. Any thread may add to it.

    A request with the scope `tree` also reaches the runs inside this one, including those that start later.

    **Leaving behind what does not end** (`abandon`). The time counts from the abort of the run, whoever caused it. A
    listener on the signal notices the abort, and an abort may happen in a signal handler, at any point of the program:
    for example while this very thread holds `_lock`. Taking the lock there would deadlock. Therefore everything from
    that listener (`_start_abandon_timer`) down to the callbacks takes no lock. Instead each step first publishes its
    own state and then checks the other's:

    - `when_abandoned` adds its callback, then checks `_abandoned`; `_abandon` sets `_abandoned`, then runs the
      callbacks. Whatever the interleaving, one of the two sees the other, so no callback is missed.
    - If both see each other, `dict.pop` gives the callback to exactly one of them, so none runs twice.
    - `close` sets `_closed`, then removes timers and listeners; code that adds one checks `_closed` afterwards and
      removes it again. No timer outlives the run.

    Checking before publishing, in any of these places, would open a gap in which a callback or a timer is lost.
    """

    __slots__ = (
        "_abandon_callbacks",
        "_abandon_timers",
        "_abandoned",
        "_abort_listeners",
        "_children",
        "_closed",
        "_controller",
        "_deadline_timer",
        "_escalated",
        "_lock",
        "_parent",
        "clock",
        "request",
    )

    def __init__(self, controller: AbortController | None, clock: Clock, parent: "Stop | None" = None) -> None:
        self._controller = controller
        self._parent = parent
        self._children: dict[Stop, None] = {}
        self._lock = threading.Lock()
        self._deadline_timer: Timer | None = None
        self.clock = clock
        self.request = NO_STOP
        self._escalated = False
        self._abandoned = False
        self._closed = False
        self._abandon_callbacks: dict[object, Callable[[], object]] = {}
        self._abort_listeners: list[Registration] = []
        self._abandon_timers: list[Timer] = []
        if parent is not None:
            parent._add_child(self)

    @property
    def requested(self) -> bool:
        """Whether a stop was requested."""
        return self.request is not NO_STOP

    @property
    def escalated(self) -> bool:
        """Whether a safe point was not reached in time, in this run or in one around it."""
        return self._escalated or (self._parent is not None and self._parent.escalated)

    @property
    def reason(self) -> AbortReason:
        """Why the run is to stop; kind `user` without a text if no reason was given."""
        return self.request.reason or AbortReason("user", "")

    def due(self, point: StopAt) -> bool:
        """Whether a run that is at this point has to stop there."""
        return self.request is not NO_STOP and self.request.at.includes(point)

    def caused(self, error: BaseException) -> bool:
        """Whether the error comes from a safe point that honoured this stop, in this run or in one inside it.

        Reasons are compared with `is`: a stop passes one AbortReason object to all child runs, and an equal reason may
        come from an unrelated abort.
        """
        if isinstance(error, BaseExceptionGroup):
            return any(map(self.caused, error.exceptions))
        return isinstance(error, AbortError) and error.reason is self.request.reason

    def join(self, request: StopRequest) -> bool:
        """Add a request. Any thread.

        Returns:
            True if it made the stop stricter.
        """
        with self._lock:
            joined = self.request.join(request)
            if joined == self.request:
                return False
            self.request = joined
            children = list(self._children) if joined.scope == "tree" else []
            self._set_deadline_timer()
        if joined.at is StopAt.NOW and self._controller is not None:
            self._controller.abort(self.reason)  # the signals of the child runs follow this one
        self._watch_abort()
        for child in children:
            child.join(_for_children(joined))
        return True

    def bind(self, controller: AbortController) -> None:
        """Set the controller that a request for NOW aborts. If NOW was requested before, it is aborted at once."""
        self._controller = controller
        if self.request.at is StopAt.NOW:
            self.abort_run()
        self._watch_abort()

    def when_abandoned(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` once when work that has not ended is left behind; at once if that time has passed.

        It may be called in any thread.

        Returns:
            A function that removes the callback. Call it when the work has ended.
        """
        key = object()
        self._abandon_callbacks[key] = callback  # publish first, then check: see the class
        if self._abandoned:
            self._run_abandon_callback(key)
        return lambda: self._remove_abandon_callback(key)

    def abort_run(self) -> None:
        """Abort the run, with the reason of this request."""
        if self._controller is not None:
            self._controller.abort(self.reason)

    def close(self) -> None:
        """Drop timers, listeners and callbacks: the run has ended."""
        with self._lock:
            self._clear_deadline_timer()
        self._closed = True
        if self._abort_listeners or self._abandon_timers:
            self._stop_abandon_timer()
        self._abandon_callbacks.clear()
        if self._parent is not None:
            self._parent._children.pop(self, None)

    def _add_child(self, child: "Stop") -> None:
        with self._lock:
            self._children[child] = None
            request = self.request
        if request.scope == "tree":
            child.join(_for_children(request))
        if self._abandoned:
            child._abandon()

    def _set_deadline_timer(self) -> None:
        limit = self.request.deadline
        self._clear_deadline_timer()
        if limit is not None and self.request.at is not StopAt.NOW:
            self._deadline_timer = self.clock.call_at(limit, self._escalate)

    def _clear_deadline_timer(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.disarm()
            self._deadline_timer = None

    def _escalate(self) -> None:
        if self.request.at is not StopAt.NOW:
            self._escalated = True
            self.join(StopRequest(StopAt.NOW))

    def _watch_abort(self) -> None:
        """Start the time after which work is left behind: now if the run is aborted, else with its abort."""
        controller = self._controller
        if self.request.abandon is None or controller is None:
            return
        if not self._abort_listeners:
            self._abort_listeners.append(controller.signal.add_listener(self._start_abandon_timer))
        if controller.signal.aborted:  # a listener is not called for an abort that came before it
            self._start_abandon_timer()
        if self._closed:
            self._stop_abandon_timer()

    def _start_abandon_timer(self) -> None:
        seconds = self.request.abandon
        if seconds is None or self._abandoned or self._closed:
            return
        when = self.clock.monotonic() + seconds
        if seconds == 0:
            self._abandon()
        elif not any(timer.armed and timer.when <= when for timer in self._abandon_timers):
            self._clear_abandon_timers()
            self._abandon_timers.append(self.clock.call_at(when, self._abandon))
            if self._closed:
                self._clear_abandon_timers()

    def _abandon(self) -> None:
        """Leave behind what has not ended in this run and in the runs inside it, whose signals are aborted too."""
        self._abandoned = True  # publish first, then run the callbacks: see the class
        self._stop_abandon_timer()
        for key in list(self._abandon_callbacks):
            self._run_abandon_callback(key)
        for child in list(self._children):
            child._abandon()

    def _run_abandon_callback(self, key: object) -> None:
        callback = self._abandon_callbacks.pop(key, None)
        if callback is not None:
            try:
                callback()
            except Exception:
                log.exception("A callback of when_abandoned() failed; the others still run: %r", callback)

    def _remove_abandon_callback(self, key: object) -> None:
        self._abandon_callbacks.pop(key, None)

    def _stop_abandon_timer(self) -> None:
        while self._abort_listeners:
            self._abort_listeners.pop().remove()
        self._clear_abandon_timers()

    def _clear_abandon_timers(self) -> None:
        while self._abandon_timers:
            self._abandon_timers.pop().disarm()


def _for_children(request: StopRequest) -> StopRequest:
    # One timer is enough: when the root's deadline has passed, its abort reaches all child runs.
    return replace(request, deadline=None)
