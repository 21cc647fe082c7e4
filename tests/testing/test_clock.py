"""The fake clock: time moves when a test says so, timers fire in order at their own times, nothing is left behind."""

import asyncio
import math
import threading
from functools import partial

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, Timer, use_clock
from safepoint.errors import UsageError
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.waiting import wait_until

SECONDS = 10.0
pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


def test_time_stands_still_until_it_is_moved():
    clock = FakeClock(start=50)
    assert clock.monotonic() == clock.monotonic() == 50
    clock.advance(2.5)
    clock.advance(0)
    assert clock.monotonic() == 52.5


def test_the_date_moves_with_the_time():
    clock = FakeClock()
    before = clock.time()
    clock.advance(2.5)
    assert clock.time() == before + 2.5


@pytest.mark.parametrize("seconds", [-1, math.nan])
def test_time_does_not_move_back(seconds):
    clock = FakeClock()
    with pytest.raises(UsageError, match=r"^seconds must be"):
        clock.advance(seconds)
    assert clock.monotonic() == 1000


async def test_time_does_not_elapse_backwards():
    with pytest.raises(UsageError, match=r"^seconds must be"):
        await FakeClock().elapse(-1)


def test_timers_fire_in_the_order_of_their_times_each_at_its_own():
    clock, fired = FakeClock(start=0), []

    def note(number):
        fired.append((clock.monotonic(), number))

    for number, when in enumerate([3, 1, 2, 1, 9]):
        clock.call_at(when, partial(note, number))
    clock.advance(5)
    assert fired == [(1, 1), (1, 3), (2, 2), (3, 0)]
    assert clock.monotonic() == 5
    assert clock.pending == 1


def test_a_timer_for_a_time_that_has_passed_fires_in_the_next_advance():
    clock, fired = FakeClock(), []
    clock.call_at(clock.monotonic() - 10, lambda: fired.append(clock.monotonic()))
    assert fired == []
    clock.advance(0)
    assert fired == [1000]


def test_a_timer_set_by_a_timer_fires_in_the_same_advance_if_it_is_due():
    clock, fired = FakeClock(start=0), []

    def again():
        fired.append(clock.monotonic())
        clock.call_at(clock.monotonic() + 2, again)

    clock.call_at(1, again)
    clock.advance(6)
    assert fired == [1, 3, 5]


def test_time_moved_on_by_a_timer_is_not_moved_back():
    clock = FakeClock(start=0)
    clock.call_at(1, lambda: clock.advance(10))
    clock.advance(5)
    assert clock.monotonic() == 11


async def test_time_moved_on_while_it_elapses_is_not_moved_back():
    clock = FakeClock(start=0)
    asyncio.get_running_loop().call_soon(clock.advance, 10)
    await clock.elapse(5)
    assert clock.monotonic() == 10


def test_a_disarmed_timer_neither_fires_nor_counts():
    clock, fired = FakeClock(), []
    first = clock.call_at(clock.monotonic() + 1, lambda: fired.append("first"))
    second = clock.call_at(clock.monotonic() + 2, lambda: fired.append("second"))
    assert isinstance(first, Timer)
    assert clock.pending == 2
    assert first.disarm()
    assert clock.pending == 1
    clock.advance(5)
    assert fired == ["second"]
    assert not second.armed


def test_the_clock_says_when_its_first_armed_timer_is_due():
    clock = FakeClock()
    assert clock.next_timer() is None
    timers = {seconds: clock.call_at(clock.monotonic() + seconds, print) for seconds in (3, 1, 2)}
    for seconds in (1, 2, 3):
        assert clock.next_timer() == clock.monotonic() + seconds
        assert clock.next_timer() == clock.monotonic() + seconds
        timers[seconds].disarm()
    assert clock.next_timer() is None


def test_a_timer_may_disarm_one_of_the_same_time():
    clock = FakeClock()
    fired: list[object] = []
    clock.call_at(clock.monotonic() + 1, lambda: fired.append(later.disarm()))
    later = clock.call_at(clock.monotonic() + 1, lambda: fired.append("later"))
    clock.advance(1)
    assert fired == [True]


def test_a_callback_that_fails_is_logged_and_time_goes_on(caplog):
    clock, fired = FakeClock(), []
    clock.call_at(clock.monotonic() + 1, lambda: 1 / 0)
    clock.call_at(clock.monotonic() + 2, lambda: fired.append(1))
    clock.advance(2)
    assert fired == [1]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_sleeper_wakes_when_its_time_has_come():
    clock, story = FakeClock(), []

    async def sleep(seconds):
        await clock.sleep(seconds)
        story.append((seconds, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for seconds in (3, 1, 2):
            group.create_task(sleep(seconds))
        await clock.elapse(0.5)
        assert story == []
        assert clock.pending == 3
        await clock.elapse(10)
    assert story == [(1, 1001), (2, 1002), (3, 1003)]
    assert clock.pending == 0


@pytest.mark.parametrize("seconds", [0, -1])
async def test_sleeping_for_no_time_lets_others_run_and_needs_no_advance(seconds):
    clock = FakeClock()
    story: list[str] = []
    asyncio.get_running_loop().call_soon(story.append, "other")
    async with asyncio.timeout(0.9):  # no real second either
        await clock.sleep(seconds)
    assert story == ["other"]
    assert clock.pending == 0


async def test_a_sleeper_that_is_interrupted_leaves_no_timer(clock):
    controller = AbortController()
    asyncio.get_running_loop().call_soon(controller.abort)
    with pytest.raises(AbortError):
        await controller.signal.sleep(60)
    assert clock.pending == 0


async def test_a_sleeper_may_be_interrupted_in_the_moment_its_time_has_come():
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await drain_ready_tasks()
    clock.advance(1)  # its wake-up is on the way
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_advancing_from_another_thread_wakes_the_sleeper():
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await drain_ready_tasks()
    await asyncio.to_thread(clock.advance, 1)
    await task


async def test_elapsing_lets_everything_run_between_two_timers():
    clock, story = FakeClock(start=0), []

    async def chain():
        for _ in range(3):
            await clock.sleep(1)
            story.append(clock.monotonic())
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(chain())
        await clock.elapse(10)
        assert story == [1, 2, 3]
        assert clock.monotonic() == 10


async def test_a_deadline_follows_the_fake_clock(clock):
    signal = AbortSignal.timeout(5)
    clock.advance(4.9)
    assert not signal.aborted
    clock.advance(0.1)
    assert signal.aborted


def test_a_free_lock_is_acquired_at_once():
    clock = FakeClock()
    for seconds in (None, 0, 5):
        assert clock.acquire(threading.Lock(), seconds)
    assert clock.pending == 0


@pytest.mark.parametrize("seconds", [None, 5])
def test_a_lock_is_acquired_when_it_becomes_free(seconds):
    clock, lock = FakeClock(), threading.Lock()
    lock.acquire()
    answer = in_thread(clock.acquire, lock, seconds)
    lock.release()
    assert answer() is True
    assert clock.pending == 0


@pytest.mark.parametrize("seconds", [0.5, 5])
def test_a_lock_is_given_up_when_the_fake_time_is_up(seconds):
    clock, attempts = FakeClock(), []

    class TakenLock:
        def acquire(self, blocking=True, timeout=-1):
            attempts.append(timeout)
            return False

    answer = in_thread(clock.acquire, TakenLock(), seconds)
    clock.advance(seconds - 0.1)
    so_far = len(attempts)
    wait_until(lambda: len(attempts) > so_far + 2)
    assert clock.pending == 1
    clock.advance(seconds)
    assert answer() is False
    assert clock.pending == 0


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_taken_lock_is_given_up_at_once_when_there_is_no_time(seconds):
    clock, lock = FakeClock(), threading.Lock()
    lock.acquire()
    assert not clock.acquire(lock, seconds)
    assert clock.pending == 0


def in_thread(function, *args):
    """Call the function in a thread; what is returned waits for its answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(function(*args)), daemon=True)
    thread.start()

    def answer():
        thread.join(SECONDS)
        return answers.pop()

    return answer


def test_a_thread_that_waits_for_a_signal_follows_the_fake_clock(clock):
    signal = AbortSignal.timeout(5)

    def wait():
        with use_clock(clock):
            return signal.wait()

    answer = in_thread(wait)
    wait_until(lambda: clock.pending >= 1)
    clock.advance(5)
    assert answer() is True


@pytest.mark.parametrize("seconds", [None, 5])
def test_the_clock_knows_the_threads_that_wait_and_that_nothing_has_woken_yet(seconds):
    clock, lock = FakeClock(), threading.Lock()
    lock.acquire()
    answer = in_thread(clock.acquire, lock, seconds)
    wait_until(lambda: waiting_on(clock))
    (wait,) = waiting_on(clock)
    wait_until(lambda: waiting_on(clock) == [wait])  # one wait is one and the same in every look
    lock.release()
    assert waiting_on(clock) == []
    assert answer() is True
    assert wait not in FakeClock._waits


def test_a_thread_whose_time_has_come_waits_no_more():
    clock, lock = FakeClock(), threading.Lock()
    lock.acquire()
    answer = in_thread(clock.acquire, lock, 5)
    wait_until(lambda: waiting_on(clock))
    clock.advance(5)
    assert waiting_on(clock) == []
    assert answer() is False


def test_a_thread_says_once_that_it_begins_to_wait():
    clock, lock, told = FakeClock(), threading.Lock(), []
    clock.on_wait = lambda: told.append(waiting_on(clock))
    assert clock.acquire(lock, 5)
    answer = in_thread(clock.acquire, lock, 5)
    wait_until(lambda: told)
    clock.advance(5)
    assert answer() is False
    assert [len(waits) for waits in told] == [1]


def waiting_on(clock):
    return [wait for wait in FakeClock.waiting_threads() if wait.clock is clock]


async def test_settling_runs_everything_that_is_ready_and_what_that_makes_ready():
    story = []

    def chain(left):
        story.append(left)
        if left:
            asyncio.get_running_loop().call_soon(chain, left - 1)

    # A loop that does not show its queue can only be given a number of turns.
    length = 500 if hasattr(asyncio.get_running_loop(), "_ready") else 20
    asyncio.get_running_loop().call_soon(chain, length)
    await drain_ready_tasks()
    assert story == list(range(length, -1, -1))


async def test_settling_ends_although_something_is_always_ready():
    stop: list[bool] = []

    def forever():
        if not stop:
            asyncio.get_running_loop().call_soon(forever)

    forever()
    await drain_ready_tasks()
    stop.append(True)
    await drain_ready_tasks()
