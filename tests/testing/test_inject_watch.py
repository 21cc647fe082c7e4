"""The watch: a run that blocks its thread is woken there and then; one that is over is left in peace."""

import asyncio
import threading

from safepoint.testing import FakeClock, abort_everywhere


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


def test_in_another_thread_there_is_no_watch_and_it_works_all_the_same():
    async def scenario(probe):
        await probe.signal.run(asyncio.sleep(0))

    reports = []
    thread = threading.Thread(target=lambda: reports.append(abort_everywhere(scenario)))
    thread.start()
    thread.join()
    assert reports[0].aborted == 4
