"""Process groups: who lives in one, who came out of one, and whether a signal found anybody."""

import os
import signal as os_signals
import subprocess
import uuid
from contextlib import contextmanager

from safepoint.process import group as process_group
from safepoint.process.group import MARK, has_procfs, marked, members, send
from tests.kit.waiting import wait_until


@contextmanager
def program(*argv, env=None):
    """A program in a session, and so a group, of its own; killed at the end."""
    process = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, env=env)
    try:
        yield process
    finally:
        send(process.pid, os_signals.SIGKILL)
        process.communicate(timeout=10)


def first_line(process):
    return process.stdout.readline().decode().strip()


def test_the_members_of_a_group_are_all_that_live_in_it():
    with program("sh", "-c", "sleep 60 & echo $!; wait") as process:
        child = int(first_line(process))
        assert sorted(members(process.pid)) == sorted([process.pid, child])
        os.kill(child, os_signals.SIGKILL)
        wait_until(lambda: members(process.pid) in ([process.pid], []))


def test_a_group_is_not_its_session():
    process = subprocess.Popen(["sleep", "60"], process_group=0)
    try:
        assert os.getsid(process.pid) != process.pid
        assert members(process.pid) == [process.pid]
        assert process.pid not in members(os.getpgrp())
    finally:
        process.kill()
        process.wait(10)


def test_a_zombie_is_no_member_although_a_signal_would_find_it():
    with program("true") as process:
        wait_until(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        assert members(process.pid) == []
        assert send(process.pid, 0)


def test_a_group_that_nobody_is_in_has_no_members_and_hears_nothing():
    with program("true") as process:
        process.wait(10)
        assert members(process.pid) == []
        assert not send(process.pid, 0)


def test_a_name_with_blanks_and_parentheses_is_no_obstacle(tmp_path):
    odd = tmp_path / "x) R 1 (y"
    odd.symlink_to("/usr/bin/sleep" if os.path.exists("/usr/bin/sleep") else "/bin/sleep")
    with program(str(odd), "60") as process:
        wait_until(lambda: b"x) R 1 (y" in (process_group.read(f"/proc/{process.pid}/stat")))
        assert members(process.pid) == [process.pid]


def test_a_signal_reaches_the_whole_group():
    with program("sh", "-c", "sleep 60 & echo $!; wait") as process:
        child = int(first_line(process))
        assert send(process.pid, os_signals.SIGTERM)
        wait_until(lambda: not members(process.pid))
        assert process.wait(10) == -os_signals.SIGTERM
        assert child not in [pid for pid, _ in process_group._living(process_group.PROC)]


def test_a_group_of_another_user_is_there_all_the_same(monkeypatch):
    def refuse(group, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    assert send(12345, 0)


def test_marked_processes_are_found_wherever_they_went():
    script = "setsid sh -c 'echo $$; exec sleep 60' & wait"
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    with program("sh", "-c", script, env={**os.environ, MARK: f"{first} {second}"}) as process:
        away = int(first_line(process))
        try:
            assert away not in members(process.pid)
            for mark in (first, second):
                assert sorted(marked(mark)) == sorted([process.pid, away])
            assert marked(first[:-1]) == []
            assert marked(MARK) == []
        finally:
            os.kill(away, os_signals.SIGKILL)


def test_another_variable_with_the_same_words_is_no_mark():
    mark = uuid.uuid4().hex
    with program("sleep", "60", env={**os.environ, f"{MARK}_OTHER": mark, "OTHER": f"{MARK}={mark}"}):
        assert marked(mark) == []


def test_a_process_that_vanishes_while_one_looks_is_left_out(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "4711").mkdir()  # listed, but its files are gone
    (tmp_path / "4712").mkdir()
    (tmp_path / "4712" / "stat").write_bytes(b"4712 (sh) S 1 99 99 0")
    proc = str(tmp_path)
    assert members(99, proc=proc) == [4712]
    assert marked("a1", proc=proc) == []


def test_a_system_that_shows_no_processes_still_knows_whether_a_group_is_empty(tmp_path):
    assert has_procfs()
    proc = str(tmp_path / "proc")
    assert not has_procfs(proc)
    with program("sleep", "60") as process:
        assert members(process.pid, proc=proc) == [process.pid]
        assert marked(uuid.uuid4().hex, proc=proc) == []
        process.kill()
        assert process.wait(10) == -os_signals.SIGKILL  # and of nothing before
        assert members(process.pid, proc=proc) == []
