"""The bookkeeping of a leaf: what ignores the abort is named once, what is abandoned is fenced off."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from safepoint.abort import AbortError, shield
from safepoint.events import AbortIgnored, LeafAbandoned, ProgressMade
from safepoint.run import Context, Policy, leaf
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.leaves import LeafRig, forever

COOPERATE = Policy(on_abort="cooperate")


async def deaf(ctx: Context, gate: asyncio.Event) -> str:
    await gate.wait()
    return "at last"


async def test_a_leaf_that_ignores_the_abort_is_named_once_and_waited_for(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    bench, gate = LeafRig(), asyncio.Event()
    task = asyncio.ensure_future(leaf(bench.ctx, deaf, gate, policy=COOPERATE))
    await drain_ready_tasks()
    bench.controller.abort("stop")
    await clock.elapse(2.9)
    assert caplog.records == []
    await clock.elapse(60)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.name == "safepoint"
    assert (record.__dict__["run_id"], record.__dict__["operation"]) == ("r1", "run/deaf")
    assert "run/deaf still runs 3 s after the abort" in record.getMessage()
    assert f"{__file__}:{deaf.__code__.co_firstlineno + 1} in deaf" in record.getMessage()
    assert "docs/stopping.md" in record.getMessage()
    (event,) = [event for event in bench.events if isinstance(event, AbortIgnored)]
    assert event.where == f"{__file__}:{deaf.__code__.co_firstlineno + 1} in deaf"
    assert not task.done()  # waited for, visibly
    gate.set()
    assert await task == "at last"
    assert clock.pending == 0


async def test_normal_work_causes_no_warning_and_leaves_no_timer(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    bench, gate = LeafRig(), asyncio.Event()
    task = asyncio.ensure_future(leaf(bench.ctx, deaf, gate))
    await clock.elapse(600)
    gate.set()
    await task
    assert caplog.records == []
    assert clock.pending == 0


async def test_a_leaf_that_swallows_is_found_out_and_interrupted_again_once_per_grace(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    bench = LeafRig()
    swallowed: list[float] = []

    async def swallows(ctx: Context, value: object) -> str:
        while len(swallowed) < 3:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                swallowed.append(clock.monotonic() - 1000)
        return "gave up"

    handler = swallows.__code__.co_firstlineno + 4
    task = asyncio.ensure_future(leaf(bench.ctx, swallows, policy=Policy(grace=5)))
    await drain_ready_tasks()
    bench.controller.abort()
    await clock.elapse(20)
    assert await task == "gave up"
    assert swallowed == [0, 5, 10]
    assert f"may have swallowed the interruption at {__file__}:{handler} in swallows (a candidate)" in caplog.text
    current = asyncio.current_task()
    assert current is not None
    assert clock.pending == 0


async def test_a_shielded_clean_up_is_not_interrupted_again(clock: FakeClock):
    bench, gate, path = LeafRig(), asyncio.Event(), []

    async def cleans(ctx: Context, value: object) -> None:
        try:
            await forever(ctx, None)
        finally:
            with shield(60):
                await gate.wait()
            path.append("cleaned")

    task = asyncio.ensure_future(leaf(bench.ctx, cleans, policy=Policy(grace=1)))
    await drain_ready_tasks()
    bench.controller.abort()
    await clock.elapse(10)
    gate.set()
    with pytest.raises(AbortError):
        await task
    assert path == ["cleaned"]


async def test_an_abandoned_leaf_is_left_reported_and_fenced_off(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    bench, gate = LeafRig(), asyncio.Event()

    async def stubborn(ctx: Context, value: object) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass
        ctx.progress("late event")
        with pytest.raises(AbortError):
            await leaf(ctx, forever)
        return "late result"

    policy = Policy(abandon_after=4, grace=60)
    task = asyncio.ensure_future(leaf(bench.ctx, stubborn, policy=policy))
    await drain_ready_tasks()
    bench.controller.abort("stop")
    await clock.elapse(3.9)
    assert not task.done()
    await clock.elapse(0.2)
    with pytest.raises(AbortError, match="stop"):
        await task
    (entry,) = bench.entries()
    assert entry.fate == "still_running"
    assert entry.where is not None
    assert entry.where.endswith("in stubborn")
    (event,) = [event for event in bench.events if isinstance(event, LeafAbandoned)]
    assert event.where == entry.where
    before = len(bench.events)
    gate.set()
    await drain_ready_tasks()
    assert len(bench.events) == before  # the late event was dropped
    assert not any(isinstance(event, ProgressMade) for event in bench.events)
    late = [r.getMessage() for r in caplog.records if "abandoned" in r.getMessage()]
    assert len(late) == 2  # what came first, and that it returned: each once
    assert clock.pending == 0


async def test_a_late_exception_of_an_abandoned_leaf_is_dropped_and_logged(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    bench, gate = LeafRig(), asyncio.Event()

    async def stubborn(ctx: Context, value: object) -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass
        raise LookupError("late")

    task = asyncio.ensure_future(leaf(bench.ctx, stubborn, policy=Policy(abandon_after=1, grace=60)))
    await drain_ready_tasks()
    bench.controller.abort()
    await clock.elapse(1)
    with pytest.raises(AbortError):
        await task
    gate.set()
    await drain_ready_tasks()
    assert "run/stubborn raised after it had been abandoned" in caplog.text


def test_a_warning_for_a_loop_that_is_gone_is_still_logged(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    bench, gates = LeafRig(), []
    loop = asyncio.new_event_loop()

    async def start() -> None:
        gates.append(asyncio.Event())
        task = asyncio.ensure_future(leaf(bench.ctx, deaf, gates[0], policy=COOPERATE))
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is destroyed on purpose
        await drain_ready_tasks()

    loop.run_until_complete(start())
    loop.close()
    bench.controller.abort()
    clock.advance(3)
    assert "run/deaf still runs 3 s after the abort" in caplog.text


class BlockedLoop:
    """A tool's function that blocks the event loop, and a thread that stops the run and lets time pass meanwhile."""

    def __init__(self, bench: LeafRig, clock: FakeClock, seconds: float) -> None:
        self._bench, self._clock, self._seconds = bench, clock, seconds

    def block(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._stop).result(30)

    def _stop(self) -> None:
        self._bench.controller.abort("stop")
        self._clock.advance(self._seconds)


def deep(loop: BlockedLoop) -> None:
    loop.block()


def line_in(function: Callable[..., object], offset: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + offset} in {function.__name__}"


@pytest.mark.backends("asyncio", "uvloop", "eager")
@pytest.mark.parametrize("abandon_after", [None, 600.0], ids=["in the caller's task", "in a task of its own"])
async def test_an_async_tool_that_blocks_the_event_loop_is_named_by_the_line_where_it_does(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, abandon_after: float | None
):
    bench = LeafRig()

    async def tool(ctx: Context, value: object) -> str:
        deep(BlockedLoop(bench, clock, 3))
        return "done"

    assert await leaf(bench.ctx, tool, policy=Policy(abandon_after=abandon_after)) == "done"
    await drain_ready_tasks()
    (record,) = caplog.records
    blocked = f"{line_in(BlockedLoop.block, 2)} (in "
    assert f"It is at {blocked}" in record.getMessage()
    (event,) = [event for event in bench.events if isinstance(event, AbortIgnored)]
    assert event.where is not None
    assert event.where.startswith(blocked)
    assert event.note == ""


@pytest.mark.backends("asyncio", "uvloop", "eager")
async def test_the_receipt_names_where_an_abandoned_tool_blocked_the_event_loop(clock: FakeClock):
    bench, gate = LeafRig(), asyncio.Event()

    async def tool(ctx: Context, value: object) -> None:
        deep(BlockedLoop(bench, clock, 1))
        await gate.wait()

    with pytest.raises(AbortError):
        await leaf(bench.ctx, tool, policy=Policy(on_abort="cooperate", abandon_after=1))
    (entry,) = bench.entries()
    assert entry.fate == "still_running"
    assert entry.where is not None
    waits, _, blocked = entry.where.partition(" (when its time was up, it blocked the event loop at ")
    assert waits == line_in(tool, 2)
    assert blocked.startswith(line_in(BlockedLoop.block, 2))
    gate.set()
    await drain_ready_tasks()
    assert bench.fates() == ["finished"]
