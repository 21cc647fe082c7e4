"""Owns what a run leaves behind in the process: threads, child processes, open descriptors. Knows nothing of tasks.

A leftover is a text with a name and places, which rules of `ignore=` match. If the system does not provide the
information (no /proc, no /dev/fd), nothing is reported.
"""

import os
import threading
from dataclasses import dataclass

from ...abort.threads import abandoned_calls
from .chain import short, thread_place

__all__ = [
    "DESCRIPTORS",
    "PROC",
    "Leftover",
    "LeftoverReport",
    "ResourceSnapshot",
    "children",
    "command",
    "describe_thread",
    "leftovers_since",
    "take_snapshot",
]

# Where the system shows its processes, and the open descriptors of this one. Functions take other folders as `proc` and
# `descriptors`.
PROC = "/proc"
DESCRIPTORS = "/dev/fd"


class Leftover(str):
    """The description of something that a run has left behind.

    Attributes:
        name: Its name, for rules.
        places: The lines at which it is, for rules.
    """

    __slots__ = ("name", "places")
    name: str
    places: tuple[str, ...]

    def __new__(cls, text: str, name: str, *places: str) -> "Leftover":
        leftover = super().__new__(cls, text)
        leftover.name = name
        leftover.places = places
        return leftover


@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """The threads, processes, descriptors and abandoned calls at one moment."""

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    descriptors: frozenset[str]
    abandoned: frozenset[object]


@dataclass(frozen=True, slots=True)
class LeftoverReport:
    """What was added since a snapshot and still exists."""

    threads: tuple[Leftover, ...] = ()
    processes: tuple[Leftover, ...] = ()
    descriptors: tuple[Leftover, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.threads or self.processes or self.descriptors)


def take_snapshot(*, proc: str = PROC, descriptors: str = DESCRIPTORS) -> ResourceSnapshot:
    """The snapshot of this moment."""
    threads, processes = frozenset(threading.enumerate()), children(proc)
    return ResourceSnapshot(threads, processes, _open_descriptors(descriptors), frozenset(abandoned_calls()))


def leftovers_since(
    before: ResourceSnapshot, *, executor_idle: bool, proc: str = PROC, descriptors: str = DESCRIPTORS
) -> LeftoverReport:
    """What exists now and did not exist before. Idle threads of pools do not count.

    Args:
        before: The snapshot to compare with.
        executor_idle: Whether the loop's executor has no calls, so that all of its threads are idle.
        proc: Where the system shows its processes.
        descriptors: Where it shows the open descriptors of this process.
    """
    pools = ("safepoint-", "asyncio_") if executor_idle else ("safepoint-",)
    threads = [
        describe_thread(thread)
        for thread in threading.enumerate()
        if thread not in before.threads and not thread.name.startswith(pools)
    ]
    late = [function for call, function in abandoned_calls().items() if call not in before.abandoned]
    threads += map(_describe_abandoned, late)
    processes = [(pid, command(pid, proc)) for pid in sorted(children(proc) - before.processes)]
    opened = sorted(_open_descriptors(descriptors) - before.descriptors, key=int)
    return LeftoverReport(
        tuple(threads),
        tuple(Leftover(f"pid {pid}: {text}", text) for pid, text in processes),
        tuple(_describe_descriptor(fd, descriptors) for fd in opened),
    )


def describe_thread(thread: threading.Thread) -> Leftover:
    """A thread and the place at which it is now."""
    where = thread_place(thread.ident)
    return Leftover(f"{thread.name} at {where}", thread.name, where)


def _describe_abandoned(function: object) -> Leftover:
    text, place = name_of_function(function), place_of_function(function)
    return Leftover(f"{text}, abandoned by run_in_thread", text.partition(" (")[0], place)


def name_of_function(function: object) -> str:
    """The name of a function, and where it is defined if that is known."""
    name = getattr(function, "__qualname__", None) or repr(function)
    place = place_of_function(function)
    return f"{name} ({place})" if place else name


def place_of_function(function: object) -> str:
    """Where a function is defined, as `file:line`; empty if that is unknown."""
    code = getattr(function, "__code__", None)
    return f"{short(code.co_filename)}:{code.co_firstlineno}" if code else ""


def children(proc: str = PROC) -> frozenset[int]:
    """The pids of the child processes of this process, including those that have ended and were not collected."""
    if not os.path.isdir(f"{proc}/self"):
        return frozenset()
    try:  # one call shows whether there are any; it collects none
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    me = str(os.getpid()).encode()
    return frozenset(
        int(name)
        for name in os.listdir(proc)
        if name.isdigit() and _stat(name, proc)[1:2] == [me]  # state, parent, group, …
    )


def _stat(pid: str, proc: str) -> list[bytes]:
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def command(pid: int, proc: str = PROC) -> str:
    """The command of a process, for people."""
    if _stat(str(pid), proc)[:1] == [b"Z"]:
        return "ended, but its parent has not waited for it"
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip() or "?"
    except OSError:
        return "?"


def _open_descriptors(folder: str) -> frozenset[str]:
    try:
        return frozenset(filter(_is_open, os.listdir(folder)))
    except OSError:
        return frozenset()


def _is_open(fd: str) -> bool:
    """Whether a listed descriptor is still open. The one with which the list was read is not."""
    try:
        os.fstat(int(fd))
    except OSError:
        return False
    return True


def _describe_descriptor(fd: str, folder: str) -> Leftover:
    try:
        target = os.readlink(f"{folder}/{fd}")
    except OSError:
        return Leftover(fd, "")
    return Leftover(f"{fd} ({target})", target)
