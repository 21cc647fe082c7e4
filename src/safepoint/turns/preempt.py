"""Owns preemption: the request that a running turn makes way for a newer item, and its answer. Knows nothing of loops.

A `PreemptAck` is always decided, exactly once, whatever happens to the turn. A push may come from any thread, and so
may the decision: the loop decides when the turn begins or ends, a timer when the request is due, a stop when it comes
first. Each of those places decides without asking whether another one has done so: `dict.setdefault` is atomic, and the
first status stays. Waiters may belong to several event loops. `decide` sets the status first and looks for waiters
second, `__await__` adds its waiter first and looks at the status second: in either order one of them sees the other.
"""

import asyncio
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..abort.clock import check_seconds
from ..abort.event_loop import post, resolve
from ..errors import UsageError
from ..run.stop import StopAt

__all__ = ["Preempt", "PreemptAck", "PreemptStatus", "Pushed"]

PreemptStatus: TypeAlias = Literal["submitted", "no_turn", "turn_over", "loop_stopped"]


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
        if self.within is not None and check_seconds("within", self.within) <= 0:
            raise UsageError(f"within must be more than 0 seconds, not {self.within!r}")
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
