"""The watch: a run that blocks its thread is woken there and then; one that is over is left in peace."""

import asyncio
import signal
import threading

import pytest

from safepoint.testing import FakeClock, abort_everywhere
from safepoint.testing.inject_loop import Hang, RunLoop
from safepoint.testing.inject_watch import watching

WAKE = signal.SIGVTALRM


def test_a_lock_of_threads_that_is_left_taken_is_found_although_it_blocks_the_loop():
    lock = threading.Lock()

    async def scenario(probe):
        lock.acquire()
        await probe.signal.sleep(1)
        lock.release()

    report = abort_everywhere(scenario, clock=FakeClock, seconds=0.2, check=False)
    (found,) = report.violations
    assert found.law == "works_again"
    line = scenario.__code__.co_firstlineno + 1
    assert f"blocks the whole event loop at tests/testing/test_inject_watch.py:{line}" in found.message


def test_a_scenario_that_blocks_by_itself_is_ended():
    async def scenario(probe):
        threading.Event().wait()

    report = abort_everywhere(scenario, seconds=0.1, check=False)
    assert [found.law for found in report.violations] == ["ends"]


def test_a_run_that_has_ended_is_not_disturbed():
    with watching() as watch:
        watch.loop = None
        signal.raise_signal(WAKE)


def test_the_one_in_progress_gets_hang_once():
    loop = RunLoop(None, 0.0)
    try:
        with watching() as watch:
            watch.loop = loop
            with pytest.raises(Hang, match="did not end within 0 s"):
                threading.Event().wait(10)
            assert watch.loop is None
    finally:
        loop.close()


def test_the_handler_of_before_is_put_back():
    before = signal.getsignal(WAKE)
    with watching():
        assert signal.getsignal(WAKE) != before
    assert signal.getsignal(WAKE) == before


def test_in_another_thread_there_is_no_watch_and_it_works_all_the_same():
    async def scenario(probe):
        await probe.signal.run(asyncio.sleep(0))

    reports = []
    thread = threading.Thread(target=lambda: reports.append(abort_everywhere(scenario)))
    thread.start()
    thread.join()
    assert reports[0].aborted == 4
