"""The second press on a loop: what does not end in the running turn is left behind."""

import asyncio
import threading
from typing import Any

import pytest

from safepoint import Aborted, StopAt
from safepoint.errors import UsageError
from safepoint.run import Context
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import TurnLoop, TurnPlan

SECONDS = 10.0


class Deaf:
    """The work of a turn: a function in a thread, inside a library until it is let go."""

    def __init__(self) -> None:
        self.inside, self.let_go, self.out = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, ctx: Context, item: str) -> Any:
        self.inside.set()
        try:
            self.let_go.wait(SECONDS)
        finally:  # it may be interrupted as soon as the library returns
            self.out.set()
        return "too late"

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, SECONDS)
        while not self.let_go._cond._waiters:  # type: ignore[attr-defined]  # before that it is in its own code
            await asyncio.sleep(0.001)  # real time: a thread on its way into a lock


async def test_a_loop_that_is_stopped_leaves_behind_what_does_not_end(clock: FakeClock) -> None:
    deaf = Deaf()
    outcomes: list[Any] = []

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(deaf, items[0])

    def heard(event: Any) -> None:
        if event.kind == "turn_ended":
            outcomes.append(event.outcome)

    loop = TurnLoop(plan, on_event=heard)
    loop.start()
    loop.push("one")
    await deaf.begun()
    loop.stop(StopAt.NOW)
    await clock.elapse(2)
    assert not loop.finished
    ack = loop.stop(abandon=1)
    told = "no further turn; the running one stops at NOW; what has not ended in 1 s is left behind"
    assert (ack.status, ack.message) == ("already_stopping", told)
    await clock.elapse(1)
    async with asyncio.timeout(SECONDS):
        await loop.wait()
    (outcome,) = outcomes
    assert isinstance(outcome, Aborted)
    assert len(outcome.receipt.still_running) == 1
    deaf.let_go.set()
    assert await asyncio.to_thread(deaf.out.wait, SECONDS)
    await drain_ready_tasks()


async def test_a_turn_that_may_end_by_itself_is_not_left(clock: FakeClock) -> None:
    deaf = Deaf()

    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(deaf, items[0])

    loop = TurnLoop(plan)
    loop.start()
    loop.push("one")
    await deaf.begun()
    loop.stop(abandon=0)
    await clock.elapse(60)
    assert not loop.finished, "the turn was not aborted"
    deaf.let_go.set()
    async with asyncio.timeout(SECONDS):
        assert (await loop.wait()).handled == 1


async def test_it_does_not_go_with_a_stop_that_touches_no_turn() -> None:
    async def plan(items: list[str]) -> TurnPlan[str]:
        return TurnPlan(Deaf(), items[0])

    loop = TurnLoop(plan)
    with pytest.raises(UsageError, match="when_idle_for"):
        loop.stop(when_idle_for=5, abandon=1)
    with pytest.raises(UsageError, match="abandon"):
        loop.stop(abandon=-1)
