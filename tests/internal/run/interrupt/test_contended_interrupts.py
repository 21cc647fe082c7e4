"""Being called in a thread before its instructions: switched on by the first who asks, off by the last."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from safepoint.run import AbortInterrupt
from tests.conftest import counts
from tests.internal.run.interrupt.test_call import Gate, Worker, nap
from tests.kit.programs import SOURCES, VERSIONS, python_of
from tests.kit.waiting import wait_until

PROGRAM = Path(__file__).with_name("interrupts_program.py")


monitoring = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")


tracing = pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on nothing is traced")


def sleepy():
    while True:
        nap()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("at_once", [10, 50])
def test_contended_interrupts_leave_nothing_held_lost_or_open(version, at_once):
    command = [python_of(version), str(PROGRAM), str(SOURCES), str(counts(50, 1_000)), str(at_once)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    counted = json.loads(ended.stdout)
    assert counted.pop("left") == 0
    assert len(counted) == 32
    wrong = {name: each for name, each in counted.items() if each["bad"] or each["interrupted"] != each["calls"]}
    assert wrong == {}
    assert {each["calls"] for each in counted.values()} == {counts(50, 1_000)}


@monitoring
def test_the_tool_id_is_given_back_and_none_free_means_not_now():
    names: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    taken = [number for number in range(6) if names.get_tool(number) is None]
    for number in taken:
        names.use_tool_id(number, "somebody")
    worker = Worker(sleepy).is_at("in sleepy")
    try:
        assert not worker.call.interrupt()
        assert not worker.call.watched
    finally:
        for number in taken:
            names.free_tool_id(number)
    assert worker.call.interrupt()
    assert worker.end() is AbortInterrupt
    assert [number for number in range(6) if names.get_tool(number) is None] == taken


@monitoring
def test_the_code_is_left_as_it_was():
    names: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    worker = Worker(sleepy).is_at("in sleepy")
    assert worker.call.interrupt()
    assert worker.end() is AbortInterrupt
    for number in range(6):
        if names.get_tool(number) is None:
            names.use_tool_id(number, "look")
            assert names.get_events(number) == 0
            assert names.get_local_events(number, sleepy.__code__) == 0
            names.free_tool_id(number)


@tracing
def test_the_thread_is_not_traced_any_more():
    gate = Gate()

    def tool():
        try:
            while True:
                nap()
        except AbortInterrupt:
            pass
        gate.wait()
        return sys.gettrace()

    worker = Worker(tool).is_at("in tool")
    assert worker.call.interrupt()
    wait_until(lambda: worker.call.interrupted)
    gate.open()
    assert worker.end() is None


def test_other_threads_in_the_same_code_are_not_interrupted():
    over = threading.Event()

    def tool():
        while not over.is_set():
            nap()
        return "over"

    workers = [Worker(tool).is_at("in tool") for _ in range(4)]
    assert workers[0].call.interrupt()
    assert workers[0].end() is AbortInterrupt
    over.set()
    assert [worker.end() for worker in workers[1:]] == ["over"] * 3


def test_fifty_threads_are_interrupted_at_once():
    workers = [Worker(sleepy).is_at("in sleepy") for _ in range(50)]
    for worker in workers:
        assert worker.call.interrupt()
    assert {worker.end() for worker in workers} == {AbortInterrupt}
