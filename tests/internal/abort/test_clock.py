"""Owns the tests that look inside, beside those of `tests/abort/test_clock.py`.

The clock: timers in order, each at most once, on a thread that outlives mistakes and forks but not the program.
"""

import math
import random
import threading
import time
from functools import partial
from queue import SimpleQueue

import pytest

from safepoint.abort import SystemClock, Timer
from safepoint.abort.clock import SWEEP, NonBlocking, _Alarms, check_seconds
from safepoint.errors import UsageError
from tests.abort.test_clock import SECONDS, patient_clock
from tests.conftest import counts


@pytest.fixture
def followed(monkeypatch):
    """Timer threads that a tracing tool such as coverage can follow: it knows those of `threading` only."""

    def start(function, args):
        threading.Thread(target=function, args=args, daemon=True).start()

    monkeypatch.setattr("_thread.start_new_thread", start)


def held(clock):
    """Keep the clock's timer thread itself busy until the returned event is set."""
    busy, gate = threading.Event(), threading.Event()

    def hold():
        busy.set()
        gate.wait(SECONDS)
        return ()

    clock.call_at(clock.monotonic(), NonBlocking(hold))
    assert busy.wait(SECONDS)
    return gate


@pytest.mark.usefixtures("followed")
def test_timers_fire_in_the_order_of_their_times_and_equal_times_in_the_order_of_asking():
    clock = patient_clock()
    gate = held(clock)
    done = threading.Event()
    fired: list[tuple[float, int]] = []
    past = clock.monotonic() - 1
    asked = [(when, number) for number, when in enumerate(random.Random(7).choices([0.1, 0.2, 0.3], k=200))]
    for when, number in asked:
        clock.call_at(past + when, partial(fired.append, (when, number)))
    clock.call_at(clock.monotonic(), done.set)
    gate.set()
    assert done.wait(SECONDS)
    assert fired == sorted(asked)


def test_a_timer_never_fires_before_its_time():
    clock = patient_clock()
    gate = held(clock)
    times, done = [], threading.Event()
    start = clock.monotonic()

    def note(due):
        times.append((due, time.monotonic()))

    for delay in (0.03, 0.0, 0.01, 0.02):
        clock.call_at(start + delay, partial(note, start + delay))
    clock.call_at(start + 0.04, done.set)
    gate.set()
    assert done.wait(SECONDS)
    assert [due - start for due, _ in times] == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert all(due <= fired for due, fired in times)


class Sleeps(SimpleQueue):  # type: ignore[type-arg]
    """How long the timer thread has slept each time, and how often it was woken."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []
        self.woken = 0
        self.slept = threading.Semaphore(0)

    def get(self, block=True, timeout=None):
        if block:
            self.timeouts.append(timeout)
            self.slept.release()
        return super().get(block, timeout)

    def put(self, item, block=True, timeout=None):
        self.woken += 1
        super().put(item)


def alarms() -> tuple[_Alarms, Sleeps]:
    made, sleeps = _Alarms(), Sleeps()
    made._nudges = sleeps
    threading.Thread(target=made.serve, daemon=True).start()
    assert sleeps.slept.acquire(timeout=SECONDS)
    return made, sleeps


def test_the_timer_thread_sleeps_until_the_next_timer_is_due_and_no_longer():
    made, sleeps = alarms()
    done = threading.Event()
    made.add(Timer(time.monotonic() + 0.1, done.set))
    assert done.wait(SECONDS)
    nothing, first, *more = sleeps.timeouts
    assert nothing is None
    assert first is not None
    assert 0 <= first <= 0.1
    assert len(more) < 3


def test_the_timer_thread_is_woken_only_for_what_comes_before_its_own_time():
    made, sleeps = alarms()
    done, begun = threading.Semaphore(0), time.monotonic()
    made.add(Timer(begun + 0.3, done.release))
    assert sleeps.slept.acquire(timeout=SECONDS)
    assert sleeps.woken == 1
    for number in range(20):
        made.add(Timer(begun + 0.4 + number / 100, done.release))
    assert sleeps.woken == 1, "what comes later is found when it wakes by itself"
    made.add(Timer(begun, done.release))
    assert sleeps.woken == 2
    for _ in range(22):
        assert done.acquire(timeout=SECONDS)


def test_timers_that_nobody_waits_for_do_not_pile_up_while_the_thread_sleeps():
    made, sleeps = alarms()
    made.add(Timer(time.monotonic() + 3600, lambda: None))
    assert sleeps.slept.acquire(timeout=SECONDS)
    for _ in range(10 * SWEEP):
        timer = Timer(time.monotonic() + 7200, lambda: None)
        made.add(timer)
        timer.disarm()
    until = time.monotonic() + SECONDS
    while len(made._inbox) > SWEEP and time.monotonic() < until:
        time.sleep(0.001)  # real time: the thread takes them in
    assert len(made._inbox) <= SWEEP
    assert len(made._heap) <= 3 * SWEEP


@pytest.mark.parametrize("seed", range(counts(20, 500)))
def test_no_timer_is_lost_whatever_the_thread_does_in_the_moment_it_is_added(seed: int):
    """Many threads add timers of all distances while others fire: each fires."""
    made, _ = alarms()
    chance, fired, added = random.Random(seed), threading.Semaphore(0), 0
    distances = [[chance.choice([0.0, 0.0005, 0.001, 0.003]) for _ in range(50)] for _ in range(4)]

    def add(mine: list[float]) -> None:
        for distance in mine:
            made.add(Timer(time.monotonic() + distance, fired.release))

    threads = [threading.Thread(target=add, args=[mine]) for mine in distances]
    for thread in threads:
        thread.start()
        added += 50
    for thread in threads:
        thread.join()
    for _ in range(added):
        assert fired.acquire(timeout=SECONDS)


@pytest.mark.usefixtures("followed")
def test_what_never_blocks_runs_on_the_timer_thread_and_everything_else_on_another():
    clock, names, done = patient_clock(), {}, threading.Event()

    def note(part):
        names[part] = threading.current_thread().name

    def first():
        note("first")
        return [partial(note, "rest")]

    clock.call_at(clock.monotonic(), NonBlocking(first))
    clock.call_at(clock.monotonic(), partial(note, "plain"))
    clock.call_at(clock.monotonic(), done.set)
    assert done.wait(SECONDS)
    assert names == {"first": "safepoint-timers", "rest": "safepoint-callbacks", "plain": "safepoint-callbacks"}


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()], ids=repr)
def test_a_first_part_that_fails_is_logged_elsewhere_and_the_timer_thread_goes_on(error, caplog):
    clock, done = patient_clock(), threading.Event()

    def first():
        raise error

    clock.call_at(clock.monotonic(), NonBlocking(first))
    clock.call_at(clock.monotonic(), done.set)
    assert done.wait(SECONDS)
    [record] = caplog.records
    assert record.exc_info[1] is error
    assert record.threadName == "safepoint-callbacks"


def test_a_clock_that_knows_no_first_parts_does_all_of_it_in_one_thread(clock, caplog):
    ran = []

    def first():
        ran.append("first")
        return [partial(ran.append, "second"), partial(int, "x"), partial(int, "y"), partial(ran.append, "last")]

    clock.call_at(clock.monotonic() + 1, NonBlocking(first))
    clock.advance(1)
    assert ran == ["first", "second", "last"]
    assert "invalid literal for int() with base 10: 'x'" in caplog.text


def test_two_hundred_timers_at_once_need_one_thread():
    clock, gates, used = patient_clock(), threading.Semaphore(0), set()

    def note():
        used.add(threading.current_thread())
        gates.release()

    gate = held(clock)
    for _ in range(200):
        clock.call_at(clock.monotonic(), note)
    gate.set()
    for _ in range(200):
        assert gates.acquire(timeout=SECONDS)
    assert len(used) == 1


@pytest.mark.usefixtures("followed")
def test_a_disarmed_timer_does_not_fire_and_says_so_once():
    clock = patient_clock()
    gate = held(clock)
    fired, done = [], threading.Event()
    timer = clock.call_at(clock.monotonic(), lambda: fired.append(1))
    clock.call_at(clock.monotonic(), done.set)
    assert timer.armed
    assert timer.disarm()
    assert not timer.armed
    assert not timer.disarm()
    gate.set()
    assert done.wait(SECONDS)
    assert fired == []


def test_sweeping_keeps_the_timers_that_are_armed_and_their_order():
    clock, chance, done = patient_clock(), random.Random(3), threading.Event()
    gate = held(clock)
    fired: list[float] = []
    start = clock.monotonic() + 0.1
    for _ in range(500):
        when = start + chance.random() / 20
        clock.call_at(when, partial(fired.append, when))
        clock.call_at(start + chance.random() / 20, lambda: None).disarm()
    clock.call_at(start + 0.06, done.set)
    gate.set()
    assert done.wait(SECONDS)
    assert len(fired) == 500
    assert fired == sorted(fired)


def test_a_clock_whose_thread_is_gone_starts_another():
    clock = SystemClock()
    gate = held(clock)
    clock.forget_thread()
    done = threading.Event()
    clock.call_at(clock.monotonic(), done.set)
    assert done.wait(SECONDS)
    gate.set()


@pytest.mark.parametrize("seconds", [0, 2, 0.5, math.inf])
def test_a_duration_is_a_number_that_is_not_negative(seconds):
    checked = check_seconds("grace", seconds)
    assert checked == seconds
    assert type(checked) is float


@pytest.mark.parametrize("seconds", [None, "1", True, [1], 1j], ids=repr)
def test_a_duration_of_the_wrong_type_is_refused_by_the_name_of_the_argument(seconds):
    with pytest.raises(TypeError, match=f"^grace must be a number of seconds, not {type(seconds).__name__}$"):
        check_seconds("grace", seconds)


@pytest.mark.parametrize("seconds", [-1, -0.001, -math.inf, math.nan])
def test_a_duration_below_zero_is_refused_by_the_name_of_the_argument(seconds):
    with pytest.raises(UsageError, match=f"^grace must be .* 0 or more, not {seconds!r}$"):
        check_seconds("grace", seconds)
