"""One run: what is done where, what is written down, and that nothing of it disturbs the next."""

import asyncio
import contextvars
import gc
import socket
import threading
import time

import pytest

from safepoint.abort import AbortSignal, current_clock, shield
from safepoint.testing import FakeClock, Ignore
from safepoint.testing.inject import run as inject_run
from safepoint.testing.inject.left import Leftover
from safepoint.testing.inject.report import Ignored
from safepoint.testing.inject.run import Bounds, RunTimings, run_scenario
from safepoint.testing.inject.watch import BlockWatch


def bounds(clock=FakeClock, seconds=5.0, **timings):
    return Bounds(clock, seconds, BlockWatch(), timings=RunTimings(**timings))


async def one_wait(probe):
    await probe.signal.sleep(1)
    return "done"


def test_a_clean_run_has_its_value_its_points_and_no_reason():
    run, attempt = run_scenario(one_wait, bounds())
    assert (run.ending.status, run.ending.value) == ("completed", "done")
    assert (run.point, run.mode, run.reason) == (None, None, None)
    assert len(attempt.points.collected) == 1
    assert run.observed
    assert run.interrupted == ()


def test_an_aborted_run_has_our_reason_and_was_interrupted_at_the_point():
    _, attempt = run_scenario(one_wait, bounds())
    (point,) = attempt.points.collected
    run, attempt = run_scenario(one_wait, bounds(), point, "abort")
    assert attempt.reached
    assert run.ending.status == "aborted"
    assert run.ending.reason == run.reason
    assert run.interrupted == (point.place,)


def test_a_plain_run_watches_nothing_but_its_end():
    run, attempt = run_scenario(one_wait, bounds(), plain=True)
    assert run.ending.value == "done"
    assert attempt.points.collected == []


def test_an_abort_that_comes_when_the_scenario_is_over_is_not_reached():
    async def scenario(probe):
        async def child():
            await asyncio.sleep(0)

        asyncio.create_task(child())
        await asyncio.sleep(0)

    _, attempt = run_scenario(scenario, bounds())
    of_child = attempt.points.collected[-1]
    assert of_child.task != "main"
    run, attempt = run_scenario(scenario, bounds(), of_child, "abort")
    assert run.ending.status == "completed"
    assert attempt.points.reached
    assert not attempt.reached


def test_each_run_has_a_fresh_clock_and_a_copy_of_the_callers_context():
    variable = contextvars.ContextVar("variable", default=0)

    async def scenario(probe):
        seen = (variable.get(), current_clock().monotonic())
        variable.set(99)
        await asyncio.sleep(5)  # real time: none, the loop's clock is fake
        return seen

    variable.set(7)
    for _ in range(2):
        run, _ = run_scenario(scenario, bounds())
        assert run.ending.value == (7, 1000)
    assert variable.get() == 7


def test_deadlines_that_only_an_error_holds_leave_no_timer():
    async def scenario(probe):
        deadline = AbortSignal.timeout(60)
        with shield(30), deadline.guard():
            raise ValueError("while two timers are armed")

    run, _ = run_scenario(scenario, bounds())
    assert run.ending.status == "failed"
    assert run.timers == ()


def test_what_threads_and_sockets_need_to_end_is_waited_for():
    async def scenario(probe):
        _, writer = await asyncio.open_connection(sock=here)
        writer.close()
        threading.Timer(0.02, there.close).start()

    here, there = socket.socketpair()
    run, _ = run_scenario(scenario, bounds(None))
    assert (run.threads, run.descriptors) == ((), ())


def test_tasks_that_are_left_are_ended_before_the_next_run():
    ended = []

    async def stays():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def scenario(probe):
        asyncio.create_task(stays(), name="stays")
        await asyncio.sleep(0)

    run, _ = run_scenario(scenario, bounds())
    (text,) = run.tasks
    assert text.startswith("task stays\n  tests/internal/testing/test_inject_run.py:")
    assert ended == [True]


def test_a_task_that_does_not_end_even_then_is_given_up(recwarn):
    async def stays():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    async def scenario(probe):
        asyncio.create_task(stays())
        await asyncio.sleep(0)

    for clock in (FakeClock, None):
        run, _ = run_scenario(scenario, bounds(clock, close=0.1))
        assert len(run.tasks) == 1


def test_a_function_in_the_executor_that_does_not_end_is_reported_and_not_waited_for():
    gate = threading.Event()

    async def scenario(probe):
        asyncio.get_running_loop().run_in_executor(None, gate.wait)
        await asyncio.sleep(0)

    try:
        run, _ = run_scenario(scenario, bounds(None, linger=0.05))
        (text,) = run.threads
        assert text.startswith("asyncio_0 at ")
    finally:
        gate.set()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_through(error):
    async def scenario(probe):
        raise error

    with pytest.raises(error):
        run_scenario(scenario, bounds())


def test_a_scenario_that_is_no_async_function_fails_with_the_reason():
    run, _ = run_scenario(lambda probe: 5, bounds())  # type: ignore[arg-type,return-value]
    assert run.ending.status == "failed"
    assert "can't be used in 'await'" in str(run.ending)


async def leaves(probe, seconds):
    """A task that goes on for so long when the scenario is over."""

    async def goes_on():
        await asyncio.sleep(seconds)  # real time: none, the loop's clock is fake
        probe.record("late")

    asyncio.create_task(goes_on(), name="goes on")
    await asyncio.sleep(0)


def test_a_task_that_ends_within_a_second_of_the_clock_is_not_left_but_what_it_does_is_noted():
    run, _ = run_scenario(lambda probe: leaves(probe, 0.9), bounds())
    assert run.tasks == run.timers == ()
    assert [effect.what for effect in run.effects] == ["late"]


def test_a_task_that_needs_longer_is_left_and_is_not_waited_for_in_real_time():
    linger = 40.0  # far more than this takes on the busiest machine
    began = time.monotonic()
    run, _ = run_scenario(lambda probe: leaves(probe, 40.1), bounds(linger=linger))
    assert [task.name for task in run.tasks if isinstance(task, Leftover)] == ["goes on"]
    assert run.effects == ()
    assert time.monotonic() - began < linger


def test_a_task_that_nobody_holds_does_not_look_ended_when_it_is_collected():
    async def stays():
        await asyncio.Event().wait()

    async def scenario(probe):
        asyncio.create_task(stays())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.5, gc.collect)

    run, _ = run_scenario(scenario, bounds())
    assert len(run.tasks) == 1


def test_a_generator_whose_task_ends_within_the_moment_is_not_left_open():
    async def numbers():
        yield 1
        await asyncio.sleep(0)
        yield 2

    async def reads():
        async for _ in numbers():
            await asyncio.sleep(0.1)  # real time: none, the loop's clock is fake

    async def scenario(probe):
        probe.task = asyncio.create_task(reads())
        await asyncio.sleep(0)

    run, _ = run_scenario(scenario, bounds())
    assert (run.tasks, run.streams) == ((), ())


def test_a_socket_that_only_the_collector_closes_is_never_left(recwarn):
    async def scenario(probe):
        cycle: list[object] = [socket.socket()]
        cycle.append(cycle)

    for _ in range(3):
        run, _ = run_scenario(scenario, bounds())
        assert run.descriptors == ()


def test_what_is_ignored_is_not_waited_for():
    gate = threading.Event()

    async def scenario(probe):
        threading.Thread(target=gate.wait, name="exporter", daemon=True).start()
        await asyncio.sleep(0)

    began = time.monotonic()
    try:
        rules = Ignored([Ignore(name="exporter")])
        run, _ = run_scenario(scenario, Bounds(FakeClock, 5.0, BlockWatch(), rules))
    finally:
        gate.set()
    assert len(run.threads) == 1  # the record is complete: it is the laws that do not see it
    assert time.monotonic() - began < inject_run.LINGER_SECONDS


def test_threads_that_wait_for_the_clock_of_a_run_end_with_it():
    ended = threading.Event()

    async def scenario(probe):
        def waits():
            probe.signal.wait()
            ended.set()

        context = contextvars.copy_context()  # the clock of the run is in it
        threading.Thread(target=context.run, args=[waits], name="waits", daemon=True).start()
        await asyncio.sleep(0)

    run_scenario(scenario, bounds())
    assert ended.wait(20)
