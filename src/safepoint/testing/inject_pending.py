"""Owns the question whether fake time may jump: may anything outside the event loop still wake it by itself?

Outside of a loop are the threads of the run, its child processes, and whatever is at the other end of its sockets and
pipes. The rule, which docs/testing.md explains to users:

- What waits for fake time does not hold it up: a thread inside `FakeClock.acquire` (`signal.wait()`), an idle thread of
  a pool.
- A listening socket does not hold it up, nor does a connection whose two ends are both on this loop, once all bytes
  that were sent have arrived: nobody but a task of this loop could write to it.
- Everything else holds it up for as long as it moves, and `STILL_SECONDS` longer. A thread or process moves while it
  runs at all, by the system's count of its context switches; a connection to elsewhere moves whenever the loop has
  done anything, since what it did may have been a request.

Where the system does not say whether a thread moves (no /proc), it counts as moving: time then stands still, and the
hang that follows names it.
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
from typing import Any

from ..abort.threads import idle_threads, run_jobs
from .clock import FakeClock, ThreadWait
from .inject_left import PROC, Leftover, children, command, thread_thing

__all__ = ["STILL_SECONDS", "DescriptorEnd", "OutsideActivity"]

# What has not moved for this much real time is taken to wait for something that only time, or this loop, can bring.
STILL_SECONDS = 1.0
QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
WORKER = "safepoint-worker"
POOLS = ("safepoint-", "asyncio_")
# The states of a process or thread that has nothing to do until somebody wakes it: sleeping, stopped, ended.
RESTING = {b"S", b"T", b"t", b"Z", b"X", b"I"}


@dataclass(slots=True)
class WakeCandidate:
    """Something outside the loop that may wake it.

    `state` is compared from look to look: equal means that it has not moved. None: it moves, or one cannot know.
    """

    key: object
    state: object
    words: Callable[[], str]


class OutsideActivity:
    """All that is outside the loop of one run."""

    def __init__(self, ignored: Callable[[Leftover], bool] = lambda thing: False) -> None:
        self.running: dict[object, int | None] = {}  # calls in executors: the thread, or None while they are queued
        self.activity = 0  # to be counted up whenever the loop does something
        self.moving: list[WakeCandidate] = []  # what held up time at the last look
        self.still: list[WakeCandidate] = []  # what did not hold it up only because it has not moved for so long
        self._ignored = ignored
        self._threads_before = frozenset(threading.enumerate())
        self._children_before = children()
        self._since: dict[object, tuple[object, float]] = {}

    def pending(self, descriptors: Iterable[int], of_loop: Iterable[int] = ()) -> bool:
        """True: time may not jump yet.

        Args:
            descriptors: What the loop waits for, without its own wake-up pipe.
            of_loop: All sockets that belong to this loop, also those it does not wait for at the moment.
        """
        # Everything is looked at twice. What is the same in both looks has not moved in between, so there was one
        # moment at which everybody rested, and nobody is left who could wake anybody. One look is not enough: a thread
        # that is seen resting may be woken by a process that is looked at later, and is gone by then.
        waits = FakeClock.waiting_threads()
        found = self._look(waits, descriptors, of_loop)
        now = time.monotonic()
        self._since = {key: self._rests_since(each, now) for key, each in found.items()}
        self.moving = [each for key, each in found.items() if now - self._since[key][1] < STILL_SECONDS]
        self.still = [each for key, each in found.items() if now - self._since[key][1] >= STILL_SECONDS]
        if self.moving or FakeClock.waiting_threads() != waits:
            return True
        again = self._look(waits, descriptors, of_loop)
        self.moving = [each for key, each in again.items() if key not in found or found[key].state != each.state]
        return bool(self.moving) or again.keys() != found.keys() or FakeClock.waiting_threads() != waits

    def _look(
        self, waits: frozenset[ThreadWait], descriptors: Iterable[int], of_loop: Iterable[int]
    ) -> dict[object, WakeCandidate]:
        """All that may wake the loop, as it is now."""
        found = {each.key: each for each in self._candidates({wait.thread for wait in waits}, descriptors, of_loop)}
        if found:
            found |= {each.key: each for each in self._processes()}
        return found

    def waiting(self) -> list[str]:
        """The threads that wait for fake time, in words."""
        by_ident = {thread.ident: thread for thread in threading.enumerate()}
        threads = [by_ident[wait.thread] for wait in FakeClock.waiting_threads() if wait.thread in by_ident]
        return [f"thread {thread_thing(thread)}" for thread in threads]

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
        """Those of our own pool, without those that wait for fake time, that have a call to run."""
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
        if not self._ignored(thread_thing(thread)):
            state = _rest_of(f"{PROC}/self/task/{thread.native_id}")
            yield WakeCandidate(thread, state, lambda: f"thread {thread_thing(thread)}")

    def _processes(self) -> Iterator[WakeCandidate]:
        """The processes that were started in this run, and theirs: one of them may be what is waited for."""
        waiting = list(children() - self._children_before)
        while waiting:
            pid = waiting.pop()
            yield WakeCandidate(pid, _rest_of_process(pid), partial("child process {}".format, command(pid)))
            waiting += _children_of(pid)

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
                yield WakeCandidate(("fd", end.fd), (self.activity, end.own, end.peer), end.words)
            elif unsent := end.unsent(other):
                yield WakeCandidate(("fd", end.fd), unsent, end.words)


class DescriptorEnd:
    """What can be known of a descriptor: the two addresses of a connection, and what has not arrived of it."""

    __slots__ = ("fd", "listening", "own", "peer")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.listening = False
        # Only addresses of the network tell the ends of a connection apart. A pair of unnamed sockets, whose other end
        # a child process may have, looks from here like any other.
        self.own: tuple[Any, ...] | None = None
        self.peer: tuple[Any, ...] | None = None
        try:
            sock = socket.socket(fileno=fd)
        except OSError:  # a pipe
            return
        try:
            self.listening = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                self.own = sock.getsockname()
                self.peer = sock.getpeername()
        except OSError:  # not connected yet, or not any more
            pass
        finally:
            sock.detach()

    def unsent(self, other: "DescriptorEnd") -> int:
        """How many bytes were written here that the system has not confirmed to have received for the other end."""
        unsent = _unconfirmed(self.fd)
        if unsent and QUICKACK is not None:
            # What has arrived may be confirmed up to 40 ms later. Asked for it, the system confirms it at once.
            with contextlib.suppress(OSError):
                sock = socket.socket(fileno=other.fd)
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
                finally:
                    sock.detach()
            unsent = _unconfirmed(self.fd)
        return unsent

    def words(self) -> str:
        """For people."""
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
    """False for a thread of the pool that has nothing on top of the pool's own function, or does not run that yet."""
    innermost = frame
    while frame is not None and frame.f_code is not run_jobs.__code__:
        frame = frame.f_back
    return frame is not None and frame is not innermost


def _rest_of(folder: str) -> object:
    """Where a thread rests: the number of its context switches. None: it runs, or one cannot know."""
    lines = _read(f"{folder}/status").splitlines()
    values = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    if values.get(b"State", b"?")[:1] not in RESTING:
        return None
    return values.get(b"voluntary_ctxt_switches"), values.get(b"nonvoluntary_ctxt_switches")


def _rest_of_process(pid: int) -> object:
    rests = {task: _rest_of(f"{PROC}/{pid}/task/{task}") for task in _list(f"{PROC}/{pid}/task")}
    return None if not rests or None in rests.values() else rests


def _children_of(pid: int) -> list[int]:
    tasks = _list(f"{PROC}/{pid}/task")
    return [int(child) for task in tasks for child in _read(f"{PROC}/{pid}/task/{task}/children").split()]


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone in the meantime
        return b""
