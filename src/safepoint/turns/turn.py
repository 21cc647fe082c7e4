"""Owns one turn: what it is to do, and its way from planning to its end. Knows nothing of the queue.

The phases are a small machine: planning → active → over, or planning → over. A preempt is bound to one turn: to the
one that its caller saw, never to a later one.
"""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from ..abort import AbortController, AbortReason, AbortSignal, Clock
from ..abort.clock import Timer, check_seconds
from ..abort.renamed_arguments import accepts_deadline
from ..errors import UsageError
from ..run.context import Work
from ..run.outcome import Outcome
from ..run.stop import Stop, StopAt, StopRequest
from .preempt import Preempt, PreemptAck

__all__ = ["Phase", "Turn", "TurnPlan"]

T = TypeVar("T")
Phase: TypeAlias = Literal["planning", "active", "over"]


@dataclass(frozen=True, slots=True)
class TurnPlan(Generic[T]):
    """What a turn is to do.

    work, input  an agent, a flow, any Work, and what it is given
    consumed     the items this turn is about; None: all that are not in `remaining`
    remaining    items for a later turn; what is in neither is dropped, on purpose
    signal       one more signal that ends this turn, and only this one
    timeout      seconds that this turn may take
    turn_id      how the turn is called, if it has a name already
    then         what is still to be done with the outcome, such as saving it, before anyone is told
    """

    work: Work[Any, Any]
    input: Any = None
    consumed: Sequence[T] | None = None
    remaining: Sequence[T] = ()
    signal: AbortSignal | None = None
    timeout: float | None = None
    turn_id: str | None = None
    then: Callable[[Outcome[Any]], Awaitable[object]] | None = None

    def __post_init__(self) -> None:
        if not callable(self.work):
            raise UsageError(f"TurnPlan.work must be an agent, a flow or any Work, not {type(self.work).__name__}")
        for name, kind in (("signal", AbortSignal), ("turn_id", str), ("timeout", int | float), ("then", Callable)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):  # type: ignore[arg-type]  # of `Callable`
                raise UsageError(f"TurnPlan.{name} cannot be {value!r}")
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)


TurnPlan.__init__ = accepts_deadline(TurnPlan.__init__)  # type: ignore[method-assign]


@dataclass(slots=True, eq=False)
class _Request:
    """Somebody wants the turn to make way. `due` False: not yet."""

    preempt: Preempt
    ack: PreemptAck
    due: bool
    timer: Timer | None = None


@dataclass
class Turn(Generic[T]):
    """A turn while it is planned and while it runs. Strategies look at it; only the loop moves it on."""

    id: str
    items: list[T]
    stop: Stop
    loop_stop: Stop
    phase: Phase = "planning"
    consumed: list[T] = field(default_factory=list)
    preempted: bool = False
    pausing: bool = False
    returned: bool = False  # its work has given back a value, whatever was asked for meanwhile
    on_preempt: "Callable[[Turn[T], StopAt], object]" = lambda turn, at: None  # it is asked to make way; any thread
    _requests: list[_Request] = field(default_factory=list)

    @classmethod
    def plan(cls, items: list[T], loop_stop: Stop, clock: Clock) -> "Turn[T]":
        """A turn to be planned, under the loop's own stop."""
        return cls(uuid.uuid4().hex, items, Stop(None, clock, loop_stop), loop_stop)

    def request(self, preempt: Preempt, ack: PreemptAck) -> None:
        """Make way for something newer. While it is planned, the request waits for it. Any thread."""
        # It is written down before the phase is read, and the phase changes before this is read: one sees the other.
        request = _Request(preempt, ack, due=preempt.delay <= 0)
        self._requests.append(request)
        if not request.due:
            due = self.stop.clock.monotonic() + preempt.delay
            request.timer = self.stop.clock.call_at(due, lambda: self._due(request))
        self._look(request)

    def _due(self, request: _Request) -> None:
        request.due = True
        self._look(request)

    def _look(self, request: _Request) -> None:
        if self.phase == "over":
            self._close(request, "turn_over")
        elif request.due and self.loop_stop.asked:
            request.ack.decide("loop_stopped")  # a stop comes before any preempt
        elif request.due and self.phase == "active" and request.ack.status is None:
            self._submit(request.preempt, request.ack)

    def _close(self, request: _Request, status: Literal["turn_over", "loop_stopped"]) -> None:
        if request.timer is not None:
            request.timer.disarm()
        request.ack.decide(status)

    def _submit(self, preempt: Preempt, ack: PreemptAck) -> None:
        now = self.stop.clock.monotonic()
        deadline = None if preempt.within is None else now + preempt.within
        self.preempted = True
        reason = AbortReason("preempted", "something newer came")
        self.stop.ask(StopRequest(preempt.at, "root", deadline, reason, now))
        ack.decide("submitted")
        self.on_preempt(self, preempt.at)

    def activate(self, consumed: list[T], controller: AbortController) -> None:
        """It is planned, and begins. What waited for it is asked for now."""
        if self.phase != "planning":
            raise UsageError(f"turn {self.id} is {self.phase}: only a turn that is being planned can begin")
        self.phase, self.consumed = "active", consumed
        self.stop.bind(controller)
        for request in list(self._requests):
            self._look(request)

    def end(self, status: Literal["turn_over", "loop_stopped"]) -> None:
        """It is over, one way or another: every request that waits has its answer."""
        self.phase = "over"
        for request in list(self._requests):
            self._close(request, status)
        self.stop.close()
