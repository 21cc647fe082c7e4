"""Owns random schedules of a loop's whole life, on fake time: the laws hold after each step, and all is repeatable.

A schedule is a list of numbers, so that hypothesis can shrink it and a seed can make thousands. Each number is one
command, decided by what is possible at that moment.
"""

import asyncio
import gc
import random
from collections.abc import Iterator

import pytest

from safepoint import Aborted
from safepoint.events import Event, TurnEnded
from safepoint.run import Context, MemoryCheckpoints, StopAt
from safepoint.testing import drain_ready_tasks
from safepoint.turns import TurnLoop, TurnPlan
from tests.conftest import counts

pytestmark = pytest.mark.timeout(300)  # thousands of steps, on a busy machine too


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> Iterator[None]:
    """Garbage is collected after many schedules: what other tests have left in memory is not looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_work_that_returns_in_the_moment_of_a_stop_is_never_done_again() -> None:
    """The item's event is set and the loop is stopped, with some turns of the event loop between: 600 ways."""

    async def play(seed: int) -> tuple[list[str], bool]:
        dice, store, paid = random.Random(seed), MemoryCheckpoints(), list[str]()
        ready, cut = asyncio.Event(), False

        async def pay(ctx: Context, item: str) -> str:
            await ready.wait()
            for _ in range(dice.randrange(2)):
                await asyncio.sleep(0)
            paid.append(item)
            return "paid"

        async def plan(items: list[str]) -> TurnPlan[str]:
            return TurnPlan(pay, items[0], consumed=items[:1], remaining=items[1:])

        def heard(event: Event) -> None:
            nonlocal cut
            cut = cut or (isinstance(event, TurnEnded) and isinstance(event.outcome, Aborted) and bool(paid))

        async def turns(count: int) -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        for first in (True, False):
            async with TurnLoop(plan, on_event=heard, checkpoints=store, checkpoint_id="k", item_type=str) as loop:
                if first:
                    loop.push("a")
                await turns(dice.randrange(8))
                ready.set()
                await turns(dice.randrange(4))
                at = dice.choice((None, StopAt.SAFE_POINT, StopAt.NOW, StopAt.NOW))
                loop.stop(at) if first else await drain_ready_tasks()
            await loop.wait(10)
        return paid, cut

    played = [asyncio.run(play(seed)) for seed in range(counts(600, 5000))]
    assert {len(paid) for paid, _ in played} == {1}, "each was paid once: now, or by the next loop"
    assert any(cut for _, cut in played), "in some, the stop came in that very moment"
