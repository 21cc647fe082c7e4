"""Owns the programs of a leaf: which process each one is, and ending it with all that descends from it.

We signal and never collect: the exit code belongs to the code that started the program.
"""

import asyncio
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...abort.process_tree import (
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
    "program_from_pid",
    "seen",
    "ticks_since_boot",
    "with_descendants",
]

# Between TERM and KILL.
TERM_SECONDS = 2.0
NOBODY = Starter()


@dataclass(slots=True, eq=False)
class Program:
    """One program that a leaf has started.

    Attributes:
        name: What it is called, for people. Empty: as the system calls it; a fork may yet become another program.
        popen: The `Popen` object, if it was started through one; its pid is known once the start has succeeded.
        process: The process, if it is known without a `Popen`.
        keep: Why a stop does not end it; empty if it does.
        starter: Who started it.
        ending: True once it is being ended: then its line in the receipt is written by whoever does that.
    """

    name: str
    popen: "subprocess.Popen[bytes] | None" = None
    process: ProcessId | None = None
    keep: str = ""
    starter: Starter = NOBODY
    ending: bool = field(default=False)

    @property
    def called(self) -> str:
        """What it is called now, for people."""
        return self.name or (name_of(self.process.pid) if self.process is not None else "program")

    @property
    def over(self) -> bool:
        """True: it has ended. A program that is about to start is not over."""
        return self.collected or (self.process is not None and not is_alive(self.process))

    @property
    def collected(self) -> bool:
        """True: it has ended, and the code that started it knows."""
        return self.popen is not None and self.popen.returncode is not None

    @property
    def starting(self) -> bool:
        """True: its start is under way, and its process is not known yet."""
        return self.popen is not None and not self.popen.pid and not self.collected

    @property
    def note(self) -> str:
        """Why it goes on."""
        needed = "what started it goes on" if self.starter.needs_it() else "the leaf that started it kept it"
        return self.keep or needed

    def to_end(self) -> ProcessId | None:
        """Its process, if a stop ends it now."""
        if self.ending or self.keep:
            return None
        process = self.living()
        return None if process is None or self.starter.needs_it() else process

    def living(self) -> ProcessId | None:
        """Its process while it runs; None before its start, and once it has ended."""
        if self.popen is None:
            return self.process if self.process is not None and is_alive(self.process) else None
        if self.collected or not self.popen.pid:
            return None
        if self.process is None:
            # A pid that was collected behind the back of its Popen may belong to somebody else by now; to be a child
            # of ours it must have been started by this process.
            if parent_of(self.popen.pid) not in (os.getpid(), None):
                return None
            self.process = identify(self.popen.pid)
            return self.process
        return self.process if is_alive(self.process) else None


def program_from_pid(pid: int, *, keep: str = "", starter: Starter = NOBODY) -> Program | None:
    """The program that runs under this pid now, if there is one."""
    process = identify(pid)
    return None if process is None else Program("", process=process, keep=keep, starter=starter)


def with_descendants(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """These processes and all that descend from them. To be asked before the first of them is signalled."""
    roots = list(processes)
    return [*roots, *descendants(process.pid for process in roots)]


class Forker(Protocol):
    """An account that gets the children of a fork."""

    def add_program(self, program: Program) -> None: ...


class Forks:
    """Forks that have begun, and whose child is not known yet.

    The hook hears of `os.system`, `os.posix_spawn` and `os.fork` before they happen. Afterwards the child is what the
    calling thread has more among its children than before. One call makes one child: the first that was born since.

    Never "new children of this process": a neighbour's program would be among them. Nor what the thread starts later,
    for somebody else, so one looks right after the call: `os.fork` tells, a loop that runs in the thread calls back,
    and so does whoever starts the next program there or has run the function. Who wants to end or name the programs of
    an account looks earlier. A child that was collected by then is not found, and nothing is taken in its place: it
    must have been born with the fork.
    """

    def __init__(self) -> None:
        self._begun: dict[int, _Fork] = {}  # by native thread id

    def begin(self, account: Forker, keep: str, starter: Starter = NOBODY) -> None:
        """This thread is about to fork, on this account."""
        thread = threading.get_native_id()
        before = children_of_thread(thread)
        if before is not None:
            self._begun[thread] = _Fork(account, frozenset(before), keep, starter, ticks_since_boot())
            loop = asyncio._get_running_loop()
            if loop is not None:  # its thread serves everybody
                loop.call_soon(self.find_here)

    def has(self, account: Forker) -> bool:
        """Whether a fork of this account has begun whose child is not known."""
        return any(fork.account is account for fork in list(self._begun.values()))

    def find_here(self) -> None:
        """Find the child of the last fork of this thread. It is over: what comes from now on is somebody else's."""
        if self._begun and (fork := self._begun.pop(threading.get_native_id(), None)) is not None:
            self._find(threading.get_native_id(), fork)

    def find_for(self, account: Forker) -> None:
        """Find the children of this account's forks, in all threads."""
        for thread, fork in list(self._begun.items()):
            if fork.account is account and self._find(thread, fork):
                self._begun.pop(thread, None)

    def _find(self, thread: int, fork: "_Fork") -> bool:
        known = fork.before | seen()
        for pid in children_of_thread(thread) or ():  # in the order of their births
            program = None if pid in known else program_from_pid(pid, keep=fork.keep, starter=fork.starter)
            if program is not None and program.process is not None and fork.may_have_made(program.process):
                _seen_pids.add(pid)
                fork.account.add_program(program)
                return True
        return False

    def forget(self) -> None:
        """In a forked child: what was under way there is the parent's."""
        self._begun.clear()


@dataclass(frozen=True, slots=True)
class _Fork:
    account: Forker
    before: frozenset[int]
    keep: str
    starter: Starter
    began: int  # in clock ticks since boot

    def may_have_made(self, process: ProcessId) -> bool:
        """Whether the process was born with this fork, give or take a tick of rounding."""
        return -1 <= process.started - self.began <= _BIRTH_TICKS


def ticks_since_boot() -> int:
    """The time as the system writes it down of the start of each process; 0 where it does not."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


# A child is born within this time after its fork began, also on a busy machine.
_BIRTH_TICKS = 10


# Every program whose start was seen, on any account or none: a child that is not here was started unseen.
_seen_popens: "weakref.WeakSet[Any]" = weakref.WeakSet()
_seen_pids: set[int] = set()


def see(popen: object) -> None:
    """The start of this program was seen."""
    _seen_popens.add(popen)


def seen() -> set[int]:
    """The pids of the programs whose start was seen, and which may still run."""
    return _seen_pids | {popen.pid for popen in list(_seen_popens) if popen.pid}


FORKS = Forks()
os.register_at_fork(after_in_parent=FORKS.find_here, after_in_child=FORKS.forget)
