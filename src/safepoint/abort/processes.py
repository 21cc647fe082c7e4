"""Owns running a program under a signal: its whole process group ends with the abort. Knows nothing of tools.

A thread supervises the program in plain blocking code. That works the same on every event loop, and continues when the
loop is busy or closed. POSIX only.
"""

import asyncio
import os
import selectors
import signal as os_signals
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO

from . import process_group
from .ambient import current_signal, shield
from .clock import check_seconds
from .controller import AbortController
from .guard import Guard
from .process_group import POLL_SECONDS, PROC, collect, end_group, exit_watch, has_ended, members_of
from .process_tree import descendants, identify, is_alive
from .reason import AbortError, AbortReason, error_from
from .resource_account import report_survivors
from .signal import AbortSignal
from .threads import start_in_thread

__all__ = ["ProcessResult", "run_process"]

# How long to wait for the end of a group after KILL: a process in a system call may end only when the call returns.
KILL_SECONDS = 2.0
# How long to read the pipes after the program has ended: a grandchild may keep them open for much longer.
DRAIN_SECONDS = 0.2
# How long the supervisor may take to report, in addition to the time that ending the program takes.
REPORT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended.

    Attributes:
        returncode: Its exit code, as in `subprocess`; None if it did not end even after KILL.
        stdout: The last bytes of its standard output.
        stderr: The last bytes of its standard error.
        dropped: How many bytes of output were dropped because of `max_output`.
        survivors: The pids of processes that it started and that still run.
        stopped: Whether it was ended by the abort.
    """

    returncode: int | None
    stdout: bytes
    stderr: bytes
    dropped: int = 0
    survivors: tuple[int, ...] = ()
    stopped: bool = False


async def run_process(
    argv: Sequence[str],
    *,
    signal: AbortSignal | None = None,
    grace: float = 2.0,
    stdin: bytes = b"",
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    max_output: int = 1_000_000,
) -> ProcessResult:
    """Run a program in a process group of its own.

    On abort the group gets TERM, and KILL after `grace` seconds. AbortError is raised when the group is empty; its
    `partial` is the `ProcessResult` up to then.

    Args:
        argv: The program and its arguments.
        signal: The signal that ends it; by default the ambient one.
        grace: The seconds between TERM and KILL.
        stdin: What the program reads from its standard input.
        cwd: Its working directory; by default that of this process.
        env: Its environment; by default that of this process.
        max_output: How many bytes of each output stream to keep, the last ones.

    Returns:
        How the program ended.

    Raises:
        AbortError: The signal was aborted.
        OSError: The program cannot be started.
    """
    if isinstance(argv, str | bytes) or not argv or not all(isinstance(word, str | os.PathLike) for word in argv):
        raise TypeError(
            f"argv must be a non-empty sequence of strings, not {argv!r}; for a shell use ['sh', '-c', command]"
        )
    grace = check_seconds("grace", grace)
    signal = current_signal() if signal is None else signal
    signal.raise_if_aborted()
    return await run_program(SupervisedProgram(argv, stdin, cwd, env, max_output), signal, grace)


async def run_program(
    program: "SupervisedProgram", signal: AbortSignal, grace: float, *, kill_seconds: float = KILL_SECONDS
) -> ProcessResult:
    """Run the program as `run_process` does.

    Args:
        program: The program, not started yet.
        signal: The signal that ends it.
        grace: The seconds between TERM and KILL.
        kill_seconds: How long to wait for the end of the group after KILL.

    Returns:
        How the program ended.
    """
    # A cancellation of the awaiting task must end the program, too, so the supervisor gets a signal of this call.
    controller = AbortController(signal)
    ended = start_in_thread(program.supervise, controller.signal, grace, kill_seconds)
    ended.add_done_callback(lambda future: future.exception())  # mark it as retrieved even if this call is cancelled
    try:
        with Guard(signal):
            await asyncio.wait([ended])
    except AbortError:
        await _settle(ended, grace + kill_seconds)
    except asyncio.CancelledError:
        controller.abort(AbortReason("parent", "the task that awaited the program was cancelled"))
        await _settle(ended, grace + kill_seconds)
        raise
    result = ended.result()
    report_survivors(result.survivors)
    if result.stopped:
        raise error_from(signal.reason or AbortReason(), result)
    return result


async def _settle(ended: "asyncio.Future[ProcessResult]", seconds: float) -> None:
    """Wait until the supervisor reports the end of the program, which it needs at most `seconds` to bring about."""
    with shield(seconds + REPORT_SECONDS):
        await asyncio.wait([ended])


class SupervisedProgram:
    """One program from its start to the end of its group. All methods run in the supervising thread.

    Args:
        argv: The program and its arguments.
        stdin: What it reads from its standard input.
        cwd: Its working directory; None for that of this process.
        env: Its environment; None for that of this process.
        max_output: How many bytes of each output stream to keep.
        proc: Where the system shows its processes.
    """

    def __init__(
        self,
        argv: Sequence[str],
        stdin: bytes,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        max_output: int,
        proc: str = PROC,
    ) -> None:
        self._argv = list(argv)
        self._input = memoryview(stdin)
        self._cwd = cwd
        self._mark = uuid.uuid4().hex
        self._env = process_group.with_mark(os.environ if env is None else env, self._mark)
        self._max_output = max_output
        self._proc = proc
        self._output: dict[IO[bytes], bytearray] = {}
        self._dropped = 0

    def supervise(self, stop: AbortSignal, grace: float, kill_seconds: float) -> ProcessResult:
        """Run the program until it ends or the signal is aborted, and report how it ended."""
        stop.raise_if_aborted()
        reader, writer = socket.socketpair()
        with reader, writer, stop.add_listener(lambda: poke(writer)), selectors.DefaultSelector() as self._selector:
            self._selector.register(reader, selectors.EVENT_READ)
            with _started(self._argv, bool(self._input), self._cwd, self._env) as process:
                self._register(process)
                started = identify(process.pid, proc=self._proc)  # before it can have been collected
                stopped = self._run_until(process, stop)
                survivors = self._stop(process, grace, kill_seconds) if stopped else self._drain()
                returncode = collect(process)
            if not stopped:
                since = 0 if started is None else started.started
                marked = process_group.marked(self._mark, since, proc=self._proc)
                survivors = tuple(sorted({*process_group.members(process.pid, proc=self._proc), *marked}))
        out, err = (bytes(kept) for kept in self._output.values())
        return ProcessResult(returncode, out, err, self._dropped, survivors, stopped)

    def _register(self, process: "subprocess.Popen[bytes]") -> None:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._output[pipe] = bytearray()
            self._selector.register(pipe, selectors.EVENT_READ, partial(self._receive, pipe))
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE, partial(self._feed, process.stdin))

    def _run_until(self, process: "subprocess.Popen[bytes]", stop: AbortSignal) -> bool:
        """Transfer data until the program has ended (False) or must be stopped (True)."""
        with exit_watch(process.pid, self._selector) as watched:
            while not stop.aborted:
                if has_ended(process):
                    return False
                self._carry(None if watched else POLL_SECONDS)
            return not has_ended(process)

    def _stop(self, process: "subprocess.Popen[bytes]", grace: float, kill_seconds: float) -> tuple[int, ...]:
        """End the group with TERM and KILL. Processes that have left the group are not signalled.

        Returns:
            The pids of the processes that still run.
        """
        # Before the first signal: a process that has left the group and cleared its environment is found only through
        # its parent, which is about to end.
        proc = self._proc
        family = descendants([process.pid], proc=proc)
        end_group(process, grace=grace, kill=kill_seconds, wait=self._carry, proc=proc)
        self._drain()
        living = (descendant.pid for descendant in family if is_alive(descendant, proc=proc))
        return tuple(sorted({*members_of(process, proc=proc), *process_group.marked(self._mark, proc=proc), *living}))

    def _drain(self) -> tuple[int, ...]:
        """Read what is still in the pipes. Returns no survivors."""
        until = time.monotonic() + DRAIN_SECONDS
        while self._open_pipes() and (remaining := until - time.monotonic()) > 0:
            self._carry(remaining)
        return ()

    def _open_pipes(self) -> bool:
        return any(key.fileobj in self._output for key in self._selector.get_map().values())

    def _carry(self, seconds: float | None) -> None:
        """Wait at most `seconds` for a pipe that is ready, and transfer data through all that are."""
        for key, _ in self._selector.select(seconds):
            transfer: Callable[[], None] | None = key.data
            if transfer is not None:
                transfer()
            else:  # woken by the abort or by the end of the program; both happen once
                self._selector.unregister(key.fileobj)

    def _receive(self, pipe: IO[bytes]) -> None:
        chunk = pipe.read(65536)
        if not chunk:
            self._selector.unregister(pipe)
            return
        kept = self._output[pipe]
        kept += chunk
        over = len(kept) - self._max_output
        if over > 0:
            del kept[:over]
            self._dropped += over

    def _feed(self, pipe: IO[bytes]) -> None:
        try:
            self._input = self._input[os.write(pipe.fileno(), self._input[:65536]) :]
        except BrokenPipeError:
            self._input = self._input[:0]
        if not self._input:
            self._selector.unregister(pipe)
            pipe.close()


@contextmanager
def _started(
    argv: list[str], feeds: bool, cwd: str | os.PathLike[str] | None, env: Mapping[str, str]
) -> "Iterator[subprocess.Popen[bytes]]":
    """The program in a session, and therefore a group, of its own. At the end its pipes are closed."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if feeds else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=cwd,
        env=env,
        start_new_session=True,
    )
    try:
        yield process
    except BaseException:  # the supervisor failed: without it, nothing would ever stop the program
        process_group.send(process.pid, os_signals.SIGKILL)
        collect(process)
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def poke(writer: socket.socket) -> None:
    """Wake a supervisor that waits in its selector for the other end of this socket."""
    try:
        writer.send(b"!")
    except OSError:
        pass  # the program has just ended, and the socket is closed
