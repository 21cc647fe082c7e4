"""Deadlines: pulled when asked, one timer when observed, nothing kept that nobody needs."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from safepoint.abort import AbortController, AbortReason, AbortSignal, AbortTimeout, SystemClock, Timer, use_clock
from safepoint.testing import FakeClock
from tests.kit.programs import printed
from tests.kit.waiting import wait_until


def test_a_timeout_aborts_when_its_time_has_come_and_says_how_long_and_where(clock: FakeClock):
    line = sys._getframe().f_lineno + 1
    signal = AbortSignal.timeout(2.5)
    assert (signal.aborted, signal.reason, signal.remaining()) == (False, None, 2.5)
    clock.advance(2.5)
    assert (signal.aborted, signal.remaining()) == (True, 0.0)
    assert signal.reason == AbortReason("timeout", "2.5 s passed")
    assert signal.reason is not None
    assert signal.reason.origin == f"{__file__}:{line}"


def test_equal_timeouts_fire_in_the_order_of_their_creation(clock: FakeClock):
    heard: list[int] = []
    signals = [AbortSignal.timeout(5) for _ in range(4)]
    for number, signal in enumerate(signals):
        signal.add_listener(partial(heard.append, number))
    clock.advance(5)
    assert heard == [0, 1, 2, 3]


def test_a_timeout_of_zero_is_aborted_as_soon_as_one_looks():
    """A deviation from the web, where it is aborted one turn of the loop later: here there need be no loop."""
    assert AbortSignal.timeout(0).aborted


def test_the_deadline_of_a_composite_is_the_earliest(clock: FakeClock):
    late, early = AbortSignal.timeout(9), AbortSignal.timeout(4)
    signal = AbortController(AbortSignal.any([late, early, AbortController().signal])).signal
    assert signal.deadline == early.deadline == clock.monotonic() + 4
    assert signal.remaining() == 4
    assert AbortController().signal.deadline is None
    assert AbortController().signal.remaining() == float("inf")
    assert AbortSignal.any([AbortController().signal]).deadline is None


@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (float("nan"), ValueError), ("5", TypeError), (True, TypeError)]
)
def test_a_wrong_duration_names_the_argument(wrong: object, error: type[Exception]):
    with pytest.raises(error, match="seconds must be"):
        AbortSignal.timeout(wrong)  # type: ignore[arg-type]
    with pytest.raises(error, match="timeout must be"):
        AbortController().signal.wait(wrong)  # type: ignore[arg-type]


async def test_a_wrong_sleep_is_refused():
    with pytest.raises(ValueError, match="seconds must be"):
        await AbortController().signal.sleep(-1)


def test_an_infinite_timeout_never_aborts():
    signal = AbortSignal.timeout(float("inf"))
    with signal.add_listener(lambda: None):
        assert not signal.aborted
        assert signal.remaining() == float("inf")


def test_a_timer_that_fires_early_is_set_again():
    class Early(FakeClock):
        """Like uvloop, whose timers may fire up to a millisecond too soon: here, the first one does."""

        early = 0.001

        def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
            when, self.early = when - self.early, 0.0
            return super().call_at(when, callback)

    clock = Early()
    with use_clock(clock):
        signal = AbortSignal.timeout(5)
        heard: list[float] = []
        signal.add_listener(lambda: heard.append(clock.monotonic()))
        clock.advance(4.9995)
        assert heard == []
        clock.advance(0.001)
        assert heard == [1005.0]


def test_a_real_timeout_needs_no_loop_and_fires_on_its_own():
    with use_clock(SystemClock()):
        heard = threading.Event()
        AbortSignal.timeout(0.01).add_listener(heard.set)
        assert heard.wait(10)


async def test_a_listener_that_blocks_delays_no_other_deadline_nor_the_other_listeners(
    caplog: pytest.LogCaptureFixture,
):
    gate, blocks, heard = threading.Event(), threading.Event(), threading.Event()

    def hangs() -> None:
        blocks.set()
        gate.wait(10)

    try:
        first = AbortSignal.timeout(0.05)
        first.add_listener(hangs)
        first.add_listener(heard.set)
        assert await asyncio.to_thread(blocks.wait, 10)
        began = time.monotonic()
        with pytest.raises(AbortTimeout):
            await AbortSignal.timeout(0.1).run(asyncio.get_running_loop().create_future())
        assert time.monotonic() - began < 1
        assert await asyncio.to_thread(heard.wait, 10)
        later = threading.Event()
        AbortSignal.timeout(0.01).add_listener(later.set)
        assert await asyncio.to_thread(later.wait, 10)
        while not caplog.records:
            await asyncio.sleep(0.01)  # real time: the watchdog's
    finally:
        gate.set()
    assert "hangs" in caplog.records[0].getMessage()


async def test_a_guard_is_woken_while_every_callback_thread_is_blocked_and_no_more_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
):
    gate, blocks = threading.Event(), threading.Event()

    def hangs() -> None:
        blocks.set()
        gate.wait(10)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with use_clock(SystemClock()):
        try:
            AbortSignal.timeout(0.01).add_listener(hangs)
            assert await asyncio.to_thread(blocks.wait, 10)
            with monkeypatch.context() as patch, pytest.raises(AbortTimeout):
                patch.setattr(threading.Thread, "start", refuse)
                await AbortSignal.timeout(0.05).run(asyncio.get_running_loop().create_future())
        finally:
            gate.set()


def test_a_deadline_that_finds_a_closed_loop_says_so_elsewhere_than_on_the_timer_thread(
    caplog: pytest.LogCaptureFixture,
):
    loop = asyncio.new_event_loop()
    signal = AbortSignal.timeout(0.05)
    task = loop.create_task(signal.run(loop.create_future()))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    with caplog.at_level("DEBUG", logger="safepoint"):
        wait_until(lambda: "closed event loop" in caplog.text)
    assert caplog.records[0].threadName == "safepoint-callbacks"
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # we destroy it on purpose
    del task
    gc.collect()


def test_a_timeout_does_not_keep_the_process_alive():
    program = "from safepoint import AbortSignal; AbortSignal.timeout(3600).add_listener(print)"
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert time.monotonic() - began < 30


@pytest.mark.backends("asyncio", "uvloop")
async def test_a_deadline_outlives_the_loop_that_first_looked_at_it():
    signal = AbortSignal.timeout(0.5)

    def look_on_another_loop() -> None:
        async def look() -> None:
            with signal.guard():
                await asyncio.sleep(0)

        asyncio.run(look())

    thread = threading.Thread(target=look_on_another_loop)
    thread.start()
    thread.join()
    with pytest.raises(AbortTimeout):
        await signal.run(asyncio.get_running_loop().create_future())


def test_a_timer_that_fires_in_the_moment_its_signal_is_collected_does_nothing():
    fired: list[Callable[[], object]] = []

    class Keeping(FakeClock):
        def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
            fired.append(callback)
            return super().call_at(when, callback)

    with use_clock(Keeping()):
        signal = AbortSignal.timeout(5)
        signal.add_listener(lambda: None).remove()
        del signal
    assert fired[0]() is None


def test_a_composite_of_a_timeout_with_a_listener_survives_until_it_fired(clock: FakeClock):
    heard: list[int] = []
    parent = AbortController()
    signal = AbortSignal.any([parent.signal, AbortSignal.timeout(5)])
    signal.add_listener(lambda: heard.append(1))
    ref = weakref.ref(signal)
    del signal
    gc.collect()
    assert ref() is not None
    clock.advance(5)
    gc.collect()
    assert heard == [1]
    assert ref() is None
    assert parent.signal.observers == 0


def test_a_deadline_observed_before_a_fork_fires_for_those_who_observe_it_in_the_child():
    output = printed("""
        import asyncio, os, threading, warnings
        from safepoint.abort import AbortController, AbortSignal, AbortTimeout

        warnings.simplefilter("ignore")  # newer Pythons warn of every fork beside a thread
        signal = AbortSignal.timeout(0.2)
        composite = AbortSignal.any([signal, AbortController().signal])
        heard = []
        signal.add_listener(lambda: heard.append("parent's"))

        async def guarded(signal):
            try:
                await asyncio.wait_for(signal.run(asyncio.sleep(30)), 10)
            except AbortTimeout:
                return True

        def in_child(works):
            child = os.fork()
            if child == 0:
                os._exit(0 if works() else 1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        print(in_child(lambda: asyncio.run(guarded(signal))), end=" ")
        signal = AbortSignal.timeout(0.2)
        composite = AbortSignal.any([signal, AbortController().signal])
        told = threading.Event()
        composite.add_listener(lambda: (heard.append("parent's"), told.set()))
        print(in_child(lambda: asyncio.run(guarded(composite))), told.wait(10), len(heard))
    """)
    assert output == "0 0 True 2"


def test_what_was_registered_before_a_fork_is_not_called_by_a_child_that_does_not_observe_the_deadline():
    output = printed("""
        import os, time, warnings
        from safepoint.abort import AbortSignal

        warnings.simplefilter("ignore")
        read, write = os.pipe()
        signal = AbortSignal.timeout(0.1)
        signal.add_listener(lambda: os.write(write, b"x"))
        child = os.fork()
        if child == 0:
            time.sleep(0.4)
            os._exit(0 if signal.aborted else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.read(read, 10))
    """)
    assert output == "0 b'x'"
