"""The signal: the WHATWG rules case by case, and what they mean with threads, deadlines and a garbage collector."""

import contextvars
import gc
import itertools
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from safepoint.abort import (
    AbortController,
    AbortError,
    AbortReason,
    AbortSignal,
    AbortTimeout,
    use_clock,
)
from safepoint.errors import UsageError
from safepoint.testing import FakeClock
from tests.conftest import counts


def test_a_fresh_signal_is_not_aborted_and_has_no_reason():
    signal = AbortController().signal
    assert not signal.aborted
    assert signal.reason is None
    signal.raise_if_aborted()


def test_listeners_have_run_when_abort_returns_and_the_second_abort_is_silent():
    controller = AbortController()
    heard: list[bool] = []
    controller.signal.add_listener(lambda: heard.append(controller.signal.aborted))
    assert controller.abort()
    assert heard == [True]
    assert not controller.abort("again")
    assert heard == [True]


def test_the_controllers_signal_is_the_same_object_before_and_after_the_abort():
    controller = AbortController()
    before = controller.signal
    controller.abort()
    assert controller.signal is before


def test_the_first_reason_wins_for_ever():
    controller = AbortController()
    controller.abort("first")
    controller.abort("second")
    assert controller.signal.reason == AbortReason("user", "first")


def test_a_listener_added_after_the_abort_is_never_called():
    controller = AbortController()
    controller.abort()
    heard: list[int] = []
    registration = controller.signal.add_listener(lambda: heard.append(1))
    controller.abort()
    assert heard == []
    assert not registration.remove()
    assert controller.signal.observers == 0


@pytest.mark.parametrize("nothing", [(), (None,)])
def test_no_reason_and_none_mean_a_silent_user(nothing: tuple[None, ...]):
    controller = AbortController()
    controller.abort(*nothing)
    assert controller.signal.aborted
    assert controller.signal.reason == AbortReason("user", "")


def test_an_exception_as_reason_is_kept_as_the_very_object():
    controller = AbortController()
    error = LookupError("gone")
    controller.abort(error)
    assert controller.signal.reason is not None
    assert controller.signal.reason.kind == "error"
    assert controller.signal.reason.cause is error


def test_a_reason_with_an_origin_is_kept_as_the_very_object():
    controller = AbortController()
    reason = AbortReason("shutdown", "bye", origin="elsewhere:1")
    controller.abort(reason)
    assert controller.signal.reason is reason


def test_the_reason_read_twice_is_the_same_object():
    for signal in (AbortSignal.already("x"), AbortSignal.any([AbortSignal.already("x")]), AbortSignal.timeout(0)):
        assert signal.reason is signal.reason
        assert signal.reason is not None


def test_the_origin_is_the_line_that_called_abort():
    controller = AbortController()
    line = sys._getframe().f_lineno + 1
    controller.abort("here")
    assert controller.signal.reason is not None
    assert controller.signal.reason.origin == f"{__file__}:{line}"


def test_a_wrong_reason_is_refused_and_nothing_is_aborted():
    controller = AbortController()
    with pytest.raises(TypeError, match="reason must be"):
        controller.abort(7)  # type: ignore[arg-type]
    assert not controller.signal.aborted


def test_raise_if_aborted_raises_the_reason_and_timeouts_are_timeout_errors():
    with pytest.raises(AbortError) as caught:
        AbortSignal.already("stop").raise_if_aborted()
    assert caught.value.reason == AbortReason("user", "stop")
    assert not isinstance(caught.value, TimeoutError)
    for kind in ("timeout", "deadline"):
        with pytest.raises(AbortTimeout):
            AbortSignal.already(AbortReason(kind)).raise_if_aborted()


def test_a_signal_cannot_be_constructed():
    with pytest.raises(UsageError, match="AbortController"):
        AbortSignal()  # type: ignore[abstract]


def test_the_already_aborted_signal_never_calls_a_listener():
    heard: list[int] = []
    signal = AbortSignal.already("born so")
    signal.add_listener(lambda: heard.append(1))
    assert signal.aborted
    assert signal.reason == AbortReason("user", "born so")
    assert heard == []


def test_never_is_never_aborted_and_its_listeners_can_be_removed():
    signal = AbortSignal.never()
    assert not signal.aborted
    assert signal.add_listener(lambda: None).remove()


def test_listeners_run_in_the_order_of_their_registration():
    controller = AbortController()
    heard: list[int] = []
    for number in range(5):
        controller.signal.add_listener(partial(heard.append, number))
    controller.abort()
    assert heard == [0, 1, 2, 3, 4]


def test_sources_come_before_dependents_and_dependents_in_order_of_creation():
    controller = AbortController()
    s0 = controller.signal
    s1 = AbortSignal.any([s0])
    s2 = AbortSignal.any([s0])
    s3 = AbortSignal.any([s0])
    s4 = AbortSignal.any([s1])
    heard = ""

    def hear(number: int) -> Callable[[], None]:
        def listener() -> None:
            nonlocal heard
            heard += str(number)

        return listener

    for number, signal in reversed(list(enumerate([s0, s1, s2, s3, s4]))):  # registered in reverse
        signal.add_listener(hear(number))
    controller.abort()
    assert heard == "01234"


def test_all_state_over_the_whole_graph_changes_before_any_listener_runs():
    controller = AbortController()
    composite = AbortSignal.any([controller.signal])
    nested = AbortSignal.any([composite, AbortController().signal])
    child = AbortController(nested).signal
    seen: list[bool] = []
    controller.signal.add_listener(lambda: seen.extend(s.aborted for s in (composite, nested, child)))
    for signal in (composite, nested, child):
        signal.add_listener(lambda: None)
    controller.abort()
    assert seen == [True, True, True]


def test_a_listener_that_aborts_again_changes_nothing():
    controller = AbortController()
    answers: list[bool] = []
    controller.signal.add_listener(lambda: answers.append(controller.abort("inner")))
    assert controller.abort("outer")
    assert answers == [False]
    assert controller.signal.reason == AbortReason("user", "outer")


def test_a_listener_added_by_a_listener_is_not_called():
    controller = AbortController()
    heard: list[str] = []
    controller.signal.add_listener(lambda: controller.signal.add_listener(lambda: heard.append("late")))
    controller.abort()
    assert heard == []


def test_a_listener_that_removes_a_later_one_prevents_it():
    controller = AbortController()
    heard: list[str] = []
    removed: list[bool] = []
    controller.signal.add_listener(lambda: removed.append(later.remove()))
    later = controller.signal.add_listener(lambda: heard.append("later"))
    controller.abort()
    assert heard == []
    assert removed == [True]


def test_a_listener_that_removes_an_earlier_one_is_told_that_it_ran():
    controller = AbortController()
    removed: list[bool] = []
    earlier = controller.signal.add_listener(lambda: None)
    controller.signal.add_listener(lambda: removed.append(earlier.remove()))
    controller.abort()
    assert removed == [False]


def test_a_composite_built_in_a_listener_is_aborted_at_once():
    controller = AbortController()
    composite = AbortSignal.any([controller.signal])
    built: list[AbortSignal] = []
    controller.signal.add_listener(lambda: built.append(AbortSignal.any([composite])))
    controller.abort("x")
    assert built[0].aborted
    assert built[0].reason is controller.signal.reason


def test_a_listener_that_fails_stops_neither_the_others_nor_the_abort(caplog: pytest.LogCaptureFixture):
    controller = AbortController()
    heard: list[str] = []

    def fail() -> None:
        raise LookupError("listener")

    controller.signal.add_listener(fail)
    controller.signal.add_listener(lambda: heard.append("next"))
    AbortSignal.any([controller.signal]).add_listener(lambda: heard.append("composite"))
    assert controller.abort()
    assert heard == ["next", "composite"]
    assert "LookupError: listener" in caplog.text


def test_a_keyboard_interrupt_in_a_listener_comes_out_when_everybody_has_heard():
    controller = AbortController()
    heard: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    controller.signal.add_listener(interrupt)
    controller.signal.add_listener(lambda: heard.append("next"))
    AbortSignal.any([controller.signal]).add_listener(lambda: heard.append("composite"))
    with pytest.raises(KeyboardInterrupt):
        controller.abort()
    assert heard == ["next", "composite"]
    assert controller.signal.aborted


def test_the_same_function_added_twice_is_two_registrations():
    """A deviation from the web, where it is one: two users of one function must not remove each other's."""
    controller = AbortController()
    heard: list[int] = []

    def listen() -> None:
        heard.append(1)

    first = controller.signal.add_listener(listen)
    controller.signal.add_listener(listen)
    assert first.remove()
    controller.abort()
    assert heard == [1]


def test_a_listener_must_be_callable():
    controller = AbortController()
    with pytest.raises(TypeError, match="fn must be callable"):
        controller.signal.add_listener("x")  # type: ignore[arg-type]
    assert controller.signal.observers == 0


def test_adding_and_removing_is_balanced():
    controller = AbortController()
    registration = controller.signal.add_listener(lambda: None)
    assert controller.signal.observers == 1
    assert registration.remove()
    assert not registration.remove()
    assert controller.signal.observers == 0


def test_any_of_nothing_is_never_aborted():
    signal = AbortSignal.any([])
    assert not signal.aborted
    assert signal.reason is None


def test_any_of_one_is_a_new_signal_that_follows_it():
    controller = AbortController()
    signal = AbortSignal.any([controller.signal])
    heard: list[bool] = []
    signal.add_listener(lambda: heard.append(signal.aborted))
    assert signal is not controller.signal
    assert signal.reason is None
    controller.abort("r")
    assert heard == [True]
    assert signal.reason is controller.signal.reason


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_follows_each_of_its_signals(which: int):
    controllers = [AbortController() for _ in range(3)]
    signal = AbortSignal.any(c.signal for c in controllers)
    heard: list[int] = []
    signal.add_listener(lambda: heard.append(1))
    controllers[which].abort(f"{which}")
    assert heard == [1]
    assert signal.reason == AbortReason("user", f"{which}")


def test_of_several_already_aborted_inputs_the_first_in_the_list_gives_the_reason():
    one, two, live = AbortSignal.already("one"), AbortSignal.already("two"), AbortController().signal
    assert AbortSignal.any([live, one, two]).reason == AbortReason("user", "one")
    assert AbortSignal.any([two, one, two]).reason == AbortReason("user", "two")


def test_of_several_live_inputs_the_first_in_time_gives_the_reason():
    first, second = AbortController(), AbortController()
    signal = AbortSignal.any([second.signal, first.signal])
    first.abort("first")
    second.abort("second")
    assert signal.reason == AbortReason("user", "first")


def test_the_same_signal_twice_counts_once():
    controller = AbortController()
    signal = AbortSignal.any([controller.signal, controller.signal])
    heard: list[int] = []
    with signal.add_listener(lambda: heard.append(1)):
        assert controller.signal.observers == 1
        controller.abort()
    assert heard == [1]


def test_any_of_composites_is_flattened_to_their_roots():
    a, b, c = AbortController(), AbortController(), AbortController()
    inner = AbortSignal.any([a.signal, b.signal])
    outer = AbortSignal.any([inner, c.signal])
    ref = weakref.ref(inner)
    del inner
    gc.collect()
    assert ref() is None  # an intermediate composite is not kept alive
    b.abort("b")
    assert outer.reason == AbortReason("user", "b")


def test_a_chain_of_composites_follows_the_root():
    controller = AbortController()
    signal = controller.signal
    for _ in range(4):
        signal = AbortSignal.any([signal])
    heard: list[int] = []
    signal.add_listener(lambda: heard.append(1))
    controller.abort("deep")
    assert heard == [1]
    assert signal.reason is controller.signal.reason


def test_any_of_a_controller_and_a_timeout_times_out(clock: FakeClock):
    signal = AbortSignal.any([AbortController().signal, AbortSignal.timeout(5)])
    heard: list[object] = []
    signal.add_listener(lambda: heard.append(signal.reason))
    clock.advance(4.9)
    assert not signal.aborted
    clock.advance(0.1)
    assert [r.kind for r in heard] == ["timeout"]  # type: ignore[attr-defined]


def test_a_deadline_that_passed_unwatched_before_an_abort_was_first(clock: FakeClock):
    controller = AbortController()
    signal = AbortSignal.any([controller.signal, AbortSignal.timeout(3)])
    clock.advance(5)
    controller.abort("late")
    assert signal.reason is not None
    assert signal.reason.kind == "timeout"


def test_an_abort_before_the_deadline_was_first_whenever_one_looks(clock: FakeClock):
    controller = AbortController()
    signal = AbortSignal.any([AbortSignal.timeout(3), controller.signal])
    clock.advance(2)
    controller.abort("early")
    clock.advance(5)
    assert signal.reason == AbortReason("user", "early")


def test_in_the_same_instant_the_order_of_the_list_decides(clock: FakeClock):
    for order in (0, 1):
        controller, timeout = AbortController(), AbortSignal.timeout(3)
        signals = [controller.signal, timeout]
        signal = AbortSignal.any(signals if order == 0 else signals[::-1])
        clock.advance(3)
        controller.abort("now")
        assert signal.reason is not None
        assert signal.reason.kind == ("user" if order == 0 else "timeout")


def test_the_reason_once_read_does_not_change_when_an_earlier_root_reports_late():
    a, b = AbortController(), AbortController()
    signal = AbortSignal.any([a.signal, b.signal])
    b._source.decide(AbortReason("user", "b"), 5.0)
    assert signal.reason == AbortReason("user", "b")
    a._source.decide(AbortReason("user", "a"), 4.0)
    assert signal.reason == AbortReason("user", "b")


@pytest.mark.parametrize("wrong", [None, "signal", AbortController()])
def test_any_names_the_wrong_element_even_behind_an_aborted_one(wrong: object):
    with pytest.raises(TypeError, match=r"signals\[1\] must be an AbortSignal"):
        AbortSignal.any([AbortSignal.already(), wrong])  # type: ignore[list-item]


def test_any_needs_an_iterable():
    with pytest.raises(TypeError):
        AbortSignal.any(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        AbortSignal.any(AbortController().signal)  # type: ignore[arg-type]


def test_a_composite_leaves_its_other_roots_when_one_aborts():
    a, b = AbortController(), AbortController()
    AbortSignal.any([a.signal, b.signal]).add_listener(lambda: None)
    assert b.signal.observers == 1
    a.abort()
    assert b.signal.observers == 0


def test_the_listeners_of_a_composite_run_once_when_both_roots_abort():
    a, b = AbortController(), AbortController()
    heard: list[int] = []
    signal = AbortSignal.any([a.signal, b.signal])
    signal.add_listener(lambda: heard.append(1))
    a.abort()
    b.abort()
    assert heard == [1]


def test_a_composite_is_registered_from_its_first_listener_to_the_removal_of_its_last():
    controller = AbortController()
    signal = AbortSignal.any([controller.signal])
    assert controller.signal.observers == 0
    first, second = signal.add_listener(lambda: None), signal.add_listener(lambda: None)
    assert (controller.signal.observers, signal.observers) == (1, 2)
    first.remove()
    assert controller.signal.observers == 1
    second.remove()
    assert (controller.signal.observers, signal.observers) == (0, 0)


def test_a_hundred_thousand_composites_over_one_parent_leave_nothing_behind():
    parent = AbortController()

    def make(number: int) -> None:
        for _ in range(number):
            signal = AbortSignal.any([parent.signal, AbortController().signal])
            assert not signal.aborted
            AbortController(parent.signal).signal.aborted  # noqa: B018
            AbortSignal.any([parent.signal, AbortSignal.timeout(3600)]).remaining()

    make(1_000)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        make(counts(34_000, 340_000))  # three composites each
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert parent.signal.observers == 0
    assert grown < 20_000, f"{grown} bytes were kept"


def test_composites_are_freed_without_the_garbage_collector():
    controller = AbortController()
    gc.disable()
    try:
        signal = AbortSignal.any([controller.signal])
        signal.add_listener(lambda: None).remove()
        ref = weakref.ref(signal)
        del signal
        assert ref() is None
        source = weakref.ref(controller.signal)
        del controller
        assert source() is None
    finally:
        gc.enable()


def test_a_signal_does_not_keep_its_controller():
    controller = AbortController()
    signal = controller.signal
    ref = weakref.ref(controller)
    del controller
    assert ref() is None
    assert not signal.aborted


def test_a_composite_with_a_listener_lives_and_fires_although_nobody_holds_it():
    controller = AbortController()
    heard: list[int] = []
    AbortSignal.any([controller.signal]).add_listener(lambda: heard.append(1))
    gc.collect()
    controller.abort()
    assert heard == [1]


def test_a_composite_whose_sources_are_gone_is_collected_even_with_a_listener():
    controller = AbortController()
    signal = AbortSignal.any([controller.signal])
    signal.add_listener(lambda: None)
    ref = weakref.ref(signal)
    del controller, signal
    gc.collect()
    assert ref() is None


def test_after_the_abort_nothing_is_held():
    controller = AbortController()
    signal = AbortSignal.any([controller.signal])
    signal.add_listener(lambda: None)
    ref = weakref.ref(signal)
    controller.abort()
    del signal
    assert ref() is None
    assert controller.signal.observers == 0


def test_fifty_threads_abort_at_once_and_exactly_one_wins():
    for _ in range(counts(20, 500)):
        controller = AbortController()
        barrier = threading.Barrier(50)
        won: list[bool] = []
        heard: list[int] = []
        controller.signal.add_listener(partial(heard.append, 1))

        def abort(
            barrier: threading.Barrier = barrier, won: list[bool] = won, controller: AbortController = controller
        ) -> None:
            barrier.wait(10)
            won.append(controller.abort(threading.current_thread().name))
            assert controller.signal.aborted  # also for those that lost
            assert controller.signal.reason is not None

        threads = [threading.Thread(target=abort, daemon=True) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert won.count(True) == 1
        assert len(won) == 50
        assert heard == [1]


def test_a_listener_that_races_the_abort_runs_exactly_once_or_was_too_late():
    for kind in ("root", "composite"):
        for _ in range(counts(300, 5_000)):
            controller = AbortController()
            signal = (
                controller.signal if kind == "root" else AbortSignal.any([controller.signal, AbortController().signal])
            )
            barrier = threading.Barrier(2)
            heard: list[int] = []

            def aborter(barrier: threading.Barrier = barrier, controller: AbortController = controller) -> None:
                barrier.wait(10)
                controller.abort()

            thread = threading.Thread(target=aborter, daemon=True)
            thread.start()
            barrier.wait(10)
            was_aborted_before = signal.aborted
            registration = signal.add_listener(partial(heard.append, 1))
            was_aborted_after = signal.aborted
            thread.join(10)
            prevented = registration.remove()
            assert len(heard) + prevented <= 1
            if not was_aborted_before and not was_aborted_after:
                assert heard == [1], "a listener in its place before the abort must run"
            assert controller.signal.observers == 0


def test_removal_that_races_the_abort_and_the_run_never_both_win():
    for _ in range(counts(300, 5_000)):
        controller = AbortController()
        barrier = threading.Barrier(2)
        heard: list[int] = []
        registration = controller.signal.add_listener(partial(heard.append, 1))

        def aborter(barrier: threading.Barrier = barrier, controller: AbortController = controller) -> None:
            barrier.wait(10)
            controller.abort()

        thread = threading.Thread(target=aborter, daemon=True)
        thread.start()
        barrier.wait(10)
        prevented = registration.remove()
        thread.join(10)
        assert len(heard) + prevented == 1


def test_a_listener_that_comes_while_the_last_one_is_removed_hears_an_abort_in_that_moment(
    monkeypatch: pytest.MonkeyPatch,
):
    controller = AbortController()
    signal = AbortSignal.any([controller.signal])
    heard: list[int] = []
    registration = signal.add_listener(lambda: None)
    root = type(controller.signal)
    forget = root._forget

    def interleaved(root: Any, entry: Any) -> bool:
        monkeypatch.undo()
        signal.add_listener(partial(heard.append, 1))  # the other thread: it listens …
        forgotten = forget(root, entry)  # … we take the composite off its root …
        controller.abort()  # … and a third aborts
        return forgotten

    monkeypatch.setattr(root, "_forget", interleaved)
    registration.remove()
    assert heard == [1]
    assert controller.signal.observers == 0


def test_a_listener_that_comes_while_the_last_one_is_removed_is_registered_again(monkeypatch: pytest.MonkeyPatch):
    controller = AbortController()
    signal = AbortSignal.any([controller.signal])
    heard: list[int] = []
    registration = signal.add_listener(lambda: None)
    root = type(controller.signal)
    forget = root._forget

    def interleaved(root: Any, entry: Any) -> bool:
        monkeypatch.undo()
        signal.add_listener(partial(heard.append, 1))
        return forget(root, entry)

    monkeypatch.setattr(root, "_forget", interleaved)
    registration.remove()
    assert controller.signal.observers == 1
    controller.abort()
    assert heard == [1]


def test_a_listener_whose_abort_comes_between_the_look_and_the_insertion_runs_at_once(monkeypatch: pytest.MonkeyPatch):
    controller = AbortController()
    heard: list[int] = []
    root = type(controller.signal)
    listen = root._listen

    def interleaved(root: Any, entry: Any) -> None:
        controller.abort()
        listen(root, entry)

    monkeypatch.setattr(root, "_listen", interleaved)
    controller.signal.add_listener(partial(heard.append, 1))
    assert heard == [1]
    assert controller.signal.observers == 0


def test_a_listener_of_a_composite_that_removes_a_later_one_prevents_it():
    controller = AbortController()
    signal = AbortSignal.any([controller.signal])
    heard: list[str] = []
    signal.add_listener(lambda: later.remove())
    later = signal.add_listener(lambda: heard.append("later"))
    controller.abort()
    assert heard == []


def test_wait_returns_true_on_abort_and_false_when_its_time_is_up():
    controller = AbortController()
    assert not controller.signal.wait(0)
    assert not controller.signal.wait(0.01)
    threading.Timer(0.01, controller.abort).start()
    assert controller.signal.wait(30)
    assert controller.signal.wait()
    assert controller.signal.observers == 0


def test_wait_without_a_limit_ends_with_the_abort():
    controller = AbortController()
    threading.Timer(0.01, controller.abort).start()
    assert controller.signal.wait()


def test_wait_ends_at_the_deadline_of_its_signal_and_before_it_if_asked():
    assert AbortSignal.timeout(0.01).wait(30)
    assert AbortSignal.timeout(0.01).wait()
    assert not AbortSignal.timeout(30).wait(0.01)


def test_wait_on_a_fake_clock_ends_when_the_clock_is_moved(clock: FakeClock):
    signal = AbortSignal.timeout(100)
    answers: list[bool] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: answers.append(context.run(signal.wait, 5)))
    thread.start()
    while clock.pending < 2:  # the deadline's own timer and the one of wait()
        time.sleep(0.001)  # real time: until the thread waits
    clock.advance(5)
    thread.join(10)
    assert answers == [False]


def test_an_abort_in_a_signal_handler_wakes_the_main_thread_out_of_wait():
    program = """if True:
        import os, signal, threading
        from safepoint import AbortController
        controller = AbortController()
        signal.signal(signal.SIGUSR1, lambda *_: controller.abort("handler"))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert controller.signal.wait(20)
        print(controller.signal.reason.message)
    """
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=30, capture_output=True, text=True)
    assert done.stdout.strip() == "handler"


def test_an_abort_from_a_finalizer_inside_any_operation_of_the_signal_does_not_deadlock():
    controller = AbortController()

    class Owner:
        def __del__(self) -> None:
            controller.abort("finalizer")

    class Listener:
        """Held by the registration; dropped in the middle of `remove()`."""

        def __init__(self) -> None:
            self.owner = Owner()

        def __call__(self) -> None:
            raise AssertionError("was removed")

    registration = controller.signal.add_listener(Listener())
    registration.remove()
    del registration
    gc.collect()
    assert controller.signal.reason == AbortReason("user", "finalizer")


def test_an_abort_in_the_middle_of_an_abort_does_not_deadlock():
    controller = AbortController()
    answers: list[bool] = []
    controller.signal.add_listener(lambda: answers.append(controller.abort("nested")))
    composite = AbortSignal.any([controller.signal])
    composite.add_listener(lambda: answers.append(controller.abort("nested again")))
    assert controller.abort("first")
    assert answers == [False, False]


def test_numbers_of_composites_only_grow():
    numbers = [AbortSignal.any([]).number for _ in range(3)]  # type: ignore[attr-defined]
    assert all(a < b for a, b in itertools.pairwise(numbers))


class Entry:
    """Stands for a guard: what a signal does with an entry, without a task."""

    def __init__(self, on_look: Callable[[], object] = lambda: None) -> None:
        self.on_look = on_look

    def __hash__(self) -> int:  # the signal looks it up: a moment in the middle of an abort
        self.on_look()
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def test_detach_says_whether_an_entry_was_still_attached_to_every_root():
    a, b = AbortController(), AbortController()
    signal: Any = AbortSignal.any([a.signal, b.signal])
    entry: Any = Entry()
    signal.attach(entry)
    assert signal.detach(entry) is True
    assert signal.detach(entry) is False
    for first, second in ((a, b), (b, a)):
        signal.attach(entry)
        first.signal.detach(entry)
        assert signal.detach(entry) is False
        assert (first.signal.observers, second.signal.observers) == (0, 0)


def test_an_entry_that_is_detached_in_the_middle_of_an_abort_is_not_woken(monkeypatch: pytest.MonkeyPatch):
    woken: list[object] = []
    monkeypatch.setattr("safepoint.abort.signal.wake", woken.extend)
    controller = AbortController()
    signal: Any = controller.signal
    detached: list[bool] = []
    first, second = Entry(), Entry()
    signal.attach(first)
    signal.attach(second)
    first.on_look = lambda: detached.append(signal.detach(second))
    controller.abort()
    assert detached == [True]
    assert woken == [first]


def test_the_origin_of_an_already_aborted_signal_is_the_line_that_made_it():
    line = sys._getframe().f_lineno + 1
    signal = AbortSignal.already("here")
    assert signal.reason is not None
    assert signal.reason.origin == f"{__file__}:{line}"


def test_a_timeout_of_zero_is_aborted_also_where_the_clock_begins_at_zero():
    with use_clock(FakeClock(start=0.0)):
        signal = AbortSignal.timeout(0)
        assert signal.aborted
        assert signal.aborted_at == 0.0


class Asked(FakeClock):
    """A fake clock on which a wait ends at once, and that notes for how long each was meant."""

    def __init__(self, *answers: Callable[[], object]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.seconds: list[float | None] = []

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        self.seconds.append(seconds)
        self.answers.pop(0)()
        return lock.acquire(blocking=False)


def test_wait_goes_on_when_it_is_woken_before_its_time():
    controller = AbortController()
    clock = Asked(lambda: clock.advance(1), lambda: None, controller.abort)
    with use_clock(clock):
        assert controller.signal.wait(5)
    assert clock.seconds == [5, 4, 4]


def test_wait_without_a_limit_waits_once_for_as_long_as_it_takes():
    controller = AbortController()
    clock = Asked(controller.abort)
    with use_clock(clock):
        assert controller.signal.wait()
    assert clock.seconds == [None]


def test_wait_ends_in_the_very_moment_its_time_is_up():
    clock = Asked(lambda: clock.advance(5))
    with use_clock(clock):
        assert not AbortController().signal.wait(5)
    assert clock.seconds == [5]


async def test_waiting_for_what_has_happened_sets_no_timer(clock: FakeClock):
    signal = AbortSignal.timeout(0)
    await signal.wait_async()
    assert clock.pending == 0


def test_the_time_of_the_abort_is_that_of_the_root_that_gave_the_reason(clock: FakeClock):
    controller = AbortController()
    timeout = AbortSignal.timeout(5)
    both = AbortSignal.any([timeout, controller.signal])
    assert (controller.signal.aborted_at, timeout.aborted_at, both.aborted_at) == (None, None, None)
    clock.advance(3)
    controller.abort()
    clock.advance(4)
    assert (controller.signal.aborted_at, timeout.aborted_at, both.aborted_at) == (1003.0, 1005.0, 1003.0)


@pytest.mark.parametrize("aborts", [True, False], ids=["ran", "removed before"])
def test_a_listener_of_a_composite_is_removed_once_and_not_after_it_ran(aborts: bool):
    controller = AbortController()
    registration = AbortSignal.any([controller.signal]).add_listener(lambda: None)
    if aborts:
        controller.abort()
    else:
        assert registration.remove()
    assert not registration.remove()


def test_a_deadline_with_several_observers_has_one_timer(clock: FakeClock):
    signal = AbortSignal.timeout(5)
    with signal.add_listener(lambda: None), AbortSignal.any([signal]).add_listener(lambda: None):
        assert clock.pending == 1
