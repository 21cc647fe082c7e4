"""What is left in the process: new threads, children and descriptors are named, old and idle ones are not."""

import asyncio
import os
import subprocess
import threading

import pytest

from safepoint.abort import AbortController, AbortError, run_in_thread
from safepoint.testing.inject import left as inject_left
from safepoint.testing.inject.left import leftovers_since, take_snapshot

HERE = "tests/internal/testing/test_inject_left.py"


def test_nothing_is_left_when_nothing_came():
    left = leftovers_since(take_snapshot(), executor_idle=True)
    assert not left
    assert (left.threads, left.processes, left.descriptors) == ((), (), ())


def test_a_thread_is_left_with_its_name_and_place():
    before, gate = take_snapshot(), threading.Event()
    thread = threading.Thread(target=lambda: gate.wait(10), name="worker")
    thread.start()
    try:
        (text,) = leftovers_since(before, executor_idle=True).threads
        assert text.startswith("worker at tests/internal/testing/test_inject_left.py:")
        assert not leftovers_since(take_snapshot(), executor_idle=True)
    finally:
        gate.set()
        thread.join()
    assert not leftovers_since(before, executor_idle=True)


@pytest.mark.parametrize(
    ("name", "idle", "count"), [("safepoint-worker", True, 0), ("asyncio_0", True, 0), ("asyncio_0", False, 1)]
)
def test_threads_of_pools_are_left_only_while_they_work(name, idle, count):
    before, gate = take_snapshot(), threading.Event()
    thread = threading.Thread(target=gate.wait, name=name)
    thread.start()
    try:
        assert len(leftovers_since(before, executor_idle=idle).threads) == count
    finally:
        gate.set()
        thread.join()


async def test_a_function_that_was_abandoned_is_left():
    before, gate, controller = take_snapshot(), threading.Event(), AbortController()

    loop = asyncio.get_running_loop()

    def stubborn():
        loop.call_soon_threadsafe(controller.abort)
        gate.wait(10)

    with pytest.raises(AbortError):
        await run_in_thread(stubborn, signal=controller.signal)
    (text,) = leftovers_since(before, executor_idle=True).threads
    line = stubborn.__code__.co_firstlineno
    assert text == f"{stubborn.__qualname__} ({HERE}:{line}), abandoned by run_in_thread"
    gate.set()
    while leftovers_since(before, executor_idle=True):  # bounded by the test's own timeout
        await asyncio.sleep(0)


def test_functions_without_code_are_named_too():
    assert inject_left.name_of_function(len) == "len"
    assert inject_left.name_of_function(object()).startswith("<object")


def test_a_child_process_is_left_until_somebody_has_waited_for_it():
    before = take_snapshot()
    process = subprocess.Popen(["sleep", "60"])
    (text,) = leftovers_since(before, executor_idle=True).processes
    assert text == f"pid {process.pid}: sleep 60"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    (text,) = leftovers_since(before, executor_idle=True).processes
    assert text == f"pid {process.pid}: ended, but its parent has not waited for it"
    process.wait()
    assert not leftovers_since(before, executor_idle=True)


def test_an_open_file_is_left_until_it_is_closed():
    before = take_snapshot()
    with open(os.devnull) as file:
        (text,) = leftovers_since(before, executor_idle=True).descriptors
        assert text == f"{file.fileno()} ({os.devnull})"
    assert not leftovers_since(before, executor_idle=True)


def test_where_the_system_does_not_tell_nothing_is_left(tmp_path):
    proc, descriptors = str(tmp_path / "proc"), str(tmp_path / "fd")
    before = take_snapshot(proc=proc, descriptors=descriptors)
    with open(os.devnull):
        process = subprocess.Popen(["true"])
        try:
            assert not leftovers_since(before, executor_idle=True, proc=proc, descriptors=descriptors)
        finally:
            process.wait()
