"""Single processes: who they are, what descends from them, and how they are ended."""

import os
import signal
import subprocess
import threading

import pytest

from safepoint.process import tree as process_tree
from safepoint.process.tree import (
    ProcessId,
    children_of_thread,
    descendants,
    end_processes,
    identify,
    is_alive,
    name_of,
    parent_of,
    send,
)
from tests.kit.programs import alive
from tests.kit.waiting import wait_until


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_its_pid_and_its_start(sleeper):
    process = identify(sleeper.pid)
    assert process is not None
    assert is_alive(process)
    assert not is_alive(ProcessId(process.pid, process.started + 1))
    assert parent_of(sleeper.pid) == os.getpid()
    assert name_of(sleeper.pid) == "sleep"


def test_a_zombie_has_ended(sleeper):
    process = identify(sleeper.pid)
    sleeper.kill()
    wait_until(lambda: not alive(sleeper.pid))
    assert identify(sleeper.pid) is None
    assert process is not None
    assert not is_alive(process)
    assert not send(process, signal.SIGTERM)


def test_nobody_has_no_name_no_parent_and_no_identity():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert identify(gone.pid) is None
    assert parent_of(gone.pid) is None
    assert name_of(gone.pid) == "process"
    assert not send(ProcessId(gone.pid, 1), signal.SIGTERM)


def test_all_generations_are_found_and_strangers_are_not(sleeper):
    script = "sh -c 'sleep 300 & wait' & echo; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        wait_until(lambda: len(descendants([process.pid])) == 2)
        found = descendants([process.pid])
        assert sleeper.pid not in [each.pid for each in found]
        assert end_processes([*found, ProcessId(process.pid, 1)], grace=5) == []
        process.kill()


def test_a_process_that_ignores_term_is_killed_and_one_with_another_start_is_not_touched(sleeper):
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo; sleep 300"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = identify(process.pid)
        assert identity is not None
        everything = [identity, *descendants([process.pid]), ProcessId(sleeper.pid, 1)]
        assert end_processes(everything, grace=0.1) == []
        assert process.wait(10) == -signal.SIGKILL
    assert sleeper.poll() is None


def test_what_does_not_end_is_given_back(sleeper, monkeypatch):
    process = identify(sleeper.pid)
    assert process is not None
    monkeypatch.setattr(process_tree, "send", lambda process, number: True)
    assert end_processes([process], grace=0.02, kill=0.02) == [process]


def test_the_children_of_a_thread_are_its_own():
    found: list[list[int] | None] = []

    def start() -> None:
        process = subprocess.Popen(["sleep", "300"])
        found.append(children_of_thread(threading.get_native_id()))
        process.kill()
        process.wait()
        found.append([process.pid])

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(30)
    assert found[0] == found[1]
    assert children_of_thread(1 << 22) is None


def test_without_descriptors_of_processes_signals_are_sent_all_the_same(sleeper, monkeypatch):
    process = identify(sleeper.pid)
    assert process is not None

    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not send(ProcessId(process.pid, process.started + 1), signal.SIGTERM)
    assert send(process, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_a_process_of_another_user_is_there_all_the_same(sleeper, monkeypatch):
    process = identify(sleeper.pid)
    assert process is not None

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    assert send(process, signal.SIGTERM)
    monkeypatch.setattr(os, "kill", refuse)
    assert process_tree._kill(sleeper.pid, signal.SIGTERM)


def test_a_process_that_ends_between_look_and_signal_is_gone(sleeper, monkeypatch):
    process = identify(sleeper.pid)
    assert process is not None

    def gone(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(signal, "pidfd_send_signal", gone)
    assert not send(process, signal.SIGTERM)
    monkeypatch.setattr(os, "kill", gone)
    assert not process_tree._kill(sleeper.pid, signal.SIGTERM)


def test_a_system_without_proc_knows_pids_only(sleeper, tmp_path):
    proc = str(tmp_path / "proc")
    assert identify(sleeper.pid, proc=proc) == ProcessId(sleeper.pid, 0)
    assert descendants([os.getpid()], proc=proc) == []
    sleeper.kill()
    sleeper.wait()
    assert identify(sleeper.pid, proc=proc) is None


def test_a_child_that_has_ended_is_no_descendant():
    child = subprocess.Popen(["true"])
    wait_until(lambda: identify(child.pid) is None)  # it has ended, and is not collected yet
    assert child.pid in (children_of_thread(threading.get_native_id()) or ())
    assert child.pid not in [process.pid for process in descendants([os.getpid()])]
    child.wait()
