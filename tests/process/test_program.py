"""Programs under a signal: their whole group ends with the abort, and what is left is named."""

import asyncio
import gc
import os
import random
import selectors
import signal as os_signals
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError, AbortReason, AbortSignal, AbortTimeout, use_clock
from safepoint.errors import UsageError
from safepoint.process import ProcessResult, run_process
from tests.conftest import counts
from tests.kit.clocks import TickingClock
from tests.kit.programs import alive
from tests.kit.waiting import wait_until

LONG = 60.0  # a grace that no test waits for


pytestmark = pytest.mark.backends("asyncio", "uvloop")


# Each process of these trees writes its pid, a line of the file `pids`, when it is ready.
POLITE = """
echo "working"
sh -c 'sh -c "echo \\$\\$ >>pids; exec sleep 60" & echo $$ >>pids; wait' &
echo $$ >>pids
wait
"""


STUBBORN = "trap '' TERM" + POLITE


def sh(script):
    return ["sh", "-c", script]


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


@asynccontextmanager
async def in_task(run):
    """The coroutine in a task, which has ended when the block is left."""
    task = asyncio.create_task(run)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def running(*args, **kwargs):
    """The program in a task, which has ended when the block is left."""
    return in_task(run_process(*args, **kwargs))


async def aborted(task) -> Any:
    """The abort with which the task ends."""
    with pytest.raises(AbortError) as caught:
        await task
    assert isinstance(caught.value.partial, ProcessResult)
    return caught.value


async def test_the_result_has_the_output_and_the_code():
    result = await run_process(sh("echo out; echo err >&2; exit 3"))
    assert result == ProcessResult(3, b"out\n", b"err\n")
    assert result == ProcessResult(3, b"out\n", b"err\n", dropped=0, survivors=(), stopped=False)


async def test_a_program_killed_by_a_signal_has_its_number_as_a_negative_code():
    assert (await run_process(sh("kill -KILL $$"))).returncode == -os_signals.SIGKILL


async def test_the_program_reads_what_it_is_given():
    given = bytes(range(256)) * 4_000  # more than a pipe holds
    result = await run_process(["cat"], stdin=given, max_output=len(given))
    assert result.stdout == given
    assert result.dropped == 0


async def test_a_program_that_is_given_nothing_reads_an_end_at_once():
    assert await run_process(["cat"]) == ProcessResult(0, b"", b"")


async def test_a_program_that_does_not_read_what_it_is_given_ends_all_the_same():
    result = await run_process(sh("exec <&-; echo done"), stdin=b"x" * 1_000_000)
    assert result == ProcessResult(0, b"done\n", b"")


async def test_a_program_that_stops_reading_what_it_is_given_can_be_stopped(folder):
    controller = AbortController()
    script = "dd bs=20000 count=1 of=/dev/null 2>/dev/null; echo $$ >>pids; exec sleep 60"
    async with running(
        sh(script), signal=controller.signal, grace=LONG, cwd=folder.path, stdin=b"x" * 1_000_000
    ) as task:
        [pid] = await folder.ready(1)
        controller.abort("stop")
        error = await aborted(task)
    assert error.partial.returncode == -os_signals.SIGTERM
    assert not alive(pid)


async def test_the_program_runs_where_it_is_told(tmp_path):
    assert (await run_process(["pwd", "-P"], cwd=tmp_path)).stdout.decode().strip() == str(tmp_path.resolve())


async def test_the_program_may_be_a_path(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho $1\n")
    script.chmod(0o755)
    assert (await run_process([script, "given"])).stdout == b"given\n"


async def test_of_too_much_output_the_end_is_kept_and_the_rest_counted():
    script = f"{sys.executable} -c \"import sys; sys.stdout.write('a' * 200_000 + 'end'); sys.stderr.write('b' * 15)\""
    result = await run_process(sh(script), max_output=10)
    assert result.stdout == b"aaaaaaaend"
    assert result.stderr == b"b" * 10
    assert result.dropped == 200_003 - 10 + 5


@pytest.mark.parametrize(("said", "dropped"), [("12345", 0), ("012345", 1), ("", 0)])
async def test_what_fits_exactly_is_kept(said, dropped):
    result = await run_process(["printf", said], max_output=5)
    assert result == ProcessResult(0, said[-5:].encode(), b"", dropped=dropped)


async def test_a_program_that_never_stops_talking_is_stopped_and_its_output_bounded(folder):
    controller = AbortController()
    script = "yes | head -c 200000; echo $$ >>pids; exec yes"  # ready when more was read than a pipe holds
    async with running(sh(script), signal=controller.signal, grace=LONG, max_output=1_000, cwd=folder.path) as task:
        await folder.ready(1)
        controller.abort()
        error = await aborted(task)
    assert len(error.partial.stdout) == 1_000
    assert error.partial.dropped > 100_000
    assert error.partial.survivors == ()


async def test_a_polite_tree_ends_on_term_long_before_the_grace(folder):
    controller = AbortController()
    async with running(sh(POLITE), signal=controller.signal, grace=LONG, cwd=folder.path) as task:
        pids = await folder.ready(3)
        start = time.monotonic()
        controller.abort("stop")
        error = await aborted(task)
    assert time.monotonic() - start < LONG / 4
    assert [pid for pid in pids if alive(pid)] == []
    assert error.reason is controller.signal.reason
    assert error.partial == ProcessResult(
        -os_signals.SIGTERM, b"working\n", error.partial.stderr, dropped=0, survivors=(), stopped=True
    )


async def test_a_tree_is_only_killed_when_the_grace_is_over(folder):
    tidy = "echo asked; sleep 0.1; head -c 300000 /dev/zero; exit 7"  # and says more than a pipe holds
    script = f"trap '{tidy}' TERM; echo $$ >>pids; while :; do sleep 0.01; done"
    controller = AbortController()
    async with running(sh(script), signal=controller.signal, grace=LONG, cwd=folder.path) as task:
        await folder.ready(1)
        controller.abort("stop")
        error = await aborted(task)
    assert error.partial.stdout == b"asked\n" + bytes(300_000)
    assert error.partial.returncode == 7


async def test_the_children_of_a_shell_that_is_gone_are_waited_for(folder):
    script = "sh -c \"trap '' TERM; echo \\$\\$ >>pids; while :; do sleep 0.01; done\" & echo $$ >>pids; wait"
    controller = AbortController()
    async with running(sh(script), signal=controller.signal, grace=0.1, cwd=folder.path) as task:
        pids = await folder.ready(2)
        controller.abort("stop")
        error = await aborted(task)
    assert error.partial.returncode == -os_signals.SIGTERM  # the shell
    assert [pid for pid in pids if alive(pid)] == []


async def test_a_process_that_left_the_group_is_named_and_left_alone(folder):
    script = "setsid sh -c 'echo $$ >>pids; exec sleep 60' & echo $$ >>pids; wait"
    controller = AbortController()
    async with running(sh(script), signal=controller.signal, cwd=folder.path) as task:
        pids = await folder.ready(2)
        controller.abort("stop")
        error = await aborted(task)
    [survivor] = error.partial.survivors
    assert survivor in pids
    assert alive(survivor)
    assert os.getpgid(survivor) == survivor
    os.kill(survivor, os_signals.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: not alive(survivor))


async def test_what_a_program_inside_the_program_left_behind_is_named_too(folder):
    inner = """
        import asyncio
        from safepoint.abort import run_process
        asyncio.run(run_process(["sh", "-c", "echo $$ >>pids; exec sleep 60"]))
    """
    source = "\n".join(line.strip() for line in inner.splitlines())
    controller = AbortController()
    async with running([sys.executable, "-c", source], signal=controller.signal, cwd=folder.path, grace=LONG) as task:
        [pid] = await folder.ready(1)
        controller.abort("stop")
        error = await aborted(task)
    assert error.partial.survivors == (pid,)


async def test_a_child_that_holds_the_pipe_does_not_hold_up_a_normal_end(folder):
    result = await run_process(sh("sleep 60 & echo $! >>pids; echo done"), cwd=folder.path)
    assert result.stdout == b"done\n"
    assert result.returncode == 0
    assert result.survivors == tuple(folder.pids())
    await run_process(["true"])  # and for as long as this takes at least, it is left alone
    assert alive(result.survivors[0])


async def test_a_child_that_holds_the_pipe_does_not_hold_up_an_abort(folder):
    script = "setsid sh -c 'echo $$ >>pids; exec sleep 60' & echo said; echo $$ >>pids; wait"
    controller = AbortController()
    async with running(sh(script), signal=controller.signal, grace=LONG, cwd=folder.path) as task:
        pids = await folder.ready(2)
        controller.abort("stop")
        async with asyncio.timeout(LONG / 4):
            error = await aborted(task)
    assert error.partial.stdout == b"said\n"
    assert [pid for pid in pids if alive(pid)] == list(error.partial.survivors)


@pytest.fixture
def looks(monkeypatch):
    """How often a supervisor looked whether there is something to do."""

    class Selector(selectors.DefaultSelector):
        def select(self, timeout=None):
            timeouts.append(timeout)
            return super().select(timeout)

    timeouts: list[float | None] = []
    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    return timeouts


async def test_waiting_for_a_program_that_has_closed_its_pipes_is_not_spinning(looks):
    assert await run_process(sh("echo said; exec >&- 2>&-; sleep 0.05")) == ProcessResult(0, b"said\n", b"")
    assert 0 < len(looks) < 20


async def test_waiting_for_a_program_that_has_closed_its_input_is_not_spinning(looks):
    script = "exec <&-; sleep 0.05; echo done"
    assert await run_process(sh(script), stdin=b"x" * 1_000_000) == ProcessResult(0, b"done\n", b"")
    assert 0 < len(looks) < 30


async def test_waiting_for_a_pipe_that_is_held_open_is_not_spinning(folder, looks):
    script = "setsid sh -c 'echo $$ >>pids; exec sleep 60' & echo $$ >>pids; wait"
    controller = AbortController()
    async with running(sh(script), signal=controller.signal, grace=LONG, cwd=folder.path) as task:
        await folder.ready(2)
        controller.abort("stop")
        await aborted(task)
    assert 0 < len(looks) < 200


async def test_an_outer_cancellation_ends_the_program_first_and_then_comes_out(folder):
    async with running(sh(STUBBORN), signal=AbortSignal.never(), grace=0.1, cwd=folder.path) as task:
        pids = await folder.ready(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    assert [pid for pid in pids if alive(pid)] == []


async def test_a_second_cancellation_does_not_wait_and_the_program_ends_all_the_same(folder):
    async with running(sh(STUBBORN), grace=0.3, cwd=folder.path) as task:
        pids = await folder.ready(3)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert any(alive(pid) for pid in pids)
    await asyncio.to_thread(wait_until, lambda: not any(alive(pid) for pid in pids))


async def test_a_program_under_an_outer_guard_ends_with_it(folder):
    controller = AbortController()
    with pytest.raises(AbortError) as caught:
        with controller.signal.guard():
            async with asyncio.TaskGroup() as group:
                group.create_task(run_process(sh(POLITE), signal=AbortSignal.never(), cwd=folder.path))
                await folder.ready(3)
                controller.abort("stop")
                await asyncio.Event().wait()
    assert caught.value.reason is controller.signal.reason
    assert not any(alive(pid) for pid in folder.pids())


async def test_without_a_signal_the_ambient_one_counts(folder):
    controller = AbortController()

    def abort_when_ready():
        wait_until(lambda: len(folder.pids()) == 3)
        controller.abort()

    with pytest.raises(AbortError) as caught:
        with controller.signal.guard():
            threading.Thread(target=abort_when_ready).start()
            await run_process(sh(POLITE), cwd=folder.path, grace=LONG)
    assert isinstance(caught.value.partial, ProcessResult)
    assert caught.value.partial.stdout == b"working\n"
    assert not any(alive(pid) for pid in folder.pids())


async def test_an_abort_while_the_loop_is_blocked_still_ends_the_program(folder):
    controller = AbortController()
    async with running(sh(STUBBORN), signal=controller.signal, grace=0.1, cwd=folder.path) as task:
        pids = await folder.ready(3)
        thread = threading.Thread(target=controller.abort, args=("stop",))
        thread.start()
        wait_until(lambda: not any(alive(pid) for pid in pids))  # nothing runs in the loop meanwhile
        thread.join(10)
        await aborted(task)


async def test_a_deadline_gives_a_timeout_with_what_there_was(folder, clock):
    async with running(sh(POLITE), signal=AbortSignal.timeout(5), grace=LONG, cwd=folder.path) as task:
        pids = await folder.ready(3)
        clock.advance(5)
        error = await aborted(task)
    assert error.partial.stdout == b"working\n"
    assert type(error) is AbortTimeout
    assert error.reason == AbortReason("timeout", "5 s passed")
    assert not any(alive(pid) for pid in pids)
    assert clock.pending == 0


@pytest.mark.parametrize("signal", [AbortSignal.already("before"), AbortSignal.timeout(0)], ids=["abort", "timeout"])
async def test_under_an_aborted_signal_nothing_is_started(signal, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    with pytest.raises(AbortError) as caught:
        await run_process(["true"], signal=signal)
    assert caught.value.reason is signal.reason


async def test_an_abort_before_the_supervisor_begins_starts_nothing(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    with use_clock(TickingClock()):
        signal = AbortSignal.timeout(1.1)  # passes between the second look at it, the caller's, and the third
        with pytest.raises(AbortTimeout) as caught:
            await run_process(["true"], signal=signal)
    assert caught.value.reason is signal.reason


async def test_a_program_that_is_not_there_is_an_os_error():
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        await run_process(["no-such-program"])


async def test_a_folder_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        await run_process(["true"], cwd=tmp_path / "missing")


async def test_a_failed_start_is_not_complained_of_when_a_cancellation_comes_out():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    for _ in range(5):
        task = asyncio.create_task(run_process(["no-such-program"]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, FileNotFoundError)):
            await task
        del task
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


@pytest.mark.parametrize("argv", ["ls -l", b"ls", [], None, [1], ["ls", None], [b"ls"]], ids=repr)
async def test_the_words_of_a_command_are_strings(argv):
    with pytest.raises(TypeError, match=r"^argv must be a non-empty sequence of strings"):
        await run_process(argv)


async def test_the_grace_is_a_duration():
    with pytest.raises(UsageError, match=r"^grace must be"):
        await run_process(["true"], grace=-1)
    with pytest.raises(TypeError, match=r"^grace must be"):
        await run_process(["true"], grace="2")  # type: ignore[arg-type]  # the mistake under test


async def test_a_program_that_ends_in_the_moment_of_the_abort_has_a_result_or_is_aborted():
    chance, aborts = random.Random(5), []
    loop = asyncio.get_running_loop()
    start = loop.time()
    results = [await run_process(["echo", "said"]) for _ in range(5)]
    usual = (loop.time() - start) / 5
    for _ in range(counts(100, 5_000)):
        controller = AbortController()
        loop.call_later(chance.random() * 2 * usual, controller.abort)
        try:
            results.append(await run_process(["echo", "said"], signal=controller.signal, grace=LONG))
        except AbortError as error:
            aborts.append(error.partial)
    assert all(result == ProcessResult(0, b"said\n", b"") for result in results)
    assert aborts
    for partial in aborts:
        if partial is not None:  # None: it was not even started
            assert isinstance(partial, ProcessResult)
            assert partial.stopped
            assert partial.survivors == ()


async def test_nothing_is_left_open_after_many_programs():
    async def one(number):
        controller = AbortController()
        if number % 2:
            asyncio.get_running_loop().call_later(0.005, controller.abort)
        try:
            await run_process(["cat"] if number % 3 else ["sleep", "0.01"], stdin=b"given", signal=controller.signal)
        except AbortError:
            pass

    await one(0)
    await one(1)
    before = sorted(os.listdir("/proc/self/fd"))
    for number in range(50):
        await one(number)
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_programs_run_side_by_side():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_process(sh(f"echo {number}"))) for number in range(10)]
    assert [task.result().stdout for task in tasks] == [f"{number}\n".encode() for number in range(10)]


async def test_where_the_system_cannot_tell_of_an_end_one_looks_again_and_again(monkeypatch, folder):
    monkeypatch.delattr(os, "pidfd_open")
    closes_its_pipes_first = "echo said; exec >&- 2>&-; sleep 0.05"
    assert await run_process(sh(closes_its_pipes_first)) == ProcessResult(0, b"said\n", b"")
    controller = AbortController()
    async with running(sh(POLITE), signal=controller.signal, grace=LONG, cwd=folder.path) as task:
        pids = await folder.ready(3)
        controller.abort("stop")
        await aborted(task)
    assert not any(alive(pid) for pid in pids)


async def test_a_sandbox_that_forbids_to_watch_a_process_does_not_forbid_to_run_it(monkeypatch):
    def forbidden(pid, flags=0):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    assert await run_process(sh("sleep 0.02; echo said")) == ProcessResult(0, b"said\n", b"")


async def test_where_one_cannot_look_without_collecting_a_program_is_collected(monkeypatch, folder):
    monkeypatch.delattr(os, "waitid")
    assert await run_process(sh("echo said; exit 3")) == ProcessResult(3, b"said\n", b"")
    controller = AbortController()
    async with running(sh(POLITE), signal=controller.signal, grace=LONG, cwd=folder.path) as task:
        await folder.ready(3)
        controller.abort("stop")
        error = await aborted(task)
    assert error.partial.returncode == -os_signals.SIGTERM


@pytest.mark.backends("asyncio")
async def test_a_host_program_that_ignores_its_children_gets_the_output_all_the_same():
    before = os_signals.signal(os_signals.SIGCHLD, os_signals.SIG_IGN)
    try:
        for _ in range(20):
            assert (await run_process(["echo", "said"])).stdout == b"said\n"
    finally:
        os_signals.signal(os_signals.SIGCHLD, before)


async def test_a_failure_of_the_supervisor_does_not_leave_the_program_running(monkeypatch, folder):
    def fail(fd, blocking):
        wait_until(lambda: len(folder.pids()) == 3)
        raise OSError(9, "Bad file descriptor")

    with monkeypatch.context() as patch:
        patch.setattr(os, "set_blocking", fail)
        with pytest.raises(OSError, match="Bad file descriptor"):
            await run_process(sh(STUBBORN), cwd=folder.path)
    pids = folder.pids()
    assert len(pids) == 3
    await asyncio.to_thread(wait_until, lambda: not any(alive(pid) for pid in pids))


def test_the_program_ends_also_when_the_loop_ends(folder):
    async def start():
        task = asyncio.create_task(run_process(sh(STUBBORN), grace=0.1, cwd=folder.path))
        await folder.ready(3)
        return task

    with asyncio.Runner() as runner:
        task = runner.run(start())
    assert task.cancelled()
    assert not any(alive(pid) for pid in folder.pids())
