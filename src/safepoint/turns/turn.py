"""Owns one turn of a turn loop: its phases from planning to the end, and the requests that it makes way.

Knows nothing of the queue.

The phases: planning → active → over, or planning → over.

A preempt belongs to the turn that ran when it was asked for, and never reaches a later one. Requests come from any
thread, while the loop moves the turn from phase to phase without a lock. Three cases race:

- A request comes while the turn is planned. It is stored and applied by `activate`.
- A request comes in the moment in which the phase changes. `request` stores it first and reads the phase second;
  `activate` and `end` change the phase first and go through the stored requests second. In either order one of them
  sees the other, so no request is left without an answer. With one of the two orders reversed, a request could be
  stored after the last look at the list and read the phase before its change: nobody would answer it.
- Both see it. That is harmless: an answer is decided once, and the stop that a request becomes only gets stricter.

A `PreemptAck` is always decided, exactly once, whatever happens to the turn. A push may come from any thread, and so
may the decision: the loop decides when the turn begins or ends, a timer when the request is due, a stop when it comes
first. Each of those places decides without asking whether another one has done so: `dict.setdefault` is atomic, and the
first status stays. Waiters may belong to several event loops. `decide` sets the status first and looks for waiters
second, `__await__` adds its waiter first and looks at the status second: in either order one of them sees the other.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias, TypeVar

from ..abort import AbortController, AbortReason, Clock
from ..abort.clock import Timer, check_seconds
from ..abort.event_loop import post, resolve
from ..errors import UsageError
from ..run.stop import Stop, StopAt, StopOptions, StopRequest

__all__ = ["Phase", "Preempt", "PreemptAck", "PreemptStatus", "Pushed", "Turn"]

PreemptStatus: TypeAlias = Literal["submitted", "no_turn", "turn_over", "loop_stopped"]
T = TypeVar("T")
Phase: TypeAlias = Literal["planning", "active", "over"]


@dataclass(frozen=True, slots=True)
class Preempt:
    """The request that the running turn makes way.

    Attributes:
        at: The point at which the turn stops.
        within: Seconds after which it is stopped at once if it has not reached that point.
        delay: Seconds before the turn is asked to stop.

    Raises:
        UsageError: `at` is no StopAt or is the end of the turn, or one of the numbers is out of range.
    """

    at: StopAt
    within: float | None = None
    delay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.at, StopAt):
            raise UsageError(f"preempt must be a StopAt, such as StopAt.AFTER_TOOLS, not {self.at!r}")
        if self.at is StopAt.TURN_END:
            raise UsageError("preempt at the end of the turn is a plain push: leave preempt= out")
        StopOptions(self.at, within=self.within).check()
        check_seconds("delay", self.delay)


class PreemptAck:
    """The answer to a preempt. Await it for the status, which is always decided in the end.

    - "submitted": the turn that ran at the time of the push was asked to stop.
    - "no_turn": no turn ran at that time.
    - "turn_over": that turn had ended before the request was due.
    - "loop_stopped": the loop was stopped, which comes before any preempt.
    """

    __slots__ = ("_decision", "_waiters")

    def __init__(self) -> None:
        self._decision: dict[None, PreemptStatus] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def status(self) -> PreemptStatus | None:
        """The status, or `None` while it is not decided."""
        return self._decision.get(None)

    def decide(self, status: PreemptStatus) -> None:
        """Set the status, unless it is decided already. Any thread."""
        self._decision.setdefault(None, status)  # before the waiters are read: see the docstring of the module
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:  # another thread took the last one
                break
            post(waiter.get_loop(), resolve, waiter, None)

    def __await__(self) -> Generator[object, None, PreemptStatus]:
        while (status := self.status) is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)  # before the status is read again
            if self.status is None:
                yield from waiter
        return status

    def __repr__(self) -> str:
        return f"PreemptAck({self.status or 'not decided yet'})"


@dataclass(frozen=True, slots=True)
class Pushed:
    """The answer to a push. In a condition it is true if the item was accepted.

    Attributes:
        accepted: Whether the loop has the item. If not, it still belongs to the caller.
        ack: The answer to the preempt, if one was asked for.
        why: Why the item was refused.
    """

    accepted: bool
    ack: PreemptAck | None = None
    why: str = ""

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(slots=True, eq=False)
class _Request:
    """A preempt of this turn. `due` is false until its delay has passed."""

    preempt: Preempt
    ack: PreemptAck
    due: bool
    timer: Timer | None = None


@dataclass(eq=False)
class Turn(Generic[T]):
    """A turn, from its planning to its end. A preempt strategy may look at it; only the loop changes it.

    Attributes:
        id: The id of the turn.
        items: The items that its plan is given.
        stop: The joined request to stop this turn.
        loop_stop: The joined request to stop its loop.
        phase: How far it has come.
        consumed: Its own items, from the plan on.
        preempted: Whether it was asked to make way for a newer item.
        pausing: Whether it was asked to stop by `pause()`, so that it continues later.
        returned: Whether its work has returned a value, even if a stop was asked for meanwhile.
        on_preempt: Called when it is asked to make way, in any thread.
    """

    id: str
    items: list[T]
    stop: Stop
    loop_stop: Stop
    phase: Phase = "planning"
    consumed: list[T] = field(default_factory=list)
    preempted: bool = False
    pausing: bool = False
    returned: bool = False
    on_preempt: "Callable[[Turn[T], StopAt], object]" = lambda turn, at: None
    _requests: list[_Request] = field(default_factory=list)

    @classmethod
    def plan(cls, items: list[T], loop_stop: Stop, clock: Clock) -> "Turn[T]":
        """Make a turn that is to be planned, under the stop of its loop."""
        return cls(os.urandom(16).hex(), items, Stop(None, clock, loop_stop), loop_stop)

    def request(self, preempt: Preempt, ack: PreemptAck) -> None:
        """Ask the turn to make way for a newer item. While it is planned, the request waits. Any thread."""
        # Store the request before the phase is read: see the docstring of the module.
        request = _Request(preempt, ack, due=preempt.delay <= 0)
        self._requests.append(request)
        if not request.due:
            due = self.stop.clock.monotonic() + preempt.delay
            request.timer = self.stop.clock.call_at(due, lambda: self._on_due(request))
        self._process(request)

    def _on_due(self, request: _Request) -> None:
        request.due = True
        self._process(request)

    def _process(self, request: _Request) -> None:
        """Apply or answer a request, if that is possible in this phase. May be called several times."""
        if self.phase == "over":
            self._answer(request, "turn_over")
        elif request.due and self.loop_stop.requested:
            request.ack.decide("loop_stopped")  # a stop comes before any preempt
        elif request.due and self.phase == "active" and request.ack.status is None:
            self._apply(request.preempt, request.ack)

    def _answer(self, request: _Request, status: Literal["turn_over", "loop_stopped"]) -> None:
        if request.timer is not None:
            request.timer.disarm()
        request.ack.decide(status)

    def _apply(self, preempt: Preempt, ack: PreemptAck) -> None:
        now = self.stop.clock.monotonic()
        deadline = None if preempt.within is None else now + preempt.within
        self.preempted = True
        reason = AbortReason("preempted", "something newer came")
        self.stop.join(StopRequest(preempt.at, "root", deadline, reason, now))
        ack.decide("submitted")
        self.on_preempt(self, preempt.at)

    def activate(self, consumed: list[T], controller: AbortController) -> None:
        """Begin the planned turn, and apply the requests that have waited for that.

        Args:
            consumed: Its own items.
            controller: Aborts it.

        Raises:
            UsageError: The turn is not being planned.
        """
        if self.phase != "planning":
            raise UsageError(f"turn {self.id} is {self.phase}: only a turn that is being planned can begin")
        self.stop.bind(controller)
        self.phase, self.consumed = "active", consumed
        for request in list(self._requests):
            self._process(request)

    def end(self, status: Literal["turn_over", "loop_stopped"]) -> None:
        """End the turn, and answer every request that still waits with this status."""
        self.phase = "over"
        for request in list(self._requests):
            self._answer(request, status)
        self.stop.close()
