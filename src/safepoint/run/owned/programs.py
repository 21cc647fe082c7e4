"""Owns the programs of a leaf: which process each one is, and which processes descend from it.

Programs are signalled, never collected: their exit codes belong to the code that started them.

Ending one has a fixed order. First its descendants are listed (`with_descendants`), then the first signal is sent: when
a process ends, the system gives its children a new parent, and they can no longer be found. Before either, a leaf that
is being interrupted is refused further programs (`refuse_if_stopped` in `leaf.py`), or a program that starts between
the list and the signal would be missed. A program whose start is already under way is passed by both: its process
exists before `Popen` knows its pid. So the account looks again for a short time (`_end_when_started`).
"""

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ...process.tree import (
    ProcessId,
    children_of_thread,
    descendants,
    identify,
    is_alive,
    name_of,
    parent_of,
)
from .starter import Starter

__all__ = [
    "FORKS",
    "TERM_SECONDS",
    "Forks",
    "Program",
    "mark_seen",
    "program_from_pid",
    "seen_pids",
    "ticks_since_boot",
    "with_descendants",
]

# The time between TERM and KILL.
TERM_SECONDS = 2.0
UNKNOWN_STARTER = Starter()


class PopenLike(Protocol):
    """The part of a `Popen` object that is needed here."""

    pid: int
    returncode: int | None


@dataclass(slots=True, eq=False)
class Program:
    """One program that a leaf has started.

    Attributes:
        name: Its name for people. If empty, the name that the system gives: a forked child may yet run another program.
        popen: The `Popen` object, if it was started through one. Its pid is known once the start has succeeded.
        process: The process, as soon as it is known.
        keep_reason: Why a stop does not end it; empty if a stop does.
        starter: The code that started it.
        ending: Whether it is being ended; the code that does so then writes its entry in the receipt.
    """

    name: str
    popen: PopenLike | None = None
    process: ProcessId | None = None
    keep_reason: str = ""
    starter: Starter = UNKNOWN_STARTER
    ending: bool = field(default=False)

    @property
    def current_name(self) -> str:
        """Its name now, for people."""
        return self.name or (name_of(self.process.pid) if self.process is not None else "program")

    @property
    def has_ended(self) -> bool:
        """Whether it has ended. A program that is about to start has not."""
        return self.collected or (self.process is not None and not is_alive(self.process))

    @property
    def collected(self) -> bool:
        """Whether it has ended and the code that started it has read its exit code."""
        return self.popen is not None and self.popen.returncode is not None

    @property
    def starting(self) -> bool:
        """Whether its start is under way and its process is not known yet."""
        return self.popen is not None and not self.popen.pid and not self.collected

    @property
    def note(self) -> str:
        """Why it continues to run."""
        needed = (
            "the code that started it still runs"
            if self.starter.needs_program()
            else "the leaf that started it kept it"
        )
        return self.keep_reason or needed

    def process_to_end(self) -> ProcessId | None:
        """Its process, if a stop shall end it now."""
        if self.ending or self.keep_reason:
            return None
        process = self.living_process()
        return None if process is None or self.starter.needs_program() else process

    def living_process(self) -> ProcessId | None:
        """Its process while it runs; None before its start and after its end."""
        if self.popen is None:
            return self.process if self.process is not None and is_alive(self.process) else None
        if self.collected or not self.popen.pid:
            return None
        if self.process is None:
            # If other code has collected the process, `Popen` does not know, and the pid may belong to another process
            # by now. A child of this process is the right one.
            if parent_of(self.popen.pid) not in (os.getpid(), None):
                return None
            self.process = identify(self.popen.pid)
            return self.process
        return self.process if is_alive(self.process) else None


def program_from_pid(pid: int, *, keep_reason: str = "", starter: Starter = UNKNOWN_STARTER) -> Program | None:
    """The program that runs under this pid now, or None."""
    process = identify(pid)
    return None if process is None else Program("", process=process, keep_reason=keep_reason, starter=starter)


def with_descendants(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """These processes and their descendants. Must be called before the first of them is signalled."""
    roots = list(processes)
    return [*roots, *descendants(process.pid for process in roots)]


class Forker(Protocol):
    """An account that receives the children of forks."""

    def add_program(self, program: Program) -> None: ...


class Forks:
    """Forks that have begun and whose child is not known yet.

    The hook runs before `os.system`, `os.posix_spawn` and `os.fork`, which give no object. Afterwards, the child is the
    first new process among the children *of the calling thread*. The new children of the whole process would contain
    programs of other threads.

    The thread may later start a program for another leaf, so the search comes as soon as possible: in the fork handler
    of `os.fork`, in the next callback if an event loop runs in the thread, before the next start in the thread, and at
    the end of its function; and whenever the programs of the account are to be ended or named. If the child has been
    collected by then, it is not found. No other process is taken in its place, because its start time must match the
    time of the fork.
    """

    def __init__(self) -> None:
        self._begun: dict[int, _Fork] = {}  # by native thread id

    def begin(self, account: Forker, keep_reason: str, starter: Starter = UNKNOWN_STARTER) -> None:
        """Note that this thread is about to fork for this account."""
        thread = threading.get_native_id()
        before = children_of_thread(thread)
        if before is not None:
            self._begun[thread] = _Fork(account, frozenset(before), keep_reason, starter, ticks_since_boot())
            loop = asyncio._get_running_loop()
            if loop is not None:  # other tasks may start programs in this thread
                loop.call_soon(self.find_here)

    def has(self, account: Forker) -> bool:
        """Whether this account has a fork whose child is not known yet."""
        return any(fork.account is account for fork in list(self._begun.values()))

    def find_here(self) -> None:
        """Find the child of the last fork of this thread, and forget the fork."""
        if self._begun and (fork := self._begun.pop(threading.get_native_id(), None)) is not None:
            self._find(threading.get_native_id(), fork)

    def find_for(self, account: Forker) -> None:
        """Find the children of this account's forks, in all threads."""
        for thread, fork in list(self._begun.items()):
            if fork.account is account and self._find(thread, fork):
                self._begun.pop(thread, None)

    def _find(self, thread: int, fork: "_Fork") -> bool:
        known = fork.before | seen_pids()
        for pid in children_of_thread(thread) or ():  # in the order of their start
            if pid in known:
                continue
            program = program_from_pid(pid, keep_reason=fork.keep_reason, starter=fork.starter)
            if program is not None and program.process is not None and fork.may_have_made(program.process):
                _seen_pids.add(pid)
                fork.account.add_program(program)
                return True
        return False

    def forget(self) -> None:
        """Forget all forks. In a forked child they are those of the parent."""
        self._begun.clear()


@dataclass(frozen=True, slots=True)
class _Fork:
    account: Forker
    before: frozenset[int]
    keep_reason: str
    starter: Starter
    began: int  # in clock ticks since boot

    def may_have_made(self, process: ProcessId) -> bool:
        """Whether the start time of the process matches the fork, with one tick for rounding."""
        return -1 <= process.started - self.began <= _BIRTH_TICKS


def ticks_since_boot() -> int:
    """The time in the unit of process start times; 0 if the system does not provide it."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0


# How long after the begin of a fork its child may start, even on a busy machine.
_BIRTH_TICKS = 10


# All programs whose start the hook has seen, on any account or none. Other children were started unseen.
_seen_popens: "weakref.WeakSet[PopenLike]" = weakref.WeakSet()
_seen_pids: set[int] = set()


def mark_seen(popen: PopenLike) -> None:
    """Note that the hook has seen the start of this program."""
    _seen_popens.add(popen)


def seen_pids() -> set[int]:
    """The pids of the programs whose start the hook has seen, and which may still run."""
    return _seen_pids | {popen.pid for popen in list(_seen_popens) if popen.pid}


FORKS = Forks()
os.register_at_fork(after_in_parent=FORKS.find_here, after_in_child=FORKS.forget)
