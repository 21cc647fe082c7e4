"""Listeners: each runs once or not at all, alone with its errors; and the alarm for work that ignores its signal."""

import logging
import math
import threading
from functools import partial

import pytest

from safepoint.abort import AbortController, AbortSignal, on_abort_timeout, use_clock
from safepoint.errors import UsageError
from safepoint.testing import FakeClock
from tests.conftest import counts
from tests.kit.clocks import HookedClock, TickingClock

SECONDS = 10.0


def raising(error):
    def fail():
        raise error

    return fail


def test_removing_before_the_abort_prevents_the_listener():
    controller, heard = AbortController(), []
    registration = controller.signal.add_listener(lambda: heard.append(1))
    assert registration.remove()
    assert not registration.remove()
    controller.abort()
    assert heard == []


def test_removing_after_the_abort_comes_too_late():
    controller, heard = AbortController(), []
    registration = controller.signal.add_listener(lambda: heard.append(1))
    controller.abort()
    assert heard == [1]
    assert not registration.remove()


def test_removing_while_the_listener_runs_comes_too_late():
    controller, answers = AbortController(), []
    registration = controller.signal.add_listener(lambda: answers.append(registration.remove()))
    controller.abort()
    assert answers == [False]


def test_a_listener_that_removes_a_later_one_prevents_it():
    controller = AbortController()
    heard: list[object] = []
    controller.signal.add_listener(lambda: heard.append(later.remove()))
    later = controller.signal.add_listener(lambda: heard.append("later"))
    controller.abort()
    assert heard == [True]


def test_a_listener_for_an_aborted_signal_never_runs_and_has_nothing_to_prevent():
    heard = []
    registration = AbortSignal.already("stop").add_listener(lambda: heard.append(1))
    assert not registration.remove()
    assert heard == []


def test_a_with_block_removes_its_listener_also_when_it_fails():
    controller, heard = AbortController(), []
    with controller.signal.add_listener(lambda: heard.append("left")) as registration:
        assert controller.signal.observers == 1
    assert not registration.remove()
    with pytest.raises(ZeroDivisionError), controller.signal.add_listener(lambda: heard.append("failed")):
        raise ZeroDivisionError
    assert controller.signal.observers == 0
    controller.abort()
    assert heard == []


def test_a_listener_that_fails_is_logged_and_the_others_still_run(caplog):
    controller, heard = AbortController(), []
    error = ValueError("wrong")
    controller.signal.add_listener(lambda: heard.append("before"))
    controller.signal.add_listener(raising(error))
    controller.signal.add_listener(lambda: heard.append("after"))
    with caplog.at_level(logging.ERROR, "safepoint"):
        assert controller.abort()
    assert heard == ["before", "after"]
    [record] = caplog.records
    assert "fail" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("error_type", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_from_a_listener_comes_out_when_all_others_have_run(error_type):
    controller, heard = AbortController(), []
    composite = AbortSignal.any([controller.signal, AbortController().signal])
    first, second = error_type("first"), error_type("second")
    composite.add_listener(lambda: heard.append("composite before"))
    composite.add_listener(raising(second))
    composite.add_listener(lambda: heard.append("composite after"))
    controller.signal.add_listener(raising(first))
    controller.signal.add_listener(lambda: heard.append("source after"))
    with pytest.raises(error_type) as caught:
        controller.abort()
    assert caught.value is first
    assert heard == ["source after", "composite before", "composite after"]
    assert controller.signal.aborted
    assert not controller.abort()


def test_an_interrupt_from_a_composites_listener_comes_out_too():
    controller, heard = AbortController(), []
    composite = AbortSignal.any([controller.signal, AbortController().signal])
    composite.add_listener(raising(KeyboardInterrupt()))
    composite.add_listener(lambda: heard.append("after"))
    with pytest.raises(KeyboardInterrupt):
        controller.abort()
    assert heard == ["after"]


def test_of_removing_and_aborting_at_once_exactly_one_wins():
    rounds = counts(300, 20_000)
    barrier = threading.Barrier(3)
    controllers = [AbortController() for _ in range(rounds)]
    outcomes: list[list[str]] = [[] for _ in range(rounds)]
    registrations = [
        controller.signal.add_listener(partial(outcome.append, "ran"))
        for controller, outcome in zip(controllers, outcomes, strict=True)
    ]

    def abort():
        for controller in controllers:
            barrier.wait(SECONDS)
            controller.abort()

    def remove():
        for registration, outcome in zip(registrations, outcomes, strict=True):
            barrier.wait(SECONDS)
            if registration.remove():
                outcome.append("prevented")

    in_threads(abort, remove, remove)
    assert [len(outcome) for outcome in outcomes] == [1] * rounds


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_alarm_of_an_aborted_signal_runs_at_once(clock):
    heard = []
    registration = on_abort_timeout(AbortSignal.already("stop"), 5, lambda: heard.append(1))
    assert heard == [1]
    assert not registration.remove()
    assert clock.pending == 0


def test_an_alarm_that_fails_at_once_is_logged(caplog):
    on_abort_timeout(AbortSignal.already("stop"), 5, raising(ValueError("wrong")))
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_alarm_runs_when_the_seconds_after_the_abort_have_passed(clock):
    controller, heard = AbortController(), []
    registration = on_abort_timeout(controller.signal, 5, lambda: heard.append(clock.monotonic()))
    clock.advance(100)
    start = clock.monotonic()
    controller.abort()
    clock.advance(4.9)
    assert heard == []
    clock.advance(10)
    assert heard == [start + 5]
    assert not registration.remove()
    assert clock.pending == 0


def test_the_alarm_of_a_deadline_counts_from_the_deadline(clock):
    heard = []
    signal = AbortSignal.timeout(3)
    with on_abort_timeout(signal, 5, lambda: heard.append(clock.monotonic())):
        start = clock.monotonic()
        clock.advance(7.9)
        assert heard == []
        clock.advance(0.1)
        assert heard == [start + 8]


def test_an_alarm_removed_before_the_abort_leaves_nothing_behind(clock):
    controller, heard = AbortController(), []
    registration = on_abort_timeout(controller.signal, 5, lambda: heard.append(1))
    assert registration.remove()
    assert not registration.remove()
    assert controller.signal.observers == 0
    controller.abort()
    assert clock.pending == 0
    clock.advance(10)
    assert heard == []


def test_an_alarm_removed_between_the_abort_and_its_time_leaves_nothing_behind(clock):
    controller, heard = AbortController(), []
    with on_abort_timeout(controller.signal, 5, lambda: heard.append(1)) as registration:
        controller.abort()
        clock.advance(4.9)
        assert clock.pending == 1
    assert not registration.remove()
    assert clock.pending == 0
    clock.advance(10)
    assert heard == []


def test_removing_between_the_abort_and_the_alarm_prevents_it(clock):
    controller = AbortController()
    registration = on_abort_timeout(controller.signal, 5, lambda: None)
    controller.abort()
    assert registration.remove()
    assert clock.pending == 0


def test_an_alarm_is_removed_by_an_earlier_listener_of_the_same_abort(clock):
    controller = AbortController()
    heard: list[object] = []
    controller.signal.add_listener(lambda: heard.append(registration.remove()))
    registration = on_abort_timeout(controller.signal, 5, lambda: heard.append("alarm"))
    controller.abort()
    clock.advance(10)
    assert heard == [True]
    assert clock.pending == 0


def test_an_alarm_runs_on_real_time_too():
    controller, heard = AbortController(), threading.Event()
    registration = on_abort_timeout(controller.signal, 0.01, heard.set)
    controller.abort()
    assert heard.wait(SECONDS)
    assert not registration.remove()


def test_an_alarm_removed_while_it_is_starting_leaves_nothing_behind():
    controller = AbortController()
    heard: list[object] = []
    with use_clock(HookedClock(lambda: heard.append(registration.remove()))) as clock:
        registration = on_abort_timeout(controller.signal, 5, lambda: heard.append("alarm"))
        controller.abort()
    assert heard == [True]
    assert clock.pending == 0
    clock.advance(10)
    assert heard == [True]


def test_of_removing_and_starting_an_alarm_at_once_nothing_is_left_and_nothing_runs(clock):
    rounds = counts(300, 20_000)
    barrier = threading.Barrier(2)
    heard, prevented = [], []
    controllers = [AbortController() for _ in range(rounds)]
    alarms = [on_abort_timeout(controller.signal, 5, lambda: heard.append(1)) for controller in controllers]

    def abort():
        for controller in controllers:
            barrier.wait(SECONDS)
            with use_clock(clock):
                controller.abort()

    def remove():
        for alarm in alarms:
            barrier.wait(SECONDS)
            prevented.append(alarm.remove())

    in_threads(abort, remove)
    assert prevented == [True] * rounds
    assert clock.pending == 0
    clock.advance(10)
    assert heard == []


def test_a_deadline_that_passes_between_the_first_look_and_the_registration_still_starts_the_alarm():
    heard = []
    with use_clock(TickingClock()) as clock:
        registration = on_abort_timeout(AbortSignal.timeout(1), 5, lambda: heard.append(1))
    assert heard == []
    assert clock.pending == 1
    clock.advance(5)
    assert heard == [1]
    assert not registration.remove()


def test_an_alarm_set_while_another_thread_aborts_always_runs():
    rounds = counts(300, 20_000)
    barrier = threading.Barrier(2)
    controllers = [AbortController() for _ in range(rounds)]
    clocks = [FakeClock() for _ in range(rounds)]
    heard: list[int] = []

    def abort():
        for controller in controllers:
            barrier.wait(SECONDS)
            controller.abort()

    def register():
        for number, (controller, clock) in enumerate(zip(controllers, clocks, strict=True)):
            barrier.wait(SECONDS)
            with use_clock(clock):
                on_abort_timeout(controller.signal, 0, partial(heard.append, number))

    in_threads(abort, register)
    for clock in clocks:
        clock.advance(0)
        assert clock.pending == 0
    assert sorted(heard) == list(range(rounds))


@pytest.mark.parametrize("seconds", ["5", None, True])
def test_an_alarm_needs_a_number_of_seconds(seconds):
    with pytest.raises(TypeError, match=r"^seconds must be a number"):
        on_abort_timeout(AbortController().signal, seconds, print)


@pytest.mark.parametrize("seconds", [-1, math.nan])
def test_an_alarm_needs_seconds_that_are_not_negative(seconds):
    with pytest.raises(UsageError, match=r"^seconds must be"):
        on_abort_timeout(AbortController().signal, seconds, print)


def test_an_alarm_needs_a_callback():
    with pytest.raises(TypeError, match=r"^callback must be callable, not str$"):
        on_abort_timeout(AbortController().signal, 1, "call me")  # type: ignore[arg-type]  # the mistake under test


def test_a_listener_must_be_callable():
    with pytest.raises(TypeError, match=r"^fn must be callable, not str$"):
        AbortController().signal.add_listener("call me")  # type: ignore[arg-type]  # the mistake under test
