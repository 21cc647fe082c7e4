"""Owns what a run leaves behind in the process: threads, child processes, open descriptors. Knows nothing of tasks.

A thing that is left is told in words, and knows its name and places, by which people may say what not to count.

Where the system does not tell (no /proc, no /dev/fd), nothing is reported as left.
"""

import os
import threading
from dataclasses import dataclass

from ..abort.threads import abandoned_calls
from .inject_chain import short, thread_place

__all__ = [
    "Leftover",
    "LeftoverReport",
    "ResourceSnapshot",
    "children",
    "command",
    "left_since",
    "take_stock",
    "thread_thing",
]

PROC = "/proc"
DESCRIPTORS = "/dev/fd"


class Leftover(str):
    """Something that is left, in words. `name` is what people call it, `places` are the lines at which it is."""

    __slots__ = ("name", "places")
    name: str
    places: tuple[str, ...]

    def __new__(cls, text: str, name: str, *places: str) -> "Leftover":
        thing = super().__new__(cls, text)
        thing.name = name
        thing.places = places
        return thing


@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """What there is at one moment."""

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    descriptors: frozenset[str]
    abandoned: frozenset[object]


@dataclass(frozen=True, slots=True)
class LeftoverReport:
    """What has come since, and has not gone: in words."""

    threads: tuple[Leftover, ...] = ()
    processes: tuple[Leftover, ...] = ()
    descriptors: tuple[Leftover, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.threads or self.processes or self.descriptors)


def take_stock() -> ResourceSnapshot:
    """What there is now."""
    return ResourceSnapshot(frozenset(threading.enumerate()), children(), _descriptors(), frozenset(abandoned_calls()))


def left_since(before: ResourceSnapshot, *, executor_idle: bool) -> LeftoverReport:
    """What is there now and was not there before. Idle threads of pools do not count."""
    pools = ("safepoint-", "asyncio_") if executor_idle else ("safepoint-",)
    threads = [
        thread_thing(thread)
        for thread in threading.enumerate()
        if thread not in before.threads and not thread.name.startswith(pools)
    ]
    late = [function for call, function in abandoned_calls().items() if call not in before.abandoned]
    threads += map(_abandoned_thing, late)
    processes = [(pid, command(pid)) for pid in sorted(children() - before.processes)]
    return LeftoverReport(
        tuple(threads),
        tuple(Leftover(f"pid {pid}: {text}", text) for pid, text in processes),
        tuple(map(_descriptor_thing, sorted(_descriptors() - before.descriptors, key=int))),
    )


def thread_thing(thread: threading.Thread) -> Leftover:
    """A thread and where it is now."""
    where = thread_place(thread.ident)
    return Leftover(f"{thread.name} at {where}", thread.name, where)


def _abandoned_thing(function: object) -> Leftover:
    text, place = name_of_function(function), place_of_function(function)
    return Leftover(f"{text}, abandoned by run_in_thread", text.partition(" (")[0], place)


def name_of_function(function: object) -> str:
    """Its name, and where it is defined if that can be known."""
    name = getattr(function, "__qualname__", None) or repr(function)
    place = place_of_function(function)
    return f"{name} ({place})" if place else name


def place_of_function(function: object) -> str:
    """Where it is defined, or ""."""
    code = getattr(function, "__code__", None)
    return f"{short(code.co_filename)}:{code.co_firstlineno}" if code else ""


def children() -> frozenset[int]:
    """The pids of the child processes of this process, those that have ended but were not waited for included."""
    if not os.path.isdir(f"{PROC}/self"):
        return frozenset()
    try:  # one call tells whether there are any at all; it collects none
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    me = str(os.getpid()).encode()
    return frozenset(
        int(name)
        for name in os.listdir(PROC)
        if name.isdigit() and _stat(name)[1:2] == [me]  # state, parent, group, …
    )


def _stat(pid: str) -> list[bytes]:
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def command(pid: int) -> str:
    """What a process runs, for people."""
    if _stat(str(pid))[:1] == [b"Z"]:
        return "ended, but nobody has waited for it"
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip() or "?"
    except OSError:
        return "?"


def _descriptors() -> frozenset[str]:
    try:
        return frozenset(filter(_is_open, os.listdir(DESCRIPTORS)))
    except OSError:
        return frozenset()


def _is_open(fd: str) -> bool:
    """False for the one with which the list was read."""
    try:
        os.fstat(int(fd))
    except OSError:
        return False
    return True


def _descriptor_thing(fd: str) -> Leftover:
    try:
        target = os.readlink(f"{DESCRIPTORS}/{fd}")
    except OSError:
        return Leftover(fd, "")
    return Leftover(f"{fd} ({target})", target)
