"""Owns running a program under a signal: its whole process group ends with the abort. Knows nothing of tools.

The program is supervised by a thread, in plain blocking code: the same on every event loop, and it goes on to its end
when the loop is busy or gone. POSIX only.
"""

import asyncio
import os
import selectors
import signal as os_signals
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from . import process_group
from .ambient import current_signal, shield
from .clock import check_seconds
from .controller import AbortController
from .guard import Guard
from .process_group import POLL_SECONDS, collect, end_group, exit_watch, has_ended, members_of
from .process_tree import descendants, identify, is_alive
from .reason import AbortError, AbortReason, error_from
from .resource_account import report_survivors
from .signal import AbortSignal
from .threads import start_in_thread

__all__ = ["ProcessResult", "run_process"]

# After TERM and its grace: how long a killed group may take to be gone (a process in the kernel cannot be hurried).
KILL_SECONDS = 2.0
# A grandchild may hold the pipe open long after the program has ended: that is not output of ours to wait for.
DRAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended. `survivors`: pids that came from it and still run. `dropped`: bytes beyond the bound."""

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
    """Run a program in a process group of its own. Without `signal` the ambient one counts.

    On abort the group gets TERM, and KILL after `grace` seconds; AbortError comes out when the group is empty, with
    the `ProcessResult` so far as its `.partial`. Of each stream the last `max_output` bytes are kept.
    Raises: AbortError; OSError if the program cannot be started.
    """
    if isinstance(argv, str | bytes) or not argv or not all(isinstance(word, str | os.PathLike) for word in argv):
        raise TypeError(f"argv must be a non-empty sequence of strings, not {argv!r}; a shell: ['sh', '-c', command]")
    grace = check_seconds("grace", grace)
    signal = current_signal() if signal is None else signal
    signal.raise_if_aborted()
    # Also a cancellation of the awaiting task must end the program, so the supervisor hears a signal of this call.
    controller = AbortController(signal)
    program = _Program(argv, stdin, cwd, env, max_output)
    ended = start_in_thread(program.supervise, controller.signal, grace)
    ended.add_done_callback(lambda future: future.exception())  # seen, also where a cancellation is what comes out
    try:
        with Guard(signal):
            await asyncio.wait([ended])
    except AbortError:
        await _settle(ended, grace)
    except asyncio.CancelledError:
        controller.abort(AbortReason("parent", "the task that awaited the program was cancelled"))
        await _settle(ended, grace)
        raise
    result = ended.result()
    report_survivors(result.survivors)
    if result.stopped:
        raise error_from(signal.reason or AbortReason(), result)
    return result


async def _settle(ended: "asyncio.Future[ProcessResult]", grace: float) -> None:
    """Wait until the supervisor has the evidence; it needs no longer than this."""
    with shield(grace + KILL_SECONDS + 10):
        await asyncio.wait([ended])


class _Program:
    """One program, from its start to the end of its group. All of it runs in one thread."""

    def __init__(
        self,
        argv: Sequence[str],
        stdin: bytes,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        max_output: int,
    ) -> None:
        self._argv = list(argv)
        self._input = memoryview(stdin)
        self._cwd = cwd
        self._mark = uuid.uuid4().hex
        self._env = process_group.with_mark(os.environ if env is None else env, self._mark)
        self._max_output = max_output
        self._output: dict[IO[bytes], bytearray] = {}
        self._dropped = 0

    def supervise(self, stop: AbortSignal, grace: float) -> ProcessResult:
        """Run it to its end, or to the end that the signal makes."""
        stop.raise_if_aborted()
        heard, tell = socket.socketpair()
        with heard, tell, stop.add_listener(lambda: poke(tell)), selectors.DefaultSelector() as self._selector:
            self._selector.register(heard, selectors.EVENT_READ)
            with _started(self._argv, bool(self._input), self._cwd, self._env) as process:
                self._register(process)
                started = identify(process.pid)  # now: later it may have ended
                stopped = self._run_until(process, stop)
                survivors = self._stop(process, grace) if stopped else self._drain()
                returncode = collect(process)
            if not stopped:
                since = 0 if started is None else started.started
                marked = process_group.marked(self._mark, since)
                survivors = tuple(sorted({*process_group.members(process.pid), *marked}))
        out, err = (bytes(kept) for kept in self._output.values())
        return ProcessResult(returncode, out, err, self._dropped, survivors, stopped)

    def _register(self, process: "subprocess.Popen[bytes]") -> None:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._output[pipe] = bytearray()
            self._selector.register(pipe, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE)

    def _run_until(self, process: "subprocess.Popen[bytes]", stop: AbortSignal) -> bool:
        """Carry data until the program has ended (False) or must be stopped (True)."""
        with exit_watch(process.pid, self._selector) as watched:
            while not stop.aborted:
                if has_ended(process):
                    return False
                self._carry(None if watched else POLL_SECONDS)
            return not has_ended(process)

    def _stop(self, process: "subprocess.Popen[bytes]", grace: float) -> tuple[int, ...]:
        """TERM, grace, KILL; ends when the group is empty. What left the group is not touched, but named."""
        # Before the first signal: what has left the group and cleared its environment is known only by its parent.
        family = descendants([process.pid])
        end_group(process, grace=grace, kill=KILL_SECONDS, wait=self._carry)
        self._drain()
        living = (descendant.pid for descendant in family if is_alive(descendant))
        return tuple(sorted({*members_of(process), *process_group.marked(self._mark), *living}))

    def _drain(self) -> tuple[int, ...]:
        """Take what is still in the pipes."""
        until = time.monotonic() + DRAIN_SECONDS
        while self._open_pipes() and (left := until - time.monotonic()) > 0:
            self._carry(left)
        return ()

    def _open_pipes(self) -> bool:
        return any(key.fileobj in self._output for key in self._selector.get_map().values())

    def _carry(self, seconds: float | None) -> None:
        """Move what can be moved now, or wait for it at most this long."""
        for key, _ in self._selector.select(seconds):
            pipe: Any = key.fileobj
            if pipe in self._output:
                self._receive(pipe)
            elif key.events & selectors.EVENT_WRITE:
                self._feed(pipe)  # the only writable one is the program's stdin
            else:  # woken: by the abort or by the program's end; once is enough
                self._selector.unregister(pipe)

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
    """The program in a session, and so a group, of its own. Its pipes are closed at the end, and nobody waits."""
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
    except BaseException:  # a failure of the supervisor: nobody would be left to stop the program
        process_group.send(process.pid, os_signals.SIGKILL)
        collect(process)
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def poke(tell: socket.socket) -> None:
    """Wake a supervisor that waits in its selector."""
    try:
        tell.send(b"!")
    except OSError:
        pass  # the program has ended in this very moment
