"""Clean-ups: a synchronous one runs in a thread and is left behind in time, everything of the loop runs on the loop."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from safepoint.abort import AbortController
from safepoint.events import Event, ProgressMade
from safepoint.run import Completed, Context, settle
from safepoint.testing import FakeClock
from safepoint.testing import drain_ready_tasks as let_settle

SECONDS = 10.0


class Blocking:
    """A synchronous clean-up that blocks until `gate` is set."""

    def __init__(self, result: object = None) -> None:
        self.began, self.gate, self.returned = threading.Event(), threading.Event(), threading.Event()
        self.result = result

    def close(self) -> object:
        self.began.set()
        self.gate.wait(SECONDS)
        self.returned.set()
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    made = Blocking()
    yield made
    made.gate.set()


async def begun(blocking: Blocking) -> None:
    assert await asyncio.to_thread(blocking.began.wait, SECONDS)


async def test_events_of_a_synchronous_clean_up_are_delivered_on_the_loop_and_before_the_end_of_the_run():
    events: list[tuple[Event, threading.Thread]] = []

    def heard(event: Event) -> None:
        events.append((event, threading.current_thread()))

    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(lambda: ctx.progress("closing"))

    assert isinstance(await settle(Context(emit=heard), work, None), Completed)
    assert [event.kind for event, _ in events] == ["run_started", "progress_made", "run_ended"]
    assert {thread for _, thread in events} == {threading.current_thread()}


async def test_events_of_a_clean_up_that_was_left_behind_are_dropped(clock: FakeClock, blocking: Blocking):
    events: list[Event] = []
    controller, told = AbortController(), threading.Event()

    async def work(ctx: Context, value: object) -> None:
        def cleanup() -> None:
            blocking.close()
            ctx.progress("too late")
            told.set()

        ctx.on_exit(cleanup)
        controller.abort()

    settling = asyncio.ensure_future(settle(Context(signal=controller.signal, emit=events.append), work, None))
    await begun(blocking)
    await clock.elapse(5)
    async with asyncio.timeout(SECONDS):
        await settling
    blocking.gate.set()
    assert await asyncio.to_thread(told.wait, SECONDS)
    await let_settle()
    assert not any(isinstance(event, ProgressMade) for event in events)
    assert events[-1].kind == "run_ended"


async def test_an_outer_cancellation_waits_for_a_synchronous_clean_up_before_the_next_one_begins(blocking: Blocking):
    order: list[str] = []

    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(lambda: order.append(f"next, {blocking.returned.is_set()}"))
        ctx.on_exit(blocking.close)

    events: list[Event] = []
    task = asyncio.ensure_future(settle(Context(emit=events.append), work, None))
    await begun(blocking)
    task.cancel()
    await let_settle()
    assert not task.done()
    blocking.gate.set()
    await asyncio.wait([task], timeout=SECONDS)
    assert task.cancelled()
    assert order == ["next, True"]
    assert [event.kind for event in events] == ["run_started", "run_ended"]


async def test_a_second_outer_cancellation_leaves_a_synchronous_clean_up_at_once(blocking: Blocking):
    events: list[Event] = []

    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(blocking.close)

    task = asyncio.ensure_future(settle(Context(emit=events.append), work, None))
    await begun(blocking)
    for _ in range(2):
        task.cancel()
        await let_settle()
    await asyncio.wait([task], timeout=SECONDS)
    assert task.cancelled()
    assert [event.kind for event in events] == ["run_started", "cleanup_failed", "run_ended"]
    assert "was interrupted by CancelledError; its thread was left behind at" in events[1].message  # type: ignore[union-attr]
    blocking.gate.set()
    assert await asyncio.to_thread(blocking.returned.wait, SECONDS)


async def test_a_clean_up_that_is_cancelled_once_is_still_bounded(clock: FakeClock, blocking: Blocking):
    async def work(ctx: Context, value: object) -> None:
        ctx.on_exit(blocking.close)

    events: list[Event] = []
    task = asyncio.ensure_future(settle(Context(emit=events.append), work, None))
    await begun(blocking)
    await clock.elapse(4)
    task.cancel()
    await clock.elapse(0.9)
    assert not task.done()
    await clock.elapse(0.1)
    await asyncio.wait([task], timeout=SECONDS)
    assert task.cancelled()
    assert [event.kind for event in events] == ["run_started", "cleanup_failed", "run_ended"]
    blocking.gate.set()
