"""Owns the tests that look inside, beside those of `tests/process/test_program.py`.

Programs under a signal: their whole group ends with the abort, and what is left is named.
"""

import asyncio
import os
import signal as os_signals
import time

import pytest

from safepoint.abort import AbortController
from safepoint.process import group as process_group
from safepoint.process import run_process
from safepoint.process.program import SupervisedProgram, run_program
from tests.kit.programs import alive
from tests.kit.waiting import wait_until
from tests.process.test_program import LONG, STUBBORN, aborted, in_task, running, sh


class Folder:
    """The working directory of a test's programs."""

    def __init__(self, path):
        self.path = path

    def pids(self):
        """The processes that have written their pid so far."""
        try:
            return [int(line) for line in (self.path / "pids").read_text().split()]
        except FileNotFoundError:
            return []

    async def ready(self, number):
        """Wait until so many processes are ready, and give their pids."""
        await asyncio.to_thread(wait_until, lambda: len(self.pids()) >= number)
        return self.pids()


@pytest.fixture
def folder(tmp_path):
    """A working directory; what still runs of the pids in it is killed at the end."""
    folder = Folder(tmp_path)
    yield folder
    for pid in folder.pids():
        if alive(pid):
            os.kill(pid, os_signals.SIGKILL)


pytestmark = pytest.mark.backends("asyncio", "uvloop")


async def test_the_program_has_the_environment_it_is_given_and_a_mark(monkeypatch):
    monkeypatch.setenv("OURS", "1")
    inherited = (await run_process(["env"])).stdout.decode().splitlines()
    assert "OURS=1" in inherited
    given = (await run_process(["env"], env={"PATH": os.environ["PATH"], "THEIRS": "2"})).stdout.decode().splitlines()
    assert sorted(entry.partition("=")[0] for entry in given) == ["PATH", process_group.MARK, "THEIRS"]
    assert "THEIRS=2" in given


async def test_a_tree_that_ignores_term_is_gone_after_the_grace(folder):
    controller = AbortController()
    async with running(sh(STUBBORN), signal=controller.signal, grace=0.2, cwd=folder.path) as task:
        pids = await folder.ready(3)
        [group] = {os.getpgid(pid) for pid in pids}
        assert len(process_group.members(group)) == 3
        start = time.monotonic()
        controller.abort("stop")
        error = await aborted(task)
    assert time.monotonic() - start >= 0.2
    assert process_group.members(group) == []
    assert [pid for pid in pids if alive(pid)] == []
    assert error.partial.returncode == -os_signals.SIGKILL
    assert error.partial.stdout == b"working\n"
    assert error.partial.survivors == ()
    assert error.partial.stopped


@pytest.mark.parametrize(("before", "grace"), [("", LONG), ("trap '' TERM; ", 0.05)], ids=["polite", "stubborn"])
async def test_where_the_system_shows_no_processes_an_empty_group_is_still_noticed(before, grace, folder):
    controller = AbortController()
    start = time.monotonic()
    argv = sh(before + "echo $$ >>pids; exec sleep 60")
    program = SupervisedProgram(argv, b"", folder.path, None, 1000, proc=str(folder.path / "proc"))
    async with in_task(run_program(program, controller.signal, grace)) as task:
        [pid] = await folder.ready(1)
        controller.abort("stop")
        error = await aborted(task)
    assert time.monotonic() - start < LONG / 4
    assert error.partial.returncode == (-os_signals.SIGKILL if before else -os_signals.SIGTERM)
    assert error.partial.survivors == ()
    assert not alive(pid)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_program_that_cannot_be_killed_is_reported_as_it_is(monkeypatch, folder):
    controller = AbortController()
    program = SupervisedProgram(sh("echo $$ >>pids; exec sleep 60"), b"", folder.path, None, 1000)
    async with in_task(run_program(program, controller.signal, 0, kill_seconds=0.05)) as task:
        [pid] = await folder.ready(1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", lambda group, number: None)  # as if it hung in the kernel
            controller.abort("stop")
            error = await aborted(task)
    assert error.partial.returncode is None
    assert error.partial.survivors == (pid,)
    os.kill(pid, os_signals.SIGKILL)
    await asyncio.to_thread(os.waitpid, pid, 0)
