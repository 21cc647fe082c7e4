"""The clock: timers in order, each at most once, on a thread that outlives mistakes and forks but not the program."""

import asyncio
import gc
import logging
import math
import threading
import time
from functools import partial

import pytest

from safepoint.abort import SystemClock, Timer, current_clock, run_in_thread, use_clock
from safepoint.testing import FakeClock
from tests.conftest import counts
from tests.kit.programs import printed
from tests.kit.waiting import wait_until

SECONDS = 10.0


@pytest.fixture
def followed(monkeypatch):
    """Timer threads that a tracing tool such as coverage can follow: it knows those of `threading` only."""

    def start(function, args):
        threading.Thread(target=function, args=args, daemon=True).start()

    monkeypatch.setattr("_thread.start_new_thread", start)


def patient_clock() -> SystemClock:
    """A clock for busy machines, where the system may hold up a thread for long: no callback counts as blocked."""
    return SystemClock(blocked_seconds=SECONDS)


@pytest.mark.usefixtures("followed")
def test_a_timer_that_is_due_earlier_overtakes_the_one_the_thread_waits_for():
    clock = SystemClock()
    done = threading.Event()
    far = clock.call_at(math.inf, done.set)
    later = clock.call_at(clock.monotonic() + 3600, done.set)
    clock.call_at(clock.monotonic() + 0.001, done.set)
    assert done.wait(SECONDS)
    assert far.disarm()
    assert later.disarm()


def test_a_callback_that_blocks_delays_no_other_timer_and_is_named(caplog):
    clock, gate, done = SystemClock(), threading.Event(), threading.Event()

    def hangs():
        gate.wait(SECONDS)

    try:
        due = clock.monotonic() + 0.05
        clock.call_at(due - 0.05, hangs)
        clock.call_at(due, done.set)
        assert done.wait(SECONDS)
        assert clock.monotonic() - due < 1
        wait_until(lambda: "hangs" in caplog.text)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    finally:
        gate.set()


def test_a_timer_that_fired_cannot_be_disarmed_and_does_not_fire_again(caplog):
    fired = []
    timer = Timer(0.0, lambda: fired.append(1))
    timer.fire()
    timer.fire()
    assert fired == [1]
    assert not timer.armed
    assert not timer.disarm()
    assert caplog.records == []


def test_of_threads_that_fire_and_threads_that_disarm_exactly_one_wins():
    rounds = counts(300, 20_000)
    outcomes: list[list[str]] = [[] for _ in range(rounds)]
    timers = [Timer(0.0, partial(outcome.append, "fired")) for outcome in outcomes]
    barrier = threading.Barrier(6)

    def compete(role):
        for timer, outcome in zip(timers, outcomes, strict=True):
            barrier.wait(SECONDS)
            if role == "fire":
                timer.fire()
            elif timer.disarm():
                outcome.append("disarmed")

    threads = [threading.Thread(target=compete, args=(role,)) for role in ["fire", "disarm"] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [len(outcome) for outcome in outcomes] == [1] * rounds


@pytest.mark.usefixtures("followed")
def test_thousands_of_disarmed_timers_do_not_wait_for_their_far_off_time_to_be_forgotten():
    clock = SystemClock()
    nearest = clock.call_at(clock.monotonic() + 1800, lambda: None)
    before = timers_alive()
    for _ in range(5_000):
        clock.call_at(clock.monotonic() + 3600, lambda: None).disarm()
    done = threading.Event()
    clock.call_at(clock.monotonic(), done.set)
    assert done.wait(SECONDS)
    assert timers_alive() - before < 500
    assert nearest.disarm()


def timers_alive():
    gc.collect()
    return sum(type(thing) is Timer for thing in gc.get_objects())


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_a_callback_that_fails_is_logged_and_the_next_one_still_runs(error, caplog):
    clock = patient_clock()
    done = threading.Event()

    def fail():
        raise error

    with caplog.at_level(logging.ERROR, "safepoint"):
        clock.call_at(clock.monotonic(), fail)
        clock.call_at(clock.monotonic(), done.set)
        assert done.wait(SECONDS)
    [record] = caplog.records
    assert "fail" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_timer_thread_that_could_not_start_is_started_by_the_next_timer(monkeypatch):
    clock = SystemClock()
    with monkeypatch.context() as patch:

        def refuse(*_):
            raise RuntimeError("can't start new thread")

        patch.setattr("_thread.start_new_thread", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            clock.call_at(clock.monotonic(), lambda: None)
    done = threading.Event()
    clock.call_at(clock.monotonic(), done.set)
    assert done.wait(SECONDS)


def test_a_signal_handler_may_set_the_first_timer_while_its_thread_is_starting_another_thread():
    output = printed("""
        import signal, threading
        from safepoint.abort import current_clock

        done = threading.Event()

        def heard(number, frame):
            current_clock().call_at(current_clock().monotonic(), done.set)

        signal.signal(signal.SIGUSR1, heard)
        with threading._active_limbo_lock:  # as inside Thread.start(), which the handler interrupts
            signal.raise_signal(signal.SIGUSR1)
        print(done.wait(10))
    """)
    assert output == "True"


def test_timers_work_in_a_forked_child():
    output = printed("""
        import os, threading, warnings
        from safepoint.abort import current_clock

        warnings.simplefilter("ignore")  # newer Pythons warn of every fork beside a thread
        clock = current_clock()

        def fires():
            done = threading.Event()
            clock.call_at(clock.monotonic(), done.set)
            return done.wait(10)

        assert fires()  # the parent's timer thread exists, and is not there after the fork
        child = os.fork()
        if child == 0:
            os._exit(0 if fires() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), fires())
    """)
    assert output == "0 True"


def test_a_program_ends_although_a_timer_is_armed():
    assert (
        printed("""
        from safepoint.abort import current_clock

        timer = current_clock().call_at(current_clock().monotonic() + 3600, print)
        print(timer.armed)
    """)
        == "True"
    )


async def test_sleeping_takes_its_time():
    clock = SystemClock()
    start = time.monotonic()
    await clock.sleep(0.02)
    assert time.monotonic() - start >= 0.019  # loops round to the millisecond


def test_a_lock_is_acquired_when_it_is_free_or_becomes_free():
    clock = SystemClock()
    lock = threading.Lock()
    assert clock.acquire(lock, None)
    clock.call_at(clock.monotonic() + 0.01, lock.release)
    assert clock.acquire(lock, None)
    clock.call_at(clock.monotonic() + 0.01, lock.release)
    assert clock.acquire(lock, math.inf)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
def test_a_lock_that_stays_taken_is_given_up_when_the_time_is_up(seconds):
    lock = threading.Lock()
    lock.acquire()
    start = time.monotonic()
    assert not SystemClock().acquire(lock, seconds)
    assert time.monotonic() - start >= seconds


def test_a_lock_is_waited_for_no_longer_and_no_shorter_than_asked_as_far_as_the_system_can():
    class Lock:
        def acquire(self, timeout):
            timeouts.append(timeout)
            return False

    timeouts: list[float] = []
    for seconds in (-1.0, 0.0, 0.25, math.inf):
        SystemClock().acquire(Lock(), seconds)  # type: ignore[arg-type]  # it stands in for a lock of the system
    assert timeouts == [0.0, 0.0, 0.25, threading.TIMEOUT_MAX]


def test_without_another_the_clock_is_the_systems():
    assert isinstance(current_clock(), SystemClock)
    assert current_clock().monotonic() == pytest.approx(time.monotonic(), abs=5)
    assert current_clock().time() == pytest.approx(time.time(), abs=5)


def test_clocks_nest_and_each_block_gives_back_the_one_before():
    system, outer, inner = current_clock(), FakeClock(), FakeClock()
    with use_clock(outer) as entered:
        assert entered is outer
        with pytest.raises(ZeroDivisionError), use_clock(inner):
            assert current_clock() is inner
            raise ZeroDivisionError
        assert current_clock() is outer
    assert current_clock() is system


async def test_tasks_and_threads_started_inside_have_the_clock_and_those_outside_do_not():
    async def look():
        return current_clock()

    system, fake = current_clock(), FakeClock()
    async with asyncio.TaskGroup() as group:
        outside = group.create_task(look())
        with use_clock(fake):
            inside = group.create_task(look())
            assert await run_in_thread(current_clock) is fake
            assert await asyncio.to_thread(current_clock) is fake
    assert outside.result() is system
    assert inside.result() is fake


def test_what_the_callback_of_a_timer_raises_is_logged_and_the_timer_is_spent(caplog: pytest.LogCaptureFixture):
    def fails() -> None:
        raise LookupError("mistake")

    timer = Timer(0.0, fails)
    timer.fire()
    assert not timer.armed
    assert "LookupError: mistake" in caplog.text
