"""Owns one child process, from its start until nothing of it is left. POSIX only.

Programs, functions that run isolated and the work of workers are such children. What they exchange with this process
is not known here.

A child is supervised in plain blocking code, in a thread (`supervised`). That works the same on every event loop, and
continues when the loop is busy or closed. Workers supervise their children in an event loop of their own instead.
"""

import asyncio
import os
import selectors
import signal as os_signals
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import IO, Literal, TypeVar

from ..abort.ambient import shield
from ..abort.controller import AbortController
from ..abort.guard import Guard
from ..abort.reason import AbortError, AbortReason
from ..abort.signal import AbortSignal
from ..abort.threads import start_in_thread
from .group import PROC, has_procfs, marked, members, send, with_mark
from .tree import POLL_SECONDS, ProcessId, descendants, identify, is_alive

__all__ = ["KILL_SECONDS", "ChildProcess", "Wakeups", "start_python", "supervised"]

T = TypeVar("T")

# How long to wait for the end of a group after KILL: a process in a system call may end only when the call returns.
KILL_SECONDS = 2.0
# How long the supervisor may take to report, in addition to the time that ending the child takes.
REPORT_SECONDS = 10


class Wakeups:
    """What a supervising thread waits for, all in one place: data, the end of its child, and calls of `wake`."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()
        self.watch(self._reader, selectors.EVENT_READ, lambda: self._reader.recv(64))

    def __enter__(self) -> "Wakeups":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.selector.close()
        self._reader.close()
        self._writer.close()

    def watch(self, file: "socket.socket | IO[bytes] | int", events: int, callback: Callable[[], object]) -> None:
        """Call back whenever the file is ready."""
        self.selector.register(file, events, callback)

    def wake(self) -> None:
        """End the present wait, or the next one. May be called in any thread, and from a listener."""
        with suppress(OSError):  # the child has just ended, and the sockets are closed
            self._writer.send(b"!")

    def wait(self, seconds: float | None) -> None:
        """Wait at most this long until something is ready, and make the callbacks of all that is."""
        for key, _ in self.selector.select(seconds):
            key.data()


class ChildProcess:
    """A process in a session, and therefore a group, of its own, with a mark in its environment.

    As a context manager it kills what is left if the block fails: without its supervisor, nothing would ever stop it.

    Args:
        argv: The program and its arguments.
        pipes: Which of its standard streams are pipes. Without one, it has no input, and shares our output.
        cwd: Its working directory; None for that of this process.
        env: Its environment; None for that of this process.
        descriptors: The file descriptors that it inherits.
        proc: Where the system shows its processes.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        pipes: Container[Literal["stdin", "stdout", "stderr"]] = (),
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        proc: str = PROC,
    ) -> None:
        self._proc = proc
        self._mark = uuid.uuid4().hex
        self._family: list[ProcessId] = []
        self.popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if "stdin" in pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if "stdout" in pipes else None,
            stderr=subprocess.PIPE if "stderr" in pipes else None,
            bufsize=0,
            cwd=cwd,
            env=with_mark(os.environ if env is None else env, self._mark),
            pass_fds=descriptors,
            start_new_session=True,
        )
        self.pid = self.popen.pid
        identity = identify(self.pid, proc=proc)  # now, before it can have been collected
        self._started = 0 if identity is None else identity.started

    def __enter__(self) -> "ChildProcess":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            self.kill_group()
            self.collect()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()

    def has_ended(self) -> bool:
        """Whether it has ended. Where possible it is not collected, so that its pid and group stay reserved."""
        if not hasattr(os, "waitid"):
            return self.popen.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # collected already, by us or because the application ignores SIGCHLD
            return True

    def members(self) -> list[int]:
        """The pids of the processes left in its group.

        Without /proc, zombies cannot be told from living processes, so there it is collected first if it has ended.
        """
        if not has_procfs(self._proc):
            self.popen.poll()
        return members(self.pid, proc=self._proc)

    @contextmanager
    def end_watched(self, wakeups: Wakeups) -> Iterator[float | None]:
        """Let its end wake the supervisor.

        Yields:
            How long the supervisor may wait at most: None, or a short time if the system cannot tell of the end.
        """
        try:
            fd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not on this system, forbidden in this sandbox, or it has ended
            yield POLL_SECONDS
            return
        wakeups.watch(fd, selectors.EVENT_READ, partial(wakeups.selector.unregister, fd))  # one wake-up is enough
        try:
            yield None
        finally:
            if fd in wakeups.selector.get_map():
                wakeups.selector.unregister(fd)
            os.close(fd)

    def end_group(self, grace: float, kill_seconds: float, wait: Callable[[float], object]) -> None:
        """End its group: TERM, and KILL after `grace` seconds. Returns when the group is empty.

        Processes that have left the group are not signalled. `survivors` finds them.

        Args:
            grace: The seconds between TERM and KILL.
            kill_seconds: How long to wait after KILL.
            wait: Called with a number of seconds to pass the time between two looks.
        """
        # Before the first signal: a process that has left the group and cleared its environment is found only through
        # its parent, which is about to end.
        self._family = descendants([self.pid], proc=self._proc)
        for number, seconds in ((os_signals.SIGTERM, grace), (os_signals.SIGKILL, kill_seconds)):
            if not self.members():  # then its number may soon be that of another group
                return
            send(self.pid, number)
            until = time.monotonic() + seconds
            while self.members() and time.monotonic() < until:
                wait(POLL_SECONDS)

    def survivors(self) -> tuple[int, ...]:
        """The pids of the processes that it has started and that still run, in its group or not."""
        living = (process.pid for process in self._family if is_alive(process, proc=self._proc))
        return tuple(sorted({*self.members(), *self._marked(), *living}))

    def kill_group(self) -> None:
        """Send KILL to its group."""
        send(self.pid, os_signals.SIGKILL)

    def kill_all(self) -> None:
        """Send KILL to its group, and to what has left the group with its mark."""
        self.kill_group()
        for pid in self._marked():
            with suppress(ProcessLookupError):
                os.kill(pid, os_signals.SIGKILL)

    def collect(self) -> int | None:
        """Collect it and return its exit code, or None if it has not ended."""
        try:
            return self.popen.wait(0.1)
        except subprocess.TimeoutExpired:  # killed, but still in a system call: it is listed as a survivor
            return None

    def _marked(self) -> list[int]:
        return marked(self._mark, self._started, proc=self._proc)


def start_python(module: str, *words: str) -> tuple[ChildProcess, socket.socket]:
    """Run the `main` function of a module in a fresh interpreter, with the path and the flags of this one.

    It is not a fork, which would copy the locks of a program with threads in whatever state they are.

    Args:
        module: The module. Its `main` finds the descriptor of its socket in `sys.argv[1]`.
        words: Further arguments, for people who look at the list of processes.

    Returns:
        The process, and our end of the pair of sockets that connects us.

    Raises:
        OSError: The process cannot be started.
    """
    start = f"import sys; sys.path[:] = {[str(entry) for entry in sys.path]!r}; from {module} import main; main()"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    ours, theirs = socket.socketpair()
    with theirs:
        line = theirs.fileno()
        try:
            return ChildProcess([sys.executable, *flags, "-c", start, str(line), *words], descriptors=[line]), ours
        except BaseException:
            ours.close()
            raise


async def supervised(supervise: Callable[[AbortSignal], T], signal: AbortSignal, seconds: float) -> T:
    """Supervise a child in a thread, and wait for the report of its end, even after an abort.

    Args:
        supervise: Starts the child, and returns the report when nothing is left of it, or what is left is known.
            It gets the signal whose abort ends the child.
        signal: The signal that ends the child.
        seconds: How long ending the child may take.

    Returns:
        What `supervise` returned.
    """
    # A cancellation of the awaiting task must end the child, too, so the supervisor gets a signal of this call.
    controller = AbortController(signal)
    ended = start_in_thread(supervise, controller.signal)
    ended.add_done_callback(lambda future: future.exception())  # mark it as retrieved even if this call is cancelled
    try:
        with Guard(signal):
            await asyncio.wait([ended])
    except AbortError:
        await _evidence(ended, seconds)
    except asyncio.CancelledError:
        controller.abort(AbortReason("parent", "the task that awaited the process was cancelled"))
        await _evidence(ended, seconds)
        raise
    return ended.result()


async def _evidence(ended: "asyncio.Future[T]", seconds: float) -> None:
    """Wait for the report of the supervisor, for no longer than it needs at most."""
    with shield(seconds + REPORT_SECONDS):
        await asyncio.wait([ended])
