"""Owns one turn: what it is to do, and its phases from planning to the end. Knows nothing of the queue.

The phases: planning → active → over, or planning → over.

A preempt belongs to the turn that ran when it was asked for, and never reaches a later one. Requests come from any
thread, while the loop moves the turn from phase to phase without a lock. Three cases race:

- A request comes while the turn is planned. It is stored and applied by `activate`.
- A request comes in the moment in which the phase changes. `request` stores it first and reads the phase second;
  `activate` and `end` change the phase first and go through the stored requests second. In either order one of them
  sees the other, so no request is left without an answer. With one of the two orders reversed, a request could be
  stored after the last look at the list and read the phase before its change: nobody would answer it.
- Both see it. That is harmless: an answer is decided once, and the stop that a request becomes only gets stricter.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from ..abort import AbortController, AbortReason, AbortSignal, Clock
from ..abort.clock import Timer, check_seconds
from ..abort.renamed_arguments import accepts_deadline
from ..errors import UsageError
from ..outcome import Outcome
from ..run.context import Work
from ..run.stop import Stop, StopAt, StopRequest
from .preempt import Preempt, PreemptAck

__all__ = ["AnyWork", "Phase", "Turn", "TurnPlan"]

T = TypeVar("T")
Phase: TypeAlias = Literal["planning", "active", "over"]
# Work on any input: each plan of a loop may have work of another type, together with the input for it.
AnyWork: TypeAlias = Work[Any, object]


@dataclass(frozen=True, slots=True)
class TurnPlan(Generic[T]):
    """What a turn is to do.

    Attributes:
        work: An agent, a flow, or any other Work.
        input: What the work is given.
        consumed: The items of this turn. `None` means all that are not in `remaining`.
        remaining: Items for a later turn. Items that are in neither are dropped on purpose.
        signal: One more signal that ends this turn, and only this one.
        timeout: Seconds that this turn may take.
        turn_id: The id of the turn. By default it is given a new one.
        then: Awaited with the outcome before the end of the turn is reported, to save it for example.

    Raises:
        UsageError: An argument has the wrong type, or `timeout` is out of range.
    """

    work: AnyWork
    input: object = None
    consumed: Sequence[T] | None = None
    remaining: Sequence[T] = ()
    signal: AbortSignal | None = None
    timeout: float | None = None
    turn_id: str | None = None
    then: Callable[[Outcome[Any]], Awaitable[object]] | None = None

    def __post_init__(self) -> None:
        if not callable(self.work):
            raise UsageError(f"TurnPlan.work must be an agent, a flow or any Work, not {type(self.work).__name__}")
        if self.signal is not None and not isinstance(self.signal, AbortSignal):
            raise UsageError(f"TurnPlan.signal cannot be {self.signal!r}")
        if self.turn_id is not None and not isinstance(self.turn_id, str):
            raise UsageError(f"TurnPlan.turn_id cannot be {self.turn_id!r}")
        if self.then is not None and not callable(self.then):
            raise UsageError(f"TurnPlan.then cannot be {self.then!r}")
        if self.timeout is not None:
            if not isinstance(self.timeout, int | float):
                raise UsageError(f"TurnPlan.timeout cannot be {self.timeout!r}")
            check_seconds("timeout", self.timeout)


TurnPlan.__init__ = accepts_deadline(TurnPlan.__init__)  # type: ignore[method-assign]


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
