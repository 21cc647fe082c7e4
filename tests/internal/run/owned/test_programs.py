"""Owns the tests that look inside, beside those of `tests/run/owned/test_programs.py`.

Programs that a tool starts: which process is which, and that a stop ends them with all that descends from them.
"""

import os
import signal
import subprocess
import threading
from multiprocessing.util import spawnv_passfds

import pytest

from safepoint.process.tree import identify
from safepoint.run import Context, leaf
from safepoint.run.owned.programs import FORKS, Program, program_from_pid

pytestmark = [
    pytest.mark.usefixtures("programs_of_closed_loops"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning", "ignore:subprocess:ResourceWarning"),
]


def test_a_program_that_has_not_started_or_has_been_collected_has_no_process():
    popen = subprocess.Popen(["true"])
    program = Program("true", popen=popen)
    popen.wait()
    assert program.living_process() is None
    assert program.collected
    assert program_from_pid(popen.pid) is None


def test_a_pid_that_is_no_child_of_ours_is_not_the_program():
    popen = subprocess.Popen(["true"])
    popen.wait()
    popen.returncode = None  # collected behind its back; the pid has passed to a process of somebody else
    popen.pid = 1
    assert Program("true", popen=popen).living_process() is None
    popen.returncode = 0


def test_a_known_process_is_told_from_a_later_one_with_its_pid():
    popen = subprocess.Popen(["sleep", "60"])
    process = identify(popen.pid)
    assert process is not None
    program = Program("sleep", process=process)
    assert program.living_process() == process
    popen.send_signal(signal.SIGKILL)
    popen.wait()
    assert program.living_process() is None


class Book:
    """An account that only lists."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def add_program(self, program: Program) -> None:
        self.programs.append(program)


def test_a_fork_that_has_not_happened_yet_is_looked_for_again():
    book = Book()
    FORKS.begin(book, "")
    FORKS.find_for(book)
    assert book.programs == []
    assert FORKS.has(book)
    # Started so that the hook does not hear of it, which would take the fork for over.
    pid = spawnv_passfds(b"/bin/sleep", [b"sleep", b"60"], ())
    FORKS.find_here()
    assert [program.process.pid for program in book.programs if program.process] == [pid]
    assert not FORKS.has(book)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_what_a_thread_starts_after_a_fork_is_somebody_elses():
    book = Book()
    FORKS.begin(book, "")
    os.system("true")
    FORKS.find_here()  # as the hook does before the next start in this thread
    later = subprocess.Popen(["sleep", "60"])
    FORKS.find_for(book)
    FORKS.find_here()
    assert book.programs == []
    later.kill()
    later.wait()


def test_one_fork_has_made_one_child_which_is_the_first_born():
    book = Book()
    FORKS.begin(book, "")
    born = [spawnv_passfds(b"/bin/sleep", [b"sleep", b"60"], ()) for _ in range(2)]
    FORKS.find_for(book)
    assert [program.process.pid for program in book.programs if program.process] == born[:1]
    assert not FORKS.has(book)
    for pid in born:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def test_a_fork_is_over_when_the_function_in_the_thread_has_returned():
    def tool(ctx: Context, value: object) -> int:
        os.system("true")
        return threading.get_native_id()

    native = await leaf(Context(), tool)
    assert native not in FORKS._begun
