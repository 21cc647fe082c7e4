"""Owns what the system knows of single processes: who they are, what descends from them, and how they are ended.

A process is named by its pid *and* the time it started: a pid alone may belong to somebody else by the time it is
signalled. Nothing here waits for a process with `waitpid`: whoever started it collects it. A zombie counts as ended.
"""

import os
import signal as os_signals
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .process_group import PARENT, POLL_SECONDS, PROC, STARTED, has_procfs, read, stat

__all__ = ["ProcessId", "children_of_thread", "descendants", "end_processes", "identify", "is_alive", "name_of", "send"]

# How long a process may take to be gone after KILL: one that is inside the kernel cannot be hurried.
KILL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for good: `started` is its start time in clock ticks since boot, 0 where the system has no /proc."""

    pid: int
    started: int


def identify(pid: int) -> ProcessId | None:
    """The living process with this pid, or None if there is none, or only a zombie."""
    if not has_procfs():
        return ProcessId(pid, 0) if _exists(pid) else None
    fields = stat(pid)
    return ProcessId(pid, int(fields[STARTED])) if fields else None


def parent_of(pid: int) -> int | None:
    """The pid of its parent, or None if that cannot be known."""
    fields = stat(pid)
    return int(fields[PARENT]) if fields else None


def is_alive(process: ProcessId) -> bool:
    """True while this very process runs; another one that got its pid later does not count."""
    return identify(process.pid) == process


def name_of(pid: int) -> str:
    """What the process is called, for people: the last part of its first argument, or its command's name."""
    words = read(f"{PROC}/{pid}/cmdline").split(b"\0")
    name = os.path.basename(words[0]) or read(f"{PROC}/{pid}/comm").strip()
    return name.decode(errors="replace") or "process"


def descendants(pids: Iterable[int]) -> list[ProcessId]:
    """The living processes that descend from these, without these.

    A process whose parent has ended belongs to somebody else from then on (the init process, or a subreaper) and is not
    found: collect before the first signal is sent.
    """
    found: dict[int, ProcessId] = {}
    todo = list(pids)
    while todo:
        for pid in _children(todo.pop()):
            child = identify(pid)
            if child is not None and pid not in found:
                found[pid] = child
                todo.append(pid)
    return list(found.values())


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"{PROC}/{pid}/task")
    except OSError:  # it has ended, or this system has no /proc
        return []
    return [int(child) for thread in threads for child in read(f"{PROC}/{pid}/task/{thread}/children").split()]


def children_of_thread(thread: int) -> list[int] | None:
    """The pids of the processes that this thread of ours (its native id) has started, or None if it cannot be known."""
    try:
        with open(f"{PROC}/self/task/{thread}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # no such thread any more, or a kernel without this file
        return None


def send(process: ProcessId, number: int) -> bool:
    """Signal this very process. False: it is gone.

    Through a descriptor of the process: between the look and the signal its pid cannot pass to another one.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # not on this system, or forbidden in this sandbox
        return is_alive(process) and _kill(process.pid, number)
    try:
        if not is_alive(process):
            return False
        os_signals.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs under another user's name
        pass
    finally:
        os.close(descriptor)
    return True


def end_processes(
    processes: Iterable[ProcessId],
    *,
    grace: float,
    kill: float = KILL_SECONDS,
    wait: Callable[[float], object] = time.sleep,
) -> list[ProcessId]:
    """TERM to each, KILL after `grace` seconds to those that are left. Blocks until they have ended.

    Returns:
        Those that still run `kill` seconds after the KILL.
    """
    left = list(processes)
    for number, seconds in ((os_signals.SIGTERM, grace), (os_signals.SIGKILL, kill)):
        left = [process for process in left if send(process, number)]
        until = time.monotonic() + seconds
        while (left := [process for process in left if is_alive(process)]) and time.monotonic() < until:
            wait(POLL_SECONDS)
    return left


def _exists(pid: int) -> bool:
    return _kill(pid, 0)


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody is there, under another user's name
        pass
    return True
