"""When a run goes on without what does not end: who is told, when, how often, and that nothing stays behind."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.abort import AbortController, AbortReason, use_clock
from safepoint.run import Stop, StopAt, StopRequest
from safepoint.testing import FakeClock


def ask(stop: Stop, abandon: float | None, at: StopAt = StopAt.NOW, scope: str = "root") -> bool:
    reason = None if stop.requested else AbortReason("user", "enough")
    return stop.join(StopRequest(at, scope, None, reason, 1.0, abandon))  # type: ignore[arg-type]


class Told:
    """When the callback came."""

    def __init__(self, stop: Stop, clock: FakeClock) -> None:
        self.at: list[float] = []
        start = clock.monotonic()
        self.remove = stop.when_abandoned(lambda: self.at.append(clock.monotonic() - start))


def test_it_is_told_once_that_many_seconds_after_the_abort(clock: FakeClock):
    stop = Stop(AbortController(), clock)
    told = Told(stop, clock)
    ask(stop, 2)
    clock.advance(1.9)
    assert told.at == []
    clock.advance(10)
    assert told.at == [2]
    assert clock.pending == 0


def test_without_abandon_nobody_is_ever_told_and_no_timer_is_set(clock: FakeClock):
    controller = AbortController()
    stop = Stop(controller, clock)
    told = Told(stop, clock)
    ask(stop, None)
    assert clock.pending == 0
    clock.advance(1000)
    assert told.at == []
    assert controller.signal.observers == 0


def test_zero_is_at_once_and_whoever_comes_later_is_told_at_once(clock: FakeClock):
    stop = Stop(AbortController(), clock)
    early = Told(stop, clock)
    ask(stop, 0)
    assert early.at == [0]
    assert Told(stop, clock).at == [0]
    assert clock.pending == 0


def test_before_the_abort_nothing_is_left_behind_and_then_the_time_begins(clock: FakeClock):
    controller = AbortController()
    stop = Stop(controller, clock)
    told = Told(stop, clock)
    ask(stop, 2, StopAt.SAFE_POINT)
    clock.advance(100)
    assert told.at == []
    assert clock.pending == 0
    controller.abort("somebody else")
    clock.advance(1.9)
    assert told.at == []
    clock.advance(0.1)
    assert told.at == [102]


def test_a_safe_point_that_escalates_counts_from_there(clock: FakeClock):
    stop = Stop(AbortController(), clock)
    told = Told(stop, clock)
    stop.join(StopRequest(StopAt.SAFE_POINT, "root", clock.monotonic() + 3, AbortReason(), 1.0, 2.0))
    clock.advance(20)
    assert told.at == [5]


def test_the_same_stop_delivered_twice_changes_nothing(clock: FakeClock):
    stop = Stop(AbortController(), clock)
    told = Told(stop, clock)
    assert ask(stop, 2)
    clock.advance(1.5)
    assert not ask(stop, 2)
    assert clock.pending == 1
    clock.advance(0.5)
    assert told.at == [2]
    assert not ask(stop, 2)
    clock.advance(10)
    assert told.at == [2]


def test_a_later_shorter_time_counts_from_when_it_was_asked_for_and_never_makes_it_later(clock: FakeClock):
    stop = Stop(AbortController(), clock)
    told = Told(stop, clock)
    ask(stop, 5)
    clock.advance(4)
    ask(stop, 2)  # 4 + 2 is later than 5
    assert clock.pending == 1
    clock.advance(1)
    assert told.at == [5]

    stop = Stop(AbortController(), clock)
    told = Told(stop, clock)
    ask(stop, 60)
    clock.advance(4)
    ask(stop, 1)
    assert clock.pending == 1
    clock.advance(1)
    assert told.at == [5]


@given(st.lists(st.tuples(st.floats(0, 5), st.none() | st.floats(0, 9)), max_size=6), st.integers(0, 6))
@settings(deadline=None)
def test_the_time_is_the_earliest_that_any_request_allows(asks: list[tuple[float, float | None]], abort_after: int):
    clock = FakeClock()
    with use_clock(clock):
        controller = AbortController()
        stop = Stop(controller, clock)
        told = Told(stop, clock)
        start, due = clock.monotonic(), float("inf")
        aborted_at, smallest = None, float("inf")
        for number, (pause, abandon) in enumerate(asks):
            clock.advance(pause)
            now = clock.monotonic() - start
            if number == abort_after:
                controller.abort()
                aborted_at = now
                due = now + smallest
            ask(stop, abandon, StopAt.SAFE_POINT)
            if abandon is not None and abandon < smallest:  # the same again, or a longer one, changes nothing
                smallest = abandon
                if aborted_at is not None:
                    due = min(due, now + abandon)
        clock.advance(20)
        assert told.at == ([] if due == float("inf") else [pytest.approx(due)])
        stop.close()
        assert clock.pending == 0


def test_the_runs_inside_are_told_too_and_those_that_begin_later(clock: FakeClock):
    controller = AbortController()
    root = Stop(controller, clock)
    child = Stop(AbortController(controller.signal), clock, root)
    grandchild = Stop(AbortController(controller.signal), clock, child)
    told = [Told(child, clock), Told(grandchild, clock)]
    ask(root, 2)
    assert child.request.abandon == grandchild.request.abandon == 2
    clock.advance(2)
    assert [one.at for one in told] == [[2], [2]]
    assert Told(Stop(AbortController(controller.signal), clock, child), clock).at == [0]


def test_an_abort_of_the_root_by_its_deadline_leaves_what_is_inside_a_run_below(clock: FakeClock):
    """The request was for the root alone; the abort is for everybody, and so is what follows from it."""
    controller = AbortController()
    root = Stop(controller, clock)
    child = Stop(AbortController(controller.signal), clock, root)
    told = Told(child, clock)
    ask(root, 2, StopAt.SAFE_POINT)
    assert not child.requested
    controller.abort(AbortReason("deadline", "time is up"))
    clock.advance(2)
    assert told.at == [2]


def test_a_controller_that_comes_later_counts_from_then(clock: FakeClock):
    stop = Stop(None, clock)
    told = Told(stop, clock)
    ask(stop, 0)
    assert told.at == []
    stop.bind(AbortController())
    assert told.at == [0]


def test_what_is_removed_is_not_told_and_nothing_stays_behind(clock: FakeClock):
    parent = AbortController()
    controller = AbortController(parent.signal)
    stop = Stop(controller, clock)
    for _ in range(100):
        told = Told(stop, clock)
        told.remove()
        told.remove()
    assert not stop._abandon_callbacks
    ask(stop, 2, StopAt.SAFE_POINT)
    assert parent.signal.observers == 1
    stop.close()
    assert parent.signal.observers == 0
    ask(stop, 1, StopAt.SAFE_POINT)
    assert parent.signal.observers == 0
    ask(stop, 0.5)
    clock.advance(10)
    assert told.at == []
    assert clock.pending == 0


def test_a_callback_that_raises_keeps_nobody_from_being_told(clock: FakeClock, caplog: pytest.LogCaptureFixture):
    stop = Stop(AbortController(), clock)

    def breaks() -> None:
        raise ValueError("broken")

    stop.when_abandoned(breaks)
    told = Told(stop, clock)
    ask(stop, 0)
    assert told.at == [0]
    assert "when_abandoned() failed" in caplog.text


def test_an_abort_in_the_middle_of_asking_for_a_stop_does_not_wait_for_itself(clock: FakeClock):
    """As in a signal handler: it interrupts the thread that holds the lock of the stop."""
    controller = AbortController()
    stop = Stop(controller, clock)
    told = Told(stop, clock)
    ask(stop, 0, StopAt.SAFE_POINT)
    with stop._lock:
        thread = threading.Thread(target=controller.abort)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    assert told.at == [0]


def test_of_many_threads_exactly_one_tells_each_callback(clock: FakeClock):
    for _ in range(50):
        controller = AbortController()
        stop = Stop(controller, clock)
        heard: list[int] = []
        barrier = threading.Barrier(4)

        def register(stop: Stop = stop, heard: list[int] = heard, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(5)
            for number in range(50):
                stop.when_abandoned(lambda number=number: heard.append(number))  # type: ignore[misc]

        def press(stop: Stop = stop, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(5)
            ask(stop, 0)

        threads = [threading.Thread(target=target) for target in (register, register, press, press)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(heard) == sorted([*range(50), *range(50)])
        assert not stop._abandon_callbacks
