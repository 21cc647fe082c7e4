"""Callback threads: quick callbacks share one thread, one that blocks delays no other and is named."""

import gc
import logging
import math
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from safepoint.abort.callbacks import BLOCKED_SECONDS, WARN_SECONDS, CallbackThreads, _Worker
from tests.conftest import counts
from tests.kit.waiting import wait_until

SECONDS = 10.0


class Blocking:
    """A callback that blocks until `gate` is set."""

    def __init__(self) -> None:
        self.began, self.gate = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.began.set()
        self.gate.wait(SECONDS)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    made = Blocking()
    yield made
    made.gate.set()


def later(seconds: float) -> float:
    """The time at which a callback that begins now has run for so long: looking then needs no waiting."""
    return time.monotonic() + seconds


def run(threads: CallbackThreads, *jobs: Iterable[Callable[[], object]]) -> None:
    """Post the jobs and wait until all have run."""
    done = threading.Event()
    for job in jobs:
        threads.post(job)
    threads.post([done.set])
    threads.look(time.monotonic())
    assert done.wait(SECONDS)


def test_quick_callbacks_run_in_order_on_one_thread() -> None:
    threads, ran = CallbackThreads(), []

    def note(number: int) -> None:
        ran.append((number, threading.current_thread()))

    run(threads, [partial(note, 0), partial(note, 1)], *([partial(note, number)] for number in range(2, 200)))
    assert [number for number, _ in ran] == list(range(200))
    [thread] = {thread for _, thread in ran}
    assert (thread.name, thread.daemon) == ("safepoint-callbacks", True)


def test_nothing_is_to_be_looked_at_when_all_callbacks_have_returned(blocking: Blocking) -> None:
    threads = CallbackThreads()
    assert threads.look(1000.0) == math.inf
    threads.post([blocking])
    now = time.monotonic()
    assert threads.look(now) == now + BLOCKED_SECONDS
    assert blocking.began.wait(SECONDS)
    blocking.gate.set()
    wait_until(lambda: threads.look(now) == math.inf)


def test_another_thread_goes_on_when_a_callback_blocks_and_the_blocked_one_ends_when_it_returns(
    blocking: Blocking,
) -> None:
    threads, done = CallbackThreads(), threading.Event()
    threads.post([blocking])
    threads.post([done.set])
    threads.look(time.monotonic())
    assert blocking.began.wait(SECONDS)
    assert not done.is_set(), "one after the other, as long as there is patience"
    threads.look(later(BLOCKED_SECONDS))
    assert done.wait(SECONDS)
    assert blocking.thread is not None
    assert blocking.thread.is_alive()
    blocking.gate.set()
    blocking.thread.join(SECONDS)
    assert not blocking.thread.is_alive()
    run(threads, [lambda: None])


def test_the_rest_of_a_job_goes_on_when_one_of_its_callbacks_blocks(blocking: Blocking) -> None:
    threads, ran, done = CallbackThreads(), [], threading.Event()

    def job() -> Iterator[Callable[[], object]]:
        yield partial(ran.append, "first")
        yield blocking
        yield partial(ran.append, "after it")
        yield done.set

    threads.post(job())
    threads.look(time.monotonic())
    assert blocking.began.wait(SECONDS)
    assert ran == ["first"]
    threads.look(later(BLOCKED_SECONDS))
    assert done.wait(SECONDS)
    assert ran == ["first", "after it"]


def test_a_thread_whose_callback_returns_in_the_moment_it_is_replaced_runs_no_other(blocking: Blocking) -> None:
    """The turn is given away while the callback returns: exactly one thread has it afterwards."""
    threads = CallbackThreads()
    threads.post([blocking])
    threads.look(time.monotonic())
    assert blocking.began.wait(SECONDS)
    assert threads._worker is not None
    worker: _Worker = threads._worker

    class Turn(list[None]):
        def pop(self, *_: Any) -> None:
            if threading.current_thread() is not blocking.thread:
                blocking.gate.set()
                wait_until(lambda: worker.began is None)
            super().pop()

    worker.turn = Turn(worker.turn)
    threads.look(later(BLOCKED_SECONDS))
    used: list[threading.Thread] = []
    run(threads, [lambda: used.append(threading.current_thread())] * 20)
    assert len(used) == 20
    assert len(set(used)) == 1


def test_two_hundred_callbacks_that_all_block_do_not_wait_for_each_other() -> None:
    threads, gate, began = CallbackThreads(), threading.Event(), threading.Semaphore(0)

    def block() -> None:
        began.release()
        gate.wait(SECONDS)

    for _ in range(200):
        threads.post([block])
    first = time.monotonic()
    for _ in range(200):
        threads.look(time.monotonic())
        assert began.acquire(timeout=SECONDS)
        until = time.monotonic() + threads._patience
        while time.monotonic() < until:
            time.sleep(0)
    took = time.monotonic() - first
    gate.set()
    assert took < 200 * BLOCKED_SECONDS / 2


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def blocked(threads: CallbackThreads, *callbacks: Blocking) -> None:
    """All of these are running, each on a thread of its own."""
    for callback in callbacks:
        threads.post([callback])
    for callback in callbacks:
        threads.look(later(BLOCKED_SECONDS))
        assert callback.began.wait(SECONDS)
    threads.look(later(BLOCKED_SECONDS))


def test_a_callback_that_blocks_for_long_is_named_once_with_its_line_and_the_line_it_has_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads, began, gate = CallbackThreads(), threading.Event(), threading.Event()

    def hangs_here() -> None:
        began.set()
        gate.wait(SECONDS)

    threads.post([hangs_here])
    threads.look(time.monotonic())
    assert began.wait(SECONDS)
    now = later(BLOCKED_SECONDS)
    assert threads.look(now) == now + WARN_SECONDS / 4
    assert warnings(caplog) == []
    threads.look(later(WARN_SECONDS))
    wait_until(lambda: bool(warnings(caplog)))
    assert threads.look(later(10 * WARN_SECONDS)) == math.inf, "it has been named"
    gate.set()
    [told] = warnings(caplog)
    line = hangs_here.__code__.co_firstlineno + 2
    assert f"<locals>.hangs_here at {__file__}:{line} (in {threading.__file__}:" in told
    assert "not returned for 1 s" in told


def test_a_callback_is_named_by_its_own_line_where_it_has_called_nothing(caplog: pytest.LogCaptureFixture) -> None:
    threads, began, gate = CallbackThreads(), threading.Event(), threading.Lock()
    gate.acquire()

    def hangs_here() -> None:
        began.set()
        gate.acquire(timeout=SECONDS)  # in C: no frame of its own

    threads.post([hangs_here])
    threads.look(time.monotonic())
    assert began.wait(SECONDS)
    wait_until(lambda: sys._current_frames()[threads._worker.thread_id].f_code.co_name == "hangs_here")  # type: ignore[union-attr]
    threads.look(later(WARN_SECONDS))
    wait_until(lambda: bool(warnings(caplog)))
    gate.release()
    assert f"hangs_here at {__file__}:{hangs_here.__code__.co_firstlineno + 2}. Other" in warnings(caplog)[0]


def test_a_callback_without_a_line_is_named_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    threads, gate = CallbackThreads(), threading.Lock()
    gate.acquire()
    threads.post([partial(gate.acquire, timeout=SECONDS)])
    threads.look(time.monotonic())
    wait_until(lambda: threads._worker is not None and threads._worker.began is not None)
    threads.look(later(WARN_SECONDS))
    wait_until(lambda: bool(warnings(caplog)))
    gate.release()
    assert "functools.partial(<built-in method acquire of _thread.lock" in warnings(caplog)[0]


def test_a_callback_that_returned_before_it_could_be_named_is_not(
    blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    threads = CallbackThreads()
    blocked(threads, blocking)
    workers = list(threads._blocked)
    blocking.gate.set()
    wait_until(lambda: workers[0].began is None)
    threads._report(workers)
    assert warnings(caplog) == []


def test_where_logging_itself_is_blocked_one_thread_waits_for_it_and_callbacks_go_on(blocking: Blocking) -> None:
    threads, second, gate, told = CallbackThreads(), Blocking(), threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(threading.current_thread().name)
            gate.wait(SECONDS)

    handler = Handler()
    logging.getLogger("safepoint").addHandler(handler)
    try:
        blocked(threads, blocking)
        threads.look(later(WARN_SECONDS))
        wait_until(lambda: bool(told))
        blocked(threads, second)
        now = later(WARN_SECONDS)
        assert threads.look(now) == now + WARN_SECONDS / 4, "the second is still to be named"
        run(threads, [lambda: None])
        assert told == ["safepoint-watchdog"]
        gate.set()
        wait_until(lambda: not threads._reporting)
        threads.look(later(WARN_SECONDS))
        wait_until(lambda: len(told) == 2)
    finally:
        gate.set()
        second.gate.set()
        logging.getLogger("safepoint").removeHandler(handler)


def test_a_thread_that_could_not_be_started_is_started_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch, blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    threads, done = CallbackThreads(), threading.Event()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads.post([blocking])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        now = time.monotonic()
        assert threads.look(now) == now + BLOCKED_SECONDS
    threads.look(time.monotonic())
    assert blocking.began.wait(SECONDS)
    threads.post([done.set])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        now = later(WARN_SECONDS)
        assert threads.look(now) == now + BLOCKED_SECONDS / 2
    threads.look(later(WARN_SECONDS))
    assert done.wait(SECONDS)
    wait_until(lambda: bool(warnings(caplog)))


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_a_callback_raises_is_logged_and_the_next_one_runs(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    run(CallbackThreads(), [fail])
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "fail" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_what_a_job_raises_between_its_callbacks_is_logged_and_the_next_job_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def job() -> Iterator[Callable[[], object]]:
        yield lambda: None
        raise LookupError("no more")

    threads = CallbackThreads()
    threads.post(job())
    run(threads)
    assert "LookupError: no more" in caplog.text


def test_a_callback_and_a_logging_handler_that_both_fail_do_not_end_the_thread() -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    handler, used = Handler(), []
    logging.getLogger("safepoint").addHandler(handler)
    try:
        run(
            CallbackThreads(),
            [lambda: used.append(threading.get_ident()), partial(int, "x"), lambda: used.append(threading.get_ident())],
        )
    finally:
        logging.getLogger("safepoint").removeHandler(handler)
    assert used[0] == used[1]


def test_a_thread_that_waits_holds_on_to_nothing() -> None:
    class Heavy:
        def __call__(self) -> None:
            pass

    threads, heavy = CallbackThreads(), Heavy()
    ref = weakref.ref(heavy)
    threads.post([heavy])
    threads.look(time.monotonic())
    del heavy
    wait_until(lambda: gc.collect() >= 0 and ref() is None)


def test_every_callback_runs_once_whichever_of_them_block() -> None:
    for seed in range(counts(5, 200)):
        chance, threads, began = random.Random(seed), CallbackThreads(blocked_seconds=0.001), []
        total = 300

        def work(number: int, seconds: float, began: list[int] = began) -> None:
            began.append(number)
            if seconds:
                time.sleep(seconds)  # real time: about as long as the patience, so that both sides win

        for first in range(0, total, 3):
            threads.post(
                [partial(work, first + k, chance.choice([0.0, 0.0, 0.0, 0.0009, 0.0011, 0.003])) for k in range(3)]
            )
        until = time.monotonic() + SECONDS
        while threads.look(time.monotonic()) < math.inf and time.monotonic() < until:
            time.sleep(0.0005)  # real time: the timer thread's part
        assert sorted(began) == list(range(total))  # a thread the system holds up for a moment is passed by the next
        assert threads._blocked == []
