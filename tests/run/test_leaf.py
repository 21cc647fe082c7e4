"""Leaves: the gate, the ladder, the receipt. Awaits, threads, processes and streams under one policy."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safepoint.abort import AbortError, AbortSignal, current_signal
from safepoint.events import LeafEnded, LeafStarted
from safepoint.run import Context, Entry, LeafTimeout, Policy, leaf, wait
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.leaves import LeafRig, forever
from tests.run import leaf_functions

COOPERATE = Policy(on_abort="cooperate")


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)  # real time: a thread or process has to get somewhere


async def test_a_leaf_gives_its_value_and_has_its_events_and_its_line():
    bench = LeafRig()

    async def search(ctx: Context, query: str) -> str:
        assert ctx.path == ("run", "search")
        assert current_signal() is bench.controller.signal
        return query.upper()

    assert await leaf(bench.ctx, search, "x") == "X"
    started, ended = bench.events
    assert isinstance(started, LeafStarted)
    assert isinstance(ended, LeafEnded)
    assert (ended.path, ended.fate, ended.leaf) == (("run", "search"), "finished", "await")
    assert bench.entries() == (Entry("run/search", "await", "finished"),)
    assert bench.controller.signal.observers == 0


async def test_an_abort_interrupts_it_and_the_receipt_says_stopped():
    bench = LeafRig()
    asyncio.get_running_loop().call_soon(bench.controller.abort, "stop")
    with pytest.raises(AbortError, match="stop"):
        await leaf(bench.ctx, forever, name="search")
    (entry,) = bench.entries()
    assert (entry.name, entry.fate) == ("run/search", "stopped")
    assert entry.seconds is not None
    assert bench.controller.signal.observers == 0


async def test_an_aborted_run_starts_no_leaf_of_any_kind():
    bench = LeafRig()
    bench.controller.abort()
    effects: list[str] = []
    kinds: tuple[tuple[Callable[..., Any], Policy], ...] = (
        (forever, Policy()),
        (forever, Policy(abandon_after=1)),
        (leaf_functions.naive, Policy()),
        (leaf_functions.process_double, Policy(isolation="process")),
    )
    for work, policy in kinds:
        with pytest.raises(AbortError):
            await leaf(bench.ctx, work, effects, policy=policy)
    assert bench.fates() == ["not_started"] * 4
    assert (effects, bench.events) == ([], [])


async def test_an_ordinary_error_is_the_leafs_own_and_finished():
    bench = LeafRig()

    async def breaks(ctx: Context, value: object) -> None:
        raise LookupError("gone")

    for policy in (Policy(), Policy(abandon_after=1)):
        with pytest.raises(LookupError, match="gone"):
            await leaf(bench.ctx, breaks, policy=policy)
    assert bench.fates() == ["finished", "finished"]
    assert bench.entries()[0].note == "failed: LookupError: gone"


async def test_a_stop_plus_an_ordinary_error_is_stopped_and_the_error_is_in_the_note():
    bench = LeafRig()

    async def breaks(ctx: Context, value: object) -> None:
        try:
            await forever(ctx, None)
        except asyncio.CancelledError:
            raise LookupError("in the clean-up") from None

    asyncio.get_running_loop().call_soon(bench.controller.abort)
    with pytest.raises(LookupError):
        await leaf(bench.ctx, breaks)
    (entry,) = bench.entries()
    assert (entry.fate, entry.note) == ("stopped", "it raised LookupError: in the clean-up")


async def test_a_private_cancelled_error_without_a_stop_stays_what_it_is():
    bench = LeafRig()

    async def private(ctx: Context, value: object) -> None:
        raise asyncio.CancelledError("mine")

    for policy in (Policy(), Policy(abandon_after=1)):
        with pytest.raises(asyncio.CancelledError):
            await leaf(bench.ctx, private, policy=policy)
    assert bench.fates() == ["finished", "finished"]


async def test_cooperate_only_shows_the_signal():
    bench = LeafRig()

    async def cooperates(ctx: Context, value: object) -> str:
        assert current_signal() is ctx.signal  # it is there, it only does not interrupt
        await ctx.signal.wait_async()
        await drain_ready_tasks()
        return "by itself"

    asyncio.get_running_loop().call_soon(bench.controller.abort)
    assert await leaf(bench.ctx, cooperates, policy=COOPERATE) == "by itself"
    assert bench.fates() == ["finished"]


async def test_finish_may_finish_within_its_grace(clock: FakeClock):
    bench = LeafRig()
    gate = asyncio.Event()

    async def finishes(ctx: Context, value: object) -> str:
        await gate.wait()
        return "finished"

    task = asyncio.ensure_future(leaf(bench.ctx, finishes, policy=Policy(on_abort="finish", grace=2)))
    await drain_ready_tasks()
    bench.controller.abort()
    await clock.elapse(1.9)
    gate.set()
    assert await task == "finished"
    assert bench.fates() == ["finished"]
    assert clock.pending == 0


async def test_finish_is_interrupted_when_its_grace_is_over(clock: FakeClock):
    bench = LeafRig()
    task = asyncio.ensure_future(leaf(bench.ctx, forever, policy=Policy(on_abort="finish", grace=2)))
    await drain_ready_tasks()
    bench.controller.abort("stop")
    await clock.elapse(1.9)
    assert not task.done()
    await clock.elapse(0.2)
    with pytest.raises(AbortError, match="stop"):
        await task
    assert clock.pending == 0


@pytest.mark.parametrize("on_abort", ["interrupt", "cooperate", "finish"])
async def test_a_leafs_own_limit_ends_the_leaf_and_not_the_run(clock: FakeClock, on_abort: Any):
    bench = LeafRig()
    for abandon_after in (None, 60):
        policy = Policy(timeout=5, on_abort=on_abort, abandon_after=abandon_after)
        task = asyncio.ensure_future(leaf(bench.ctx, forever, name="slow", policy=policy))
        await clock.elapse(4.9)
        assert not task.done()
        await clock.elapse(0.1)
        with pytest.raises(LeafTimeout, match="run/slow took longer than its limit of 5 s") as caught:
            await task
        assert isinstance(caught.value, TimeoutError)
    assert not bench.controller.signal.aborted
    assert clock.pending == 0


async def test_stop_deadline_and_limit_in_one_instant_give_the_stop(clock: FakeClock):
    bench = LeafRig(timeout=5)
    task = asyncio.ensure_future(leaf(bench.ctx, forever, policy=Policy(timeout=5)))
    await drain_ready_tasks()
    clock._now += 5
    bench.controller.abort("person")
    await clock.elapse(0)
    with pytest.raises(AbortError, match="person"):
        await task


async def test_deadline_and_limit_in_one_instant_give_the_deadline(clock: FakeClock):
    bench = LeafRig(timeout=5)
    task = asyncio.ensure_future(leaf(bench.ctx, forever, policy=Policy(timeout=5)))
    await clock.elapse(5)
    with pytest.raises(AbortError) as caught:
        await task
    assert caught.value.reason.kind == "deadline"


async def test_an_outer_cancellation_passes_through_a_leaf_of_every_kind():
    for work, policy in ((forever, Policy()), (forever, Policy(abandon_after=9)), (leaf_functions.polite, Policy())):
        bench = LeafRig()
        effects: list[str] = []
        task = asyncio.ensure_future(leaf(bench.ctx, work, effects, policy=policy))
        await until(lambda bench=bench: "leaf_started" in bench.kinds())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert bench.fates() == ["stopped"]
        assert bench.controller.signal.observers == 0


async def test_nested_leaves_end_with_one_abort_and_clean_up_in_between_is_left_in_peace():
    bench = LeafRig()
    path: list[str] = []

    async def inner(ctx: Context, value: object) -> None:
        await forever(ctx, None)

    async def outer(ctx: Context, value: object) -> None:
        try:
            await leaf(ctx, inner)
        finally:
            await drain_ready_tasks()
            path.append("cleaned")

    asyncio.get_running_loop().call_soon(bench.controller.abort)
    with pytest.raises(AbortError):
        await leaf(bench.ctx, outer)
    assert path == ["cleaned"]
    assert [(e.name, e.fate) for e in bench.entries()] == [("run/outer/inner", "stopped"), ("run/outer", "stopped")]


async def test_work_that_is_no_callable_is_refused():
    with pytest.raises(TypeError, match="work must be callable"):
        await leaf(Context(), "search")  # type: ignore[call-overload]


async def test_wait_is_a_leaf_that_ends_at_once_on_abort_and_otherwise_on_time(clock: FakeClock):
    bench = LeafRig()
    task = asyncio.ensure_future(wait(bench.ctx, 5))
    await clock.elapse(5)
    await task
    task = asyncio.ensure_future(wait(bench.ctx, 5))
    await drain_ready_tasks()
    bench.controller.abort()
    with pytest.raises(AbortError):
        await task
    assert [(e.kind, e.fate) for e in bench.entries()] == [("wait", "finished"), ("wait", "stopped")]


async def test_a_synchronous_function_runs_in_a_thread_and_gives_its_value():
    bench = LeafRig()
    assert await leaf(bench.ctx, leaf_functions.double, 21) == 42
    assert await leaf(bench.ctx, leaf_functions.ambient)
    assert [entry.kind for entry in bench.entries()] == ["thread", "thread"]


async def test_events_of_a_thread_come_between_its_start_and_its_end_in_the_loops_thread():
    bench = LeafRig()
    assert await leaf(bench.ctx, leaf_functions.progressing) == "done"
    assert bench.kinds() == ["leaf_started", "progress_made", "leaf_ended"]


async def test_a_naive_function_is_interrupted_within_a_moment_and_its_finally_blocks_run():
    bench = LeafRig()
    effects: list[str] = []
    task = asyncio.ensure_future(leaf(bench.ctx, leaf_functions.naive, effects))
    await until(lambda: "effect" in effects)
    pressed = time.monotonic()
    bench.controller.abort("stop")
    with pytest.raises(AbortError, match="stop"):
        await task
    took = time.monotonic() - pressed
    assert effects[-1] == "cleaned"
    assert 0.1 <= took < 5  # 100 ms to return by itself; the upper bound is a machine's under load
    count = len(effects)
    await asyncio.sleep(0.05)  # real time: nothing goes on
    assert len(effects) == count
    (entry,) = bench.entries()
    assert (entry.kind, entry.fate) == ("thread", "stopped")


async def test_a_polite_function_returns_by_itself_and_keeps_its_value():
    bench = LeafRig()
    effects: list[str] = []
    task = asyncio.ensure_future(leaf(bench.ctx, leaf_functions.polite, effects))
    await until(lambda: effects)
    bench.controller.abort()
    assert await task == "value"
    assert bench.fates() == ["finished"]


@pytest.mark.parametrize("policy", [COOPERATE, Policy(on_abort="finish", grace=60)], ids=["cooperate", "finish"])
async def test_cooperate_and_finish_switch_the_interrupt_off(policy: Policy):
    bench = LeafRig()
    effects: list[str] = []
    gate = threading.Event()

    def works(ctx: Context, value: object) -> str:
        effects.append("begun")
        while not gate.wait(0.01):
            effects.append("effect")
        return "finished"

    task = asyncio.ensure_future(leaf(bench.ctx, works, policy=policy))
    await until(lambda: effects)
    bench.controller.abort()
    await asyncio.sleep(0.3)  # real time: three times as long as an interrupt would take
    assert not task.done()
    gate.set()
    assert await task == "finished"


async def test_a_thread_that_cannot_be_interrupted_is_named_and_can_be_abandoned(caplog: pytest.LogCaptureFixture):
    bench = LeafRig()
    begun, gate = threading.Event(), threading.Event()

    def stuck(ctx: Context, value: object) -> None:
        begun.set()
        gate.wait(30)  # inside a library: not touched

    policy = Policy(warn_after=0.2, abandon_after=0.4)
    task = asyncio.ensure_future(leaf(bench.ctx, stuck, policy=policy))
    await until(begun.is_set)
    bench.controller.abort("stop")
    with pytest.raises(AbortError):
        await task
    (entry,) = bench.entries()
    assert entry.fate == "still_running"
    assert entry.where is not None
    assert entry.where.startswith(f"{__file__}:{stuck.__code__.co_firstlineno + 2}")
    assert "run/stuck still runs 0.2 s after the abort" in caplog.text
    gate.set()
    await until(lambda: bench.fates() == ["finished"])


async def test_a_limit_interrupts_a_thread_too():
    bench = LeafRig()
    effects: list[str] = []
    with pytest.raises(LeafTimeout):
        await leaf(bench.ctx, leaf_functions.naive, effects, policy=Policy(timeout=0.05))
    assert effects[-1] == "cleaned"
    assert not bench.controller.signal.aborted


async def test_a_function_in_a_process_gives_its_value_and_has_the_context_of_the_leaf():
    bench = LeafRig()
    value, pid, operation = await leaf(bench.ctx, leaf_functions.process_double, 21, policy=Policy(isolation="process"))
    assert (value, operation) == (42, "run/process_double")
    assert pid != os.getpid()
    assert bench.entries() == (Entry("run/process_double", "process", "finished"),)


async def test_a_process_that_ignores_its_signal_is_killed_and_the_receipt_says_stopped(tmp_path: Path):
    bench, told = LeafRig(), tmp_path / "pid"
    policy = Policy(isolation="process", grace=0.5)
    task = asyncio.ensure_future(leaf(bench.ctx, leaf_functions.process_naive, str(told), policy=policy))
    await until(lambda: told.exists() and told.read_text())
    bench.controller.abort("stop")
    with pytest.raises(AbortError, match="stop"):
        await task
    assert bench.fates() == ["stopped"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


async def test_leaving_nothing_behind_on_the_signal_of_a_long_run():
    bench = LeafRig()
    for _ in range(20):
        await leaf(bench.ctx, leaf_functions.double, 1)
        await leaf(bench.ctx, wait_a_tick, policy=Policy(timeout=30, abandon_after=30))
    assert bench.controller.signal.observers == 0
    assert AbortSignal.never().observers == 0


async def wait_a_tick(ctx: Context, value: object) -> None:
    await asyncio.sleep(0)
