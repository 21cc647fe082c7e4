"""The ambient signal follows guards into tasks and threads; a shield holds aborts back, but not for ever."""

import asyncio
import contextvars
import inspect
import math
import threading

import pytest

from safepoint.abort import (
    AbortController,
    AbortError,
    AbortReason,
    AbortSignal,
    AbortTimeout,
    checkpoint,
    current_signal,
    run_in_thread,
    shield,
)
from safepoint.errors import UsageError
from safepoint.testing import drain_ready_tasks

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def test_without_a_guard_the_ambient_signal_is_never_aborted():
    signal = current_signal()
    assert not signal.aborted
    assert signal.reason is None
    assert signal.deadline is None
    assert signal.remaining() == math.inf
    checkpoint()


async def test_inside_a_guard_its_signal_is_the_ambient_one():
    controller = AbortController()
    with controller.signal.guard():
        assert current_signal() is controller.signal
    assert current_signal() is not controller.signal


@pytest.mark.parametrize("aborted", ["outer", "middle", "inner"])
async def test_inside_nested_guards_the_abort_of_each_counts(aborted):
    controllers = {name: AbortController() for name in ("outer", "middle", "inner")}
    with pytest.raises(AbortError) as caught:
        with controllers["outer"].signal.guard():
            with controllers["middle"].signal.guard(), controllers["inner"].signal.guard():
                signal = current_signal()
                assert not signal.aborted
                checkpoint()
                controllers[aborted].abort(aborted)
                assert signal.aborted
                assert signal.reason is controllers[aborted].signal.reason
                checkpoint()
                pytest.fail("the checkpoint raises")
    assert caught.value.reason == AbortReason("user", aborted)


async def test_after_an_inner_guard_only_the_outer_one_counts():
    outer, inner = AbortController(), AbortController()
    with outer.signal.guard():
        with inner.signal.guard():
            pass
        inner.abort()
        checkpoint()
        assert current_signal() is outer.signal


async def test_guards_of_one_signal_are_one_ambient_signal():
    controller = AbortController()
    with controller.signal.guard(), controller.signal.guard():
        assert current_signal() is controller.signal


async def test_the_ambient_deadline_is_the_nearest(clock):
    with AbortSignal.timeout(5).guard(), AbortSignal.timeout(3).guard(), AbortController().signal.guard():
        assert current_signal().remaining() == 3


async def test_a_task_started_inside_a_guard_has_its_signal_also_after_the_block():
    controller, started, go_on = AbortController(), asyncio.Event(), asyncio.Event()

    async def child():
        assert not current_signal().aborted
        started.set()
        await go_on.wait()
        assert current_signal().aborted
        checkpoint()

    with controller.signal.guard():
        task = asyncio.create_task(child())
        await started.wait()
    controller.abort("stop")
    go_on.set()
    with pytest.raises(AbortError) as caught:
        await task
    assert caught.value.reason is controller.signal.reason


async def test_a_task_started_outside_has_not():
    controller, inside = AbortController(), asyncio.Event()

    async def child():
        await inside.wait()
        return current_signal().aborted

    task = asyncio.create_task(child())
    with controller.signal.guard():
        inside.set()
        controller.abort()
    assert await task is False


@pytest.mark.parametrize("start", [run_in_thread, asyncio.to_thread])
async def test_a_thread_started_inside_a_guard_has_its_signal(start):
    controller = AbortController()
    with controller.signal.guard():
        signal = await start(current_signal)
        assert not signal.aborted
        controller.abort("stop")
        assert signal.reason is controller.signal.reason


async def test_a_plain_thread_has_no_ambient_signal():
    seen = []
    with AbortController().signal.guard():
        thread = threading.Thread(target=lambda: seen.append(current_signal().roots))  # type: ignore[attr-defined]
        thread.start()
        thread.join(10)
    assert seen == [()]


async def test_a_checkpoint_in_a_loop_without_an_await_ends_it():
    controller, rounds = AbortController(), []
    with pytest.raises(AbortError) as caught:
        with controller.signal.guard():
            while True:
                checkpoint()
                rounds.append(1)
                if len(rounds) == 3:
                    controller.abort("enough")
    assert len(rounds) == 3
    assert caught.value.reason is controller.signal.reason


async def test_a_checkpoint_after_the_deadline_raises_a_timeout(clock):
    with pytest.raises(AbortTimeout):
        with AbortSignal.timeout(5).guard():
            clock.advance(4.9)
            checkpoint()
            clock.advance(0.1)
            checkpoint()


async def test_an_abort_waits_until_the_shield_is_over_and_then_interrupts_the_next_await():
    controller, story = AbortController(), []
    with pytest.raises(AbortError) as caught:
        with controller.signal.guard():
            with shield(60):
                controller.abort("stop")
                await drain_ready_tasks()
                story.append("cleaned up")
            story.append("still running")
            await asyncio.Event().wait()
            story.append("not reached")
    assert story == ["cleaned up", "still running"]
    assert caught.value.reason is controller.signal.reason


async def test_an_abort_from_a_thread_waits_for_the_shield_too():
    controller, story = AbortController(), []
    with pytest.raises(AbortError):
        with controller.signal.guard():
            with shield(60):
                await asyncio.to_thread(controller.abort, "stop")
                await drain_ready_tasks()
                story.append("cleaned up")
            await asyncio.Event().wait()
    assert story == ["cleaned up"]


async def test_clean_up_after_the_abort_awaits_in_peace_behind_a_shield():
    controller, story = AbortController(), []

    async def close():
        for _ in range(3):
            await asyncio.sleep(0)
            checkpoint()  # deaf as well
        assert not current_signal().aborted
        story.append("closed")

    asyncio.get_running_loop().call_soon(controller.abort, "stop")
    with pytest.raises(AbortError):
        with controller.signal.guard():
            try:
                await asyncio.Event().wait()
            finally:
                with shield(60):
                    await close()
    assert story == ["closed"]


async def test_a_value_made_in_a_shield_is_not_lost_when_no_await_follows():
    controller = AbortController()

    async def work():
        with controller.signal.guard():
            with shield(60):
                controller.abort("stop")
                await drain_ready_tasks()
                return "value"

    assert await work() == "value"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await drain_ready_tasks()  # nothing is left over that would interrupt a later await


async def test_inside_a_shield_only_its_own_bound_and_inner_guards_are_ambient(clock):
    outer, inner = AbortController(), AbortController()
    with outer.signal.guard(), shield(60):
        outer.abort()
        assert not current_signal().aborted
        assert current_signal().remaining() == 60
        with inner.signal.guard():
            assert not current_signal().aborted
            assert current_signal().remaining() == 60
            inner.abort("inner")
            assert current_signal().reason is inner.signal.reason


async def test_a_guard_inside_a_shield_is_interrupted_by_its_own_signal():
    outer, inner, story = AbortController(), AbortController(), []
    with pytest.raises(AbortError) as caught:
        with outer.signal.guard():
            with shield(60):
                asyncio.get_running_loop().call_soon(inner.abort, "inner")
                with pytest.raises(AbortError) as from_inside, inner.signal.guard():
                    outer.abort("outer")
                    await asyncio.Event().wait()
                story.append("cleaned up")
            await asyncio.Event().wait()
    assert story == ["cleaned up"]
    assert from_inside.value.reason == AbortReason("user", "inner")
    assert caught.value.reason == AbortReason("user", "outer")


async def test_a_task_started_inside_a_shield_is_shielded_in_what_it_asks():
    controller = AbortController()

    async def child():
        checkpoint()
        return current_signal().aborted

    with controller.signal.guard(), shield(60):
        controller.abort()
        assert await asyncio.create_task(child()) is False


async def test_a_shield_is_bounded(clock):
    async with asyncio.TaskGroup() as group:

        async def clean_up():
            with shield(5):
                line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
                try:
                    await asyncio.Event().wait()
                finally:
                    lines.append(line)

        async def expect():
            with pytest.raises(AbortTimeout) as caught:
                await clean_up()
            return caught.value

        lines: list[int] = []
        task = group.create_task(expect())
        await clock.elapse(4.9)
        assert not task.done()
        await clock.elapse(0.1)
    error = task.result()
    assert error.reason == AbortReason("timeout", "5 s passed")
    assert error.reason.origin == f"{__file__}:{lines[0]}"
    assert clock.pending == 0


async def test_a_shield_is_bounded_in_real_time():
    with pytest.raises(AbortTimeout) as caught:
        with shield(0.02):
            await asyncio.Event().wait()
    assert caught.value.reason == AbortReason("timeout", "0.02 s passed")


async def test_the_bound_of_a_shield_comes_before_the_abort_it_held_back(clock):
    controller, story = AbortController(), []

    async def work():
        with controller.signal.guard():
            try:
                with shield(5):
                    controller.abort("stop")
                    await asyncio.Event().wait()
            except AbortTimeout as error:
                story.append(error.reason.message)
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(caught_from(work()))
        await clock.elapse(5)
    assert story == ["5 s passed"]
    assert task.result().reason is controller.signal.reason


async def caught_from(work):
    with pytest.raises(AbortError) as caught:
        await work
    return caught.value


async def test_an_inner_longer_shield_does_not_extend_the_outer_bound(clock):
    controller = AbortController()
    outer, inner = [], []

    async def work():
        with controller.signal.guard():
            try:
                with shield(1):
                    try:
                        with shield(100):
                            controller.abort("stop")
                            await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        inner.append("passed through")
                        raise
            except AbortTimeout as error:
                outer.append((clock.monotonic(), error.reason.message))
                raise

    start = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(caught_from(work()))
        await clock.elapse(100)
    assert inner == ["passed through"]
    assert outer == [(start + 1, "1 s passed")]
    assert type(task.result()) is AbortTimeout
    assert clock.pending == 0


async def test_an_inner_longer_shield_does_not_hide_the_outer_bound_from_those_who_ask(clock):
    with shield(1), shield(100):
        assert current_signal().remaining() == 1
        clock.advance(1)
        with pytest.raises(AbortTimeout, match="1 s passed"):
            checkpoint()


async def test_an_inner_shorter_shield_ends_before_the_outer_one(clock):
    story = []

    async def work():
        with shield(100):
            try:
                with shield(1):
                    await asyncio.Event().wait()
            except AbortTimeout as error:
                story.append(error.reason.message)
            await clock.sleep(50)
            story.append("went on")

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        await clock.elapse(60)
    assert story == ["1 s passed", "went on"]


async def test_a_shield_without_a_guard_around_it_is_only_a_bound(clock):
    with shield(5):
        await drain_ready_tasks()
    assert clock.pending == 0


async def test_a_shield_of_no_seconds_lets_nothing_begin():
    with pytest.raises(AbortTimeout), shield(0):
        pytest.fail("not entered")


async def test_context_variables_are_kept_in_and_after_a_shield():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("before")
    with AbortController().signal.guard(), shield(60):
        assert variable.get() == "before"
        variable.set("inside")
        await asyncio.sleep(0)
        assert variable.get() == "inside"
    assert variable.get() == "inside"


async def test_an_outer_cancellation_passes_through_a_shield_at_once():
    controller, entered, story = AbortController(), asyncio.Event(), []

    async def work():
        with controller.signal.guard():
            with shield(60):
                entered.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    story.append("cancelled inside")
                    raise

    task = asyncio.create_task(work())
    await entered.wait()
    controller.abort("stop")  # held back, and no reason to hold the cancellation back
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert story == ["cancelled inside"]
    assert task.cancelled()


async def test_an_outer_asyncio_timeout_passes_through_a_shield():
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            with AbortController().signal.guard(), shield(60):
                await asyncio.Event().wait()
    assert type(caught.value) is TimeoutError


@pytest.mark.parametrize("seconds", [-1, math.nan])
def test_the_seconds_of_a_shield_are_not_negative(seconds):
    with pytest.raises(UsageError, match=r"^seconds must be"):
        shield(seconds)


@pytest.mark.parametrize("seconds", [None, "5"])
def test_a_shield_needs_its_seconds(seconds):
    with pytest.raises(TypeError, match=r"^seconds must be a number"):
        shield(seconds)


def test_outside_a_task_there_is_nothing_to_shield():
    with pytest.raises(UsageError, match="no running asyncio task"), shield(5):
        pytest.fail("not entered")
