"""Owns the decision whether fake time may jump: whether anything outside the event loop may still wake it.

Outside of a loop are the threads of the run, its child processes, and the other ends of its sockets and pipes. Fake
time may jump only if none of them will act by itself; otherwise a timeout would fire that never fires in real time.
The rules, which docs/testing.md explains to users:

- Something that waits for fake time does not hold it up: a thread inside `FakeClock.acquire` (`signal.wait()`), or an
  idle thread of a pool.
- A listening socket does not hold it up, nor does a connection whose two ends are both on this loop, once all bytes
  that were sent have arrived: only a task of this loop could write to it.
- Everything else holds it up as long as it moves, and `still` seconds longer. A thread or process moves if its count
  of context switches changes. A connection to another process moves whenever the loop has done anything, because that
  may have been a request.

If the system does not show whether a thread moves (no /proc), the thread counts as moving: fake time is then held up,
and the error at the time limit names the thread.
"""

import contextlib
import fcntl
import os
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType

from ...abort.threads import idle_threads, run_jobs
from ..clock import FakeClock, ThreadWait
from .left import PROC, Leftover, children, command, describe_thread

__all__ = ["STILL_SECONDS", "DescriptorEnd", "OutsideActivity"]

# After this much real time without a move, by default, something counts as waiting for fake time or for this loop.
STILL_SECONDS = 1.0
QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
WORKER = "safepoint-worker"
POOLS = ("safepoint-", "asyncio_")
# The states of a process or thread that does nothing until something wakes it: sleeping, stopped, ended.
RESTING = {b"S", b"T", b"t", b"Z", b"X", b"I"}


@dataclass(slots=True)
class WakeCandidate:
    """Something outside the loop that may wake it.

    Attributes:
        key: Its identity, the same at each look.
        state: Equal at two looks if it has not moved in between; None if it moves or that is unknown.
        describe: Gives its description.
    """

    key: object
    state: object
    describe: Callable[[], str]


class OutsideActivity:
    """Everything outside the loop of one run.

    Args:
        ignored: Whether a thread shall not hold up fake time.
        still: After how many seconds without a move something counts as waiting for fake time or for this loop.
        proc: Where the system shows its processes.
    """

    def __init__(
        self,
        ignored: Callable[[Leftover], bool] = lambda thing: False,
        *,
        still: float = STILL_SECONDS,
        proc: str = PROC,
    ) -> None:
        self.running: dict[object, int | None] = {}  # calls in executors: the thread, or None while they are queued
        self.activity = 0  # incremented by the loop whenever it does something
        self.moving: list[WakeCandidate] = []  # what held up fake time at the last look
        self.resting: list[WakeCandidate] = []  # what did not hold it up only because it has not moved for some time
        self._ignored = ignored
        self._still = still
        self._proc = proc
        self._threads_before = frozenset(threading.enumerate())
        self._children_before = children(proc)
        self._since: dict[object, tuple[object, float]] = {}

    def pending(self, descriptors: Iterable[int], of_loop: Iterable[int] = ()) -> bool:
        """Whether fake time must not jump yet.

        Args:
            descriptors: The descriptors that the loop waits for, without its own wake-up pipe.
            of_loop: All sockets of this loop, including those for which it does not wait at the moment.
        """
        # There are two looks at everything. If all states are equal in both, nothing has moved in between, so at the
        # end of the first look everything rested at once, and nothing is left that could wake anything. One look is
        # not enough: a thread that was seen resting may be woken by a process that is looked at later in the same
        # round, and that process may be gone when its turn comes.
        waits = FakeClock.waiting_threads()
        found = self._look(waits, descriptors, of_loop)
        now = time.monotonic()
        self._since = {key: self._rests_since(each, now) for key, each in found.items()}
        self.moving = [each for key, each in found.items() if now - self._since[key][1] < self._still]
        self.resting = [each for key, each in found.items() if now - self._since[key][1] >= self._still]
        if self.moving or FakeClock.waiting_threads() != waits:
            return True
        again = self._look(waits, descriptors, of_loop)
        self.moving = [each for key, each in again.items() if key not in found or found[key].state != each.state]
        return bool(self.moving) or again.keys() != found.keys() or FakeClock.waiting_threads() != waits

    def _look(
        self, waits: frozenset[ThreadWait], descriptors: Iterable[int], of_loop: Iterable[int]
    ) -> dict[object, WakeCandidate]:
        """Everything that may wake the loop, with its current state."""
        found = {each.key: each for each in self._candidates({wait.thread for wait in waits}, descriptors, of_loop)}
        if found:
            found |= {each.key: each for each in self._processes()}
        return found

    def waiting(self) -> list[str]:
        """Descriptions of the threads that wait for fake time."""
        by_ident = {thread.ident: thread for thread in threading.enumerate()}
        threads = [by_ident[wait.thread] for wait in FakeClock.waiting_threads() if wait.thread in by_ident]
        return [f"thread {describe_thread(thread)}" for thread in threads]

    def _rests_since(self, candidate: WakeCandidate, now: float) -> tuple[object, float]:
        state, since = self._since.get(candidate.key, (None, now))
        return (state, since) if candidate.state is not None and candidate.state == state else (candidate.state, now)

    def _candidates(
        self, waiting: set[int], descriptors: Iterable[int], of_loop: Iterable[int]
    ) -> Iterator[WakeCandidate]:
        by_ident = {thread.ident: thread for thread in threading.enumerate()}
        for call, ident in list(self.running.items()):
            if ident is None:
                yield WakeCandidate(call, "queued", lambda: "a call in an executor that has not begun")
            elif ident not in waiting and ident in by_ident:
                yield from self._thread(by_ident[ident])
        workers = []
        for thread in by_ident.values():
            if thread.ident in waiting:
                continue
            if thread.name == WORKER:
                workers.append(thread)
            elif not (thread in self._threads_before or thread.name.startswith(POOLS)):
                yield from self._thread(thread)
        yield from self._workers(workers)
        yield from self._connections(descriptors, of_loop)

    def _workers(self, workers: list[threading.Thread]) -> Iterator[WakeCandidate]:
        """The threads of Safepoint's pool that have a call to run.

        Args:
            workers: The threads of the pool, without those that wait for fake time.
        """
        busy = len(workers) - idle_threads()
        if busy <= 0:
            return
        frames = sys._current_frames()
        inside = [thread for thread in workers if _runs_a_call(frames.get(thread.ident or -1))]
        for thread in inside:
            yield from self._thread(thread)
        if len(inside) < busy:
            yield WakeCandidate(WORKER, None, lambda: "a call in a thread that is about to begin or to end")

    def _thread(self, thread: threading.Thread) -> Iterator[WakeCandidate]:
        if not self._ignored(describe_thread(thread)):
            state = _resting_state(f"{self._proc}/self/task/{thread.native_id}")
            yield WakeCandidate(thread, state, lambda: f"thread {describe_thread(thread)}")

    def _processes(self) -> Iterator[WakeCandidate]:
        """The processes that were started in this run, and their descendants."""
        proc = self._proc
        pending = list(children(proc) - self._children_before)
        while pending:
            pid = pending.pop()
            state = _resting_state_of_process(pid, proc)
            yield WakeCandidate(pid, state, partial("child process {}".format, command(pid, proc)))
            pending += _children_of(pid, proc)

    def _connections(self, descriptors: Iterable[int], of_loop: Iterable[int]) -> Iterator[WakeCandidate]:
        descriptors = list(descriptors)
        if not descriptors:
            return
        ends = {(each.own, each.peer): each for each in map(DescriptorEnd, {*descriptors, *of_loop})}
        for end in map(DescriptorEnd, descriptors):
            if end.listening:
                continue
            other = None if end.peer is None else ends.get((end.peer, end.own))
            if other is None:
                yield WakeCandidate(("fd", end.fd), (self.activity, end.own, end.peer), end.describe)
            elif unsent := end.unsent(other):
                yield WakeCandidate(("fd", end.fd), unsent, end.describe)


class DescriptorEnd:
    """One descriptor, and if it is a connection, its two addresses and how much has not arrived.

    Args:
        fd: The descriptor.
    """

    __slots__ = ("fd", "listening", "own", "peer")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.listening = False
        # Only network addresses identify the other end of a connection. The other end of a pair of unnamed sockets
        # may be in a child process, and that cannot be seen from here.
        self.own: tuple[object, ...] | None = None
        self.peer: tuple[object, ...] | None = None
        try:
            sock = socket.socket(fileno=fd)
        except OSError:  # a pipe
            return
        try:
            self.listening = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                self.own = sock.getsockname()
                self.peer = sock.getpeername()
        except OSError:  # not connected
            pass
        finally:
            sock.detach()

    def unsent(self, other: "DescriptorEnd") -> int:
        """The number of bytes that were written here and whose arrival at the other end is not confirmed."""
        unsent = _unconfirmed(self.fd)
        if unsent and QUICKACK is not None:
            # The system may confirm an arrival up to 40 ms later. With this option it does so at once.
            with contextlib.suppress(OSError):
                sock = socket.socket(fileno=other.fd)
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
                finally:
                    sock.detach()
            unsent = _unconfirmed(self.fd)
        return unsent

    def describe(self) -> str:
        """A description for people."""
        if self.peer is not None:
            return f"a connection to {self.peer[0]}:{self.peer[1]}"
        if self.own is not None and self.listening:
            return f"a socket that listens at {self.own[0]}:{self.own[1]}"
        return f"descriptor {self.fd} ({_target(self.fd)})"


def _target(fd: int) -> str:
    try:
        return os.readlink(f"{PROC}/self/fd/{fd}").partition(":")[0]
    except OSError:
        return "?"


def _unconfirmed(fd: int) -> int:
    try:
        return int(struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0


def _runs_a_call(frame: FrameType | None) -> bool:
    """Whether a thread of the pool is inside a call: whether there is a frame on top of the pool's own function."""
    innermost = frame
    while frame is not None and frame.f_code is not run_jobs.__code__:
        frame = frame.f_back
    return frame is not None and frame is not innermost


def _resting_state(folder: str) -> object:
    """The numbers of context switches of a resting thread; None if it runs or that is unknown."""
    lines = _read(f"{folder}/status").splitlines()
    values = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if values.get(b"State", b"?")[:1] not in RESTING:
        return None
    return values.get(b"voluntary_ctxt_switches"), values.get(b"nonvoluntary_ctxt_switches")


def _resting_state_of_process(pid: int, proc: str) -> object:
    states = {task: _resting_state(f"{proc}/{pid}/task/{task}") for task in _list(f"{proc}/{pid}/task")}
    return None if not states or None in states.values() else states


def _children_of(pid: int, proc: str) -> list[int]:
    tasks = _list(f"{proc}/{pid}/task")
    return [int(child) for task in tasks for child in _read(f"{proc}/{pid}/task/{task}/children").split()]


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process or thread has ended
        return b""
