"""Owns the tests that look inside, beside those of `tests/internal/testing/test_other_peoples_code.py`.

abort_everywhere over code as people write it: threads, servers and programs inside one scenario, on both clocks.
"""

import asyncio
import queue
import sys
import threading

from safepoint.abort import current_clock
from safepoint.process import run_process
from safepoint.testing import FakeClock, RunTimings, abort_everywhere

TIMINGS = RunTimings(still=0.1)


def test_an_idle_thread_of_a_library_does_not_stop_fake_time():
    async def scenario(probe):
        jobs: queue.SimpleQueue[object] = queue.SimpleQueue()
        thread = threading.Thread(target=lambda: all(iter(jobs.get, None)), name="driver")
        thread.start()
        try:
            for _ in range(10):
                await probe.signal.sleep(3600)
        finally:
            jobs.put(None)
            thread.join()

    report = abort_everywhere(scenario, clock=FakeClock, timings=TIMINGS, modes=["abort"])
    assert len(report.points) == 10
    assert [text for text in report.jumped_over if text.startswith("thread driver at tests/internal/testing/")]
    assert "fake time jumped although it had not moved" in str(report)


def test_a_program_that_waits_for_input_does_not_stop_fake_time():
    async def scenario(probe):
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            await probe.signal.sleep(3600)
            program.stdin.write(b"hello\n")
            return await program.stdout.readline()
        finally:
            program.stdin.close()
            await program.wait()

    report = abort_everywhere(scenario, clock=FakeClock, timings=TIMINGS, only=(1, "abort"), laws=[], check=False)
    assert report.unfinished == ""
    assert any(text.startswith("child process cat") for text in report.jumped_over)


def test_fake_time_stands_still_while_a_program_computes():
    program = "import time\nuntil = time.monotonic() + 0.4\nwhile time.monotonic() < until: pass"

    async def scenario(probe):
        async with asyncio.timeout(60):  # fake time: it must not pass while the program, or its child, works
            await run_process(["sh", "-c", f"{sys.executable} -S -c '{program}'; true"], signal=probe.signal)
        return current_clock().monotonic()

    report = abort_everywhere(scenario, clock=FakeClock, timings=TIMINGS, only=(1, "cancel"))
    assert report.violations == ()
