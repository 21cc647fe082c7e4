"""Owns making way for something newer: what is asked for, and the answer that always comes. Knows nothing of loops."""

import asyncio
from collections.abc import Generator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..abort.clock import check_seconds
from ..errors import UsageError
from ..run.stop import StopAt

__all__ = ["Preempt", "PreemptAck", "PreemptStatus", "Pushed"]

PreemptStatus: TypeAlias = Literal["submitted", "no_turn", "turn_over", "loop_stopped"]


@dataclass(frozen=True, slots=True)
class Preempt:
    """The running turn is to make way: at this point, `within` seconds at the latest, asked for after `delay`."""

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
    """What became of a preempt. Await it for the status, which always comes.

    submitted     the turn seen at push time was asked to stop
    no_turn       there was none
    turn_over     it had ended before the request was due
    loop_stopped  the loop stopped, which comes before any preempt
    """

    def __init__(self) -> None:
        self._decided: Future[PreemptStatus] = Future()  # of a thread: a push may come from anywhere

    @property
    def status(self) -> PreemptStatus | None:
        """None: it is not decided yet."""
        return self._decided.result() if self._decided.done() else None

    def decide(self, status: PreemptStatus) -> None:
        """The first word counts."""
        if not self._decided.done():
            try:
                self._decided.set_result(status)
            except InvalidStateError:
                pass  # another thread was quicker

    def __await__(self) -> Generator[Any, None, PreemptStatus]:
        # The shield: whoever stops waiting does not take the answer from the others.
        return asyncio.shield(asyncio.wrap_future(self._decided)).__await__()

    def __repr__(self) -> str:
        return f"PreemptAck({self.status or 'not decided yet'})"


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of a push. `accepted` False: the item is still yours; `why` says why. `ack`: of its preempt."""

    accepted: bool
    ack: PreemptAck | None = None
    why: str = ""

    def __bool__(self) -> bool:
        return self.accepted
