"""Owns the proof that a supervisor is woken, and that everything a child has started can be killed."""

import os
import signal as os_signals
import socket
import subprocess
import time

import pytest

from safepoint.process import child, group
from safepoint.process.child import ChildProcess, Wakeups, start_python
from tests.kit.programs import alive
from tests.kit.waiting import wait_until


def test_a_wait_ends_when_the_supervisor_is_woken_before_it_or_meanwhile():
    with Wakeups() as wakeups:
        wakeups.wake()
        began = time.monotonic()
        wakeups.wait(60)
        assert time.monotonic() - began < 30
        wakeups.wait(0)  # one wake-up ends one wait


def test_an_abort_that_finds_the_child_over_is_harmless():
    with Wakeups() as wakeups:
        pass
    wakeups.wake()


def test_all_of_a_child_is_killed_also_what_has_left_its_group(tmp_path):
    script = "setsid sh -c 'echo $$ >left; exec sleep 60' & echo $$ >leader; wait"
    with ChildProcess(["sh", "-c", script], cwd=tmp_path) as process:
        wait_until(
            lambda: all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in ("left", "leader"))
        )
        left = int((tmp_path / "left").read_text())
        assert os.getpgid(left) != process.pid == int((tmp_path / "leader").read_text())
        process.kill_all()
        wait_until(lambda: not alive(left) and process.has_ended())
        assert process.collect() == -os_signals.SIGKILL


def test_a_process_kills_what_has_its_mark_and_its_own_group_last(monkeypatch):
    mark, killed = "a-mark-of-this-test", []
    other = subprocess.Popen(["sleep", "60"], env=group.with_mark(os.environ, mark), start_new_session=True)
    try:
        wait_until(lambda: group.marked(mark) == [other.pid])
        monkeypatch.setenv(group.MARK, f"an-outer-mark {mark}")
        monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
        monkeypatch.setattr(os, "killpg", lambda pgid, number: killed.append((pgid, number)))
        group.kill_own_processes()
        assert killed == [(other.pid, os_signals.SIGKILL), (0, os_signals.SIGKILL)]
        killed.clear()
        monkeypatch.setattr(os, "getpid", lambda: other.pid)  # as in the process itself, which has the mark, too
        group.kill_own_processes()
        assert killed == [(0, os_signals.SIGKILL)]
    finally:
        monkeypatch.undo()
        other.kill()
        other.wait(10)


def test_a_process_that_cannot_be_started_leaves_no_socket_open(monkeypatch):
    pairs, real = [], socket.socketpair

    def pair():
        pairs.extend(made := real())
        return made

    def refused(*args, **kwargs):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(socket, "socketpair", pair)
    monkeypatch.setattr(child, "ChildProcess", refused)
    with pytest.raises(BlockingIOError):
        start_python("any.module")
    assert [end.fileno() for end in pairs] == [-1, -1]
