"""Owns the tests of what commands and the loop's task have in common: what is written wakes, from anywhere."""

import asyncio
import threading

import pytest

from safepoint import AbortController, AbortError, AbortReason
from safepoint.abort import current_clock
from safepoint.events import Event, LoopIdle
from safepoint.run import StopAt, StopRequest
from safepoint.turns.loop_state import LoopState

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def state(heard: list[Event] | None = None) -> LoopState[str]:
    return LoopState("loop", "id", current_clock(), AbortController(), None if heard is None else heard.append, None)


def test_nothing_is_committed_until_somebody_asks() -> None:
    fresh = state()
    assert (fresh.committed, fresh.stops_running_turn) == (False, False)
    assert fresh.commit(StopRequest(StopAt.TURN_END, "tree"))
    assert (fresh.committed, fresh.stops_running_turn, fresh.inbox.closed) == (True, False, True)
    assert fresh.commit(StopRequest(StopAt.SAFE_POINT, "tree"))
    assert fresh.stops_running_turn
    assert not fresh.commit(StopRequest(StopAt.TURN_END, "tree")), "it never becomes weaker"


def test_an_outside_abort_is_a_commitment_too() -> None:
    fresh = state()
    fresh.controller.abort("gone")
    assert (fresh.committed, fresh.stops_running_turn) == (True, True)


@pytest.mark.parametrize("from_thread", [False, True], ids=["here", "thread"])
async def test_news_wakes_the_task_from_any_thread(from_thread: bool) -> None:
    fresh = state()
    fresh.bind_to_running_loop()
    waiting = asyncio.ensure_future(fresh.wait_for_change())
    await asyncio.sleep(0)
    if from_thread:
        thread = threading.Thread(target=fresh.wake)
        thread.start()
        thread.join()
    else:
        fresh.wake()
    async with asyncio.timeout(5):
        await waiting


async def test_news_that_came_before_the_wait_is_not_lost() -> None:
    fresh = state()
    fresh.bind_to_running_loop()
    fresh.wake()
    async with asyncio.timeout(5):
        await fresh.wait_for_change()


@pytest.mark.backends("asyncio")  # uvloop does not show its queue
async def test_a_flood_of_wake_ups_from_a_thread_is_one() -> None:
    fresh = state()
    fresh.bind_to_running_loop()
    await asyncio.to_thread(fresh.wake)
    await asyncio.sleep(0)

    def flood() -> int:
        for _ in range(1000):
            fresh.wake()
        return len(asyncio_loop._ready)  # type: ignore[attr-defined]

    asyncio_loop = asyncio.get_running_loop()
    assert await asyncio.to_thread(flood) < 10
    async with asyncio.timeout(5):
        await fresh.wait_for_change()
        woken = asyncio.ensure_future(fresh.wait_for_change())
        await asyncio.to_thread(fresh.wake)
        await woken


def test_waking_and_telling_a_loop_that_is_gone_does_nothing() -> None:
    heard: list[Event] = []
    fresh = state(heard)

    async def main() -> None:
        fresh.bind_to_running_loop()

    asyncio.run(main())
    for call in (fresh.wake, lambda: fresh.report(LoopIdle(**fresh.stamp()))):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert heard == []


async def test_events_from_threads_are_told_in_the_loops_own_thread() -> None:
    threads: list[int] = []
    fresh: LoopState[str] = LoopState(
        "loop", "id", current_clock(), AbortController(), lambda event: threads.append(threading.get_ident()), None
    )
    fresh.bind_to_running_loop()
    await asyncio.to_thread(fresh.report, LoopIdle(**fresh.stamp()))
    await asyncio.sleep(0)
    assert threads == [threading.get_ident()]


def test_a_listener_that_breaks_ends_the_loop_and_hears_no_more() -> None:
    heard: list[Event] = []

    def breaks(event: Event) -> None:
        heard.append(event)
        raise ValueError("the screen is gone")

    fresh: LoopState[str] = LoopState("loop", "id", current_clock(), AbortController(), breaks, None)
    fresh.report(LoopIdle(**fresh.stamp()))
    fresh.report(LoopIdle(**fresh.stamp()))
    assert len(heard) == 1
    assert (str(fresh.callback_error), fresh.committed, fresh.signal.aborted) == ("the screen is gone", True, True)


def test_a_listener_that_passes_on_an_abort_has_not_failed() -> None:
    """Also when the loop goes on, as after a preempt: `event.outcome.unwrap()` is all it did."""

    def passes_on(event: Event) -> None:
        raise AbortError(AbortReason("preempted", "something newer came"))

    fresh: LoopState[str] = LoopState("loop", "id", current_clock(), AbortController(), passes_on, None)
    fresh.report(LoopIdle(**fresh.stamp()))
    assert (fresh.callback_error, fresh.committed) == (None, False)
