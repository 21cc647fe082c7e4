"""Owns the tests that look inside, beside those of `tests/run/test_start_gate.py`.

The watch of a leaf: the gate before its body, and what is due when it goes on after the abort.
"""

import random
import sys
import threading
import time
from functools import partial
from typing import Any, SupportsIndex

import pytest

from safepoint.abort import AbortController, AbortSignal, SystemClock, Timer
from safepoint.run.start_gate import AbortTimers, StartGate
from safepoint.testing import FakeClock
from tests.conftest import counts
from tests.run.test_start_gate import SECONDS


def test_the_body_may_begin_without_an_abort_and_not_after_one(clock: FakeClock):
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))
    assert watch.begin()
    watch.end()
    controller.abort()
    assert not StartGate(AbortTimers(controller.signal, clock)).begin()


def test_a_deadline_that_has_passed_unnoticed_closes_the_gate(clock: FakeClock):
    signal = AbortSignal.timeout(5)
    clock._now += 5
    assert not StartGate(AbortTimers(signal, clock)).begin()


def test_ten_thousand_races_of_start_and_stop_let_no_body_begin_after_the_acknowledgement(
    clock: FakeClock, request: pytest.FixtureRequest
):
    rounds = counts(2_000, 10_000)
    controllers = [AbortController() for _ in range(rounds)]
    acknowledged = [False] * rounds
    current = [-1]

    def stopper() -> None:
        rng = random.Random(7)
        for number, controller in enumerate(controllers):
            while current[0] < number:
                time.sleep(0)
            for _ in range(rng.randint(0, 200)):
                pass
            controller.abort()
            acknowledged[number] = True

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    request.addfinalizer(partial(sys.setswitchinterval, switch))
    thread = threading.Thread(target=stopper, daemon=True)
    thread.start()
    rng = random.Random(8)
    begun = 0
    for number, controller in enumerate(controllers):
        watch = StartGate(AbortTimers(controller.signal, clock))
        current[0] = number
        if rng.random() < 0.5:
            time.sleep(0)
        for _ in range(rng.randint(0, 200)):
            pass
        # Read before the gate: if it says yes although the stop had been acknowledged, the body would begin after it.
        was_acknowledged = acknowledged[number]
        if watch.begin():
            begun += 1
            assert not was_acknowledged
        watch.end()
        while not acknowledged[number]:
            time.sleep(0)
    thread.join(10)
    assert 0 < begun < rounds, "the race went one way only"


def test_an_abort_that_is_acknowledged_between_the_look_and_the_claim_closes_the_gate(clock: FakeClock):
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))

    class Unclaimed(list[None]):
        def pop(self, index: SupportsIndex = -1) -> None:
            if not controller.signal.aborted:
                assert controller.abort()  # another thread, at the worst moment: it has its acknowledgement now
            return super().pop(index)

    watch.unclaimed = Unclaimed([None])
    assert not watch.begin()


def test_what_is_due_after_the_abort_happens_then_and_not_before(clock: FakeClock):
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))
    heard: list[str] = []
    watch.after_abort(3, partial(heard.append, "warn"))
    watch.after_abort(1, partial(heard.append, "interrupt"))
    assert watch.begin()
    clock.advance(60)
    assert heard == []
    controller.abort()
    clock.advance(1)
    assert heard == ["interrupt"]
    clock.advance(2)
    assert heard == ["interrupt", "warn"]


def test_nothing_is_due_once_the_leaf_has_ended_and_no_timer_is_left(clock: FakeClock):
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))
    heard: list[str] = []
    watch.after_abort(3, partial(heard.append, "warn"))
    watch.begin()
    controller.abort()
    assert clock.pending == 1
    watch.end()
    clock.advance(60)
    assert (heard, clock.pending, controller.signal.observers) == ([], 0, 0)


def test_what_is_asked_for_after_the_abort_is_due_as_well(clock: FakeClock):
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))
    watch.begin()
    controller.abort()
    heard: list[str] = []
    watch.after_abort(2, partial(heard.append, "late"))
    clock.advance(2)
    assert heard == ["late"]


def test_a_callback_may_ask_to_be_called_again_and_stops_with_the_leaf(clock: FakeClock):
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))
    beats: list[float] = []

    def beat() -> None:
        beats.append(clock.monotonic())
        watch.repeat_after(1, beat)

    watch.after_abort(1, beat)
    watch.begin()
    controller.abort()
    clock.advance(3)
    watch.end()
    watch.repeat_after(1, beat)  # it ended while the callback ran
    clock.advance(10)
    assert beats == [1001, 1002, 1003]
    assert clock.pending == 0


def test_an_entry_that_two_threads_want_to_set_is_set_once(clock: FakeClock):
    for _ in range(counts(300, 3_000)):
        controller = AbortController()
        watch = StartGate(AbortTimers(controller.signal, clock))
        watch.begin()
        heard: list[str] = []
        barrier = threading.Barrier(2)

        def abort(barrier: threading.Barrier = barrier, controller: AbortController = controller) -> None:
            barrier.wait(10)
            controller.abort()

        thread = threading.Thread(target=abort, daemon=True)
        thread.start()
        barrier.wait(10)
        watch.after_abort(1, partial(heard.append, "once"))
        thread.join(10)
        clock.advance(1)
        watch.end()
        assert heard == ["once"]


def test_a_thousand_leaves_under_one_signal_have_one_listener_and_after_the_abort_one_timer(clock: FakeClock):
    controller = AbortController()
    alarm = AbortTimers(controller.signal, clock)
    heard: list[int] = []
    watches = [StartGate(alarm) for _ in range(1000)]
    for number, watch in enumerate(watches):
        watch.after_abort(3, partial(heard.append, number))
        assert watch.begin()
    assert controller.signal.observers == 1
    controller.abort()
    assert clock.pending == 1
    for watch in watches[10:]:
        watch.end()
    clock.advance(3)
    assert heard == list(range(10))
    for watch in watches[:10]:
        watch.end()
    assert (clock.pending, controller.signal.observers) == (0, 0)


def test_what_is_due_sooner_than_the_timer_that_is_set_gets_its_own(clock: FakeClock):
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))
    heard: list[str] = []
    watch.after_abort(5, partial(heard.append, "late"))
    watch.begin()
    controller.abort()
    watch.after_abort(1, partial(heard.append, "soon"))
    clock.advance(1)
    assert heard == ["soon"]
    clock.advance(4)
    assert heard == ["soon", "late"]


def test_a_watch_that_ended_while_the_timer_fired_hears_nothing(clock: FakeClock):
    controller = AbortController()
    alarm = AbortTimers(controller.signal, clock)
    first, second = StartGate(alarm), StartGate(alarm)
    heard: list[str] = []
    first.after_abort(1, second.end)
    second.after_abort(1, partial(heard.append, "never"))
    for watch in (first, second):
        watch.begin()
    controller.abort()
    clock.advance(1)
    assert heard == []


def test_a_timer_that_is_set_while_the_last_leaf_ends_is_taken_back():
    controller = AbortController()

    class Ending(FakeClock):
        def call_at(self, when: float, callback: Any) -> Timer:
            watch.end()  # another thread, in this very moment
            return super().call_at(when, callback)

    clock = Ending()
    watch = StartGate(AbortTimers(controller.signal, clock))
    watch.after_abort(1, print)
    watch.begin()
    controller.abort()
    assert clock.pending == 0


@pytest.mark.parametrize("failing", [ValueError("wrong"), KeyboardInterrupt()], ids=repr)
def test_a_callback_that_raises_keeps_neither_the_others_nor_what_is_due_later_from_happening(
    clock: FakeClock, failing: BaseException, caplog: pytest.LogCaptureFixture
):
    controller = AbortController()
    alarm = AbortTimers(controller.signal, clock)
    watches = [StartGate(alarm), StartGate(alarm)]
    heard: list[str] = []

    def fail() -> None:
        raise failing

    watches[0].after_abort(1, fail)
    watches[0].after_abort(1, partial(heard.append, "same leaf"))
    watches[1].after_abort(1, partial(heard.append, "other leaf"))
    watches[1].after_abort(2, partial(heard.append, "later"))
    for watch in watches:
        watch.begin()
    controller.abort()
    clock.advance(1)
    assert heard == ["same leaf", "other leaf"]
    clock.advance(1)
    assert heard == ["same leaf", "other leaf", "later"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_callback_that_blocks_keeps_neither_the_others_nor_what_is_due_later_from_happening():
    controller, gate = AbortController(), threading.Event()
    alarm = AbortTimers(controller.signal, SystemClock())
    blocks, other, later = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        blocks.set()
        gate.wait(SECONDS)

    watch = StartGate(alarm)
    watch.after_abort(0.01, block)
    watch.after_abort(0.01, other.set)
    watch.after_abort(0.1, later.set)
    watch.begin()
    try:
        controller.abort()
        for happens in (blocks, other, later):
            assert happens.wait(SECONDS / 2)
        assert not gate.is_set()
    finally:
        gate.set()
        watch.end()


def test_a_leaf_that_is_looked_at_for_hours_keeps_no_timers_that_have_fired(clock: FakeClock):
    controller = AbortController()
    alarm = AbortTimers(controller.signal, clock)
    watch = StartGate(alarm)

    def look() -> None:
        watch.repeat_after(0.01, look)

    watch.after_abort(0.01, look)
    watch.begin()
    controller.abort()
    clock.advance(10)
    assert len(alarm._timers) < 5
    watch.end()
    assert clock.pending == 0


def test_what_is_due_again_and_again_comes_once_each_time_whatever_the_rounding(clock: FakeClock):
    """At these times the sum of the floats comes out a little later than the time at which the timer fires."""
    controller = AbortController()
    watch = StartGate(AbortTimers(controller.signal, clock))
    assert watch.begin()
    calls: list[float] = []

    def again() -> None:
        calls.append(clock.monotonic())
        assert len(calls) < 1000
        watch.repeat_after(0.01, again)

    watch.after_abort(0.1, again)
    controller.abort()
    fired = 0
    while (when := clock.next_timer()) is not None and when <= 1001 and fired < 1000:
        clock.advance(max(0.0, when - clock.monotonic()))
        fired += 1
    watch.end()
    assert len(calls) == pytest.approx(91, abs=1)
    assert fired == len(calls)
