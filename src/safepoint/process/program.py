"""Owns running a program under a signal: its whole process group ends with the abort. Knows nothing of tools."""

import os
import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Literal

from ..abort.ambient import current_signal
from ..abort.clock import check_seconds
from ..abort.reason import AbortReason, error_from
from ..abort.resource_account import report_survivors
from ..abort.signal import AbortSignal
from .child import KILL_SECONDS, ChildProcess, Wakeups, supervised
from .group import PROC

__all__ = ["ProcessResult", "run_process"]

# How long to read the pipes after the program has ended: a grandchild may keep them open for much longer.
DRAIN_SECONDS = 0.2


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
    result = await supervised(lambda stop: program.supervise(stop, grace, kill_seconds), signal, grace + kill_seconds)
    report_survivors(result.survivors)
    if result.stopped:
        raise error_from(signal.reason or AbortReason(), result)
    return result


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
        pipes: tuple[Literal["stdin", "stdout", "stderr"], ...] = ("stdout", "stderr")
        self._start = partial(
            ChildProcess, list(argv), pipes=("stdin", *pipes) if stdin else pipes, cwd=cwd, env=env, proc=proc
        )
        self._input = memoryview(stdin)
        self._max_output = max_output
        self._output: dict[IO[bytes], bytearray] = {}
        self._dropped = 0

    def supervise(self, stop: AbortSignal, grace: float, kill_seconds: float) -> ProcessResult:
        """Run the program until it ends or the signal is aborted, and report how it ended."""
        stop.raise_if_aborted()
        with Wakeups() as self._wakeups, stop.add_listener(self._wakeups.wake):
            with self._start() as child:
                self._watch_pipes(child)
                stopped = self._run_until(child, stop)
                if stopped:
                    child.end_group(grace, kill_seconds, self._wakeups.wait)
                self._drain()
                survivors = child.survivors() if stopped else ()
                returncode = child.collect()
            if not stopped:
                survivors = child.survivors()
        out, err = (bytes(kept) for kept in self._output.values())
        return ProcessResult(returncode, out, err, self._dropped, survivors, stopped)

    def _watch_pipes(self, child: ChildProcess) -> None:
        for pipe in (child.popen.stdout, child.popen.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._output[pipe] = bytearray()
            self._wakeups.watch(pipe, selectors.EVENT_READ, partial(self._receive, pipe))
        stdin = child.popen.stdin
        if stdin is not None:
            os.set_blocking(stdin.fileno(), False)
            self._wakeups.watch(stdin, selectors.EVENT_WRITE, partial(self._feed, stdin))

    def _run_until(self, child: ChildProcess, stop: AbortSignal) -> bool:
        """Transfer data until the program has ended (False) or must be stopped (True)."""
        with child.end_watched(self._wakeups) as seconds:
            while not stop.aborted:
                if child.has_ended():
                    return False
                self._wakeups.wait(seconds)
            return not child.has_ended()

    def _drain(self) -> None:
        """Read what is still in the pipes."""
        until = time.monotonic() + DRAIN_SECONDS
        while self._open_pipes() and (remaining := until - time.monotonic()) > 0:
            self._wakeups.wait(remaining)

    def _open_pipes(self) -> bool:
        return any(key.fileobj in self._output for key in self._wakeups.selector.get_map().values())

    def _receive(self, pipe: IO[bytes]) -> None:
        chunk = pipe.read(65536)
        if not chunk:
            self._wakeups.selector.unregister(pipe)
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
            self._wakeups.selector.unregister(pipe)
            pipe.close()
