"""One run: what is done where, what is written down, and that nothing of it disturbs the next."""

import asyncio
import contextvars
import socket
import threading

import pytest

from safepoint.abort import AbortSignal, current_clock, shield
from safepoint.testing import FakeClock, inject_run
from safepoint.testing.inject_run import Bounds, run_scenario
from safepoint.testing.inject_watch import Watch


def bounds(clock=FakeClock, seconds=5.0):
    return Bounds(clock, seconds, Watch())


async def one_wait(probe):
    await probe.signal.sleep(1)
    return "done"


def test_a_clean_run_has_its_value_its_points_and_no_reason():
    run, attempt = run_scenario(one_wait, bounds())
    assert (run.ending.status, run.ending.value) == ("completed", "done")
    assert (run.point, run.mode, run.reason) == (None, None, None)
    assert len(attempt.points.collected) == 1
    assert run.heard
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
    assert text.startswith("task stays\n  tests/testing/test_inject_run.py:")
    assert ended == [True]


def test_a_task_that_does_not_end_even_then_is_given_up(monkeypatch, recwarn):
    monkeypatch.setattr(inject_run, "CLOSE_SECONDS", 0.1)

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
        run, _ = run_scenario(scenario, bounds(clock))
        assert len(run.tasks) == 1


def test_a_function_in_the_executor_that_does_not_end_is_reported_and_not_waited_for(monkeypatch):
    monkeypatch.setattr(inject_run, "LINGER_SECONDS", 0.05)
    gate = threading.Event()

    async def scenario(probe):
        asyncio.get_running_loop().run_in_executor(None, gate.wait)
        await asyncio.sleep(0)

    try:
        run, _ = run_scenario(scenario, bounds(None))
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
