"""Owns single processes: their identity, their descendants, and how they are ended.

A process is identified by its pid *and* its start time, because the system reuses pids: by the time a signal is sent, a
pid alone may belong to another process. Nothing in this module collects a process (`waitpid`); that is the task of the
code that started it. A zombie counts as ended.
"""

import os
import signal as os_signals
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .group import PARENT, PROC, STARTED, has_procfs, read, stat

__all__ = ["ProcessId", "children_of_thread", "descendants", "end_processes", "identify", "is_alive", "name_of", "send"]

# How long to wait after KILL: a process in a system call may end only when the call returns.
KILL_SECONDS = 1.0
POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ProcessId:
    """The permanent identity of a process.

    Attributes:
        pid: Its pid.
        started: Its start time in clock ticks since boot; 0 on a system without /proc.
    """

    pid: int
    started: int


def identify(pid: int, *, proc: str = PROC) -> ProcessId | None:
    """The living process with this pid, or None if it has ended or is a zombie."""
    if not has_procfs(proc):
        return ProcessId(pid, 0) if _exists(pid) else None
    fields = stat(pid, proc=proc)
    return ProcessId(pid, int(fields[STARTED])) if fields else None


def parent_of(pid: int) -> int | None:
    """The pid of its parent, or None if that is unknown."""
    fields = stat(pid)
    return int(fields[PARENT]) if fields else None


def is_alive(process: ProcessId, *, proc: str = PROC) -> bool:
    """Whether this process runs. A later process with the same pid does not count."""
    return identify(process.pid, proc=proc) == process


def name_of(pid: int) -> str:
    """The name of the process for people: the file name of its first argument, or its command name."""
    words = read(f"{PROC}/{pid}/cmdline").split(b"\0")
    name = os.path.basename(words[0]) or read(f"{PROC}/{pid}/comm").strip()
    return name.decode(errors="replace") or "process"


def descendants(pids: Iterable[int], *, proc: str = PROC) -> list[ProcessId]:
    """The living descendants of these processes, without these processes themselves.

    Call it before the first signal is sent. When a process ends, the system gives its children a new parent (the init
    process or a subreaper), so they are no longer found from here.
    """
    found: dict[int, ProcessId] = {}
    pending = list(pids)
    while pending:
        for pid in _children(pending.pop(), proc):
            child = identify(pid, proc=proc)
            if child is not None and pid not in found:
                found[pid] = child
                pending.append(pid)
    return list(found.values())


def _children(pid: int, proc: str) -> list[int]:
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:  # the process has ended, or this system has no /proc
        return []
    return [int(child) for thread in threads for child in read(f"{proc}/{pid}/task/{thread}/children").split()]


def children_of_thread(thread: int) -> list[int] | None:
    """The pids of the processes that a thread of this process has started, in the order of their start.

    Args:
        thread: The native id of the thread.

    Returns:
        The pids, or None if the system does not provide them.
    """
    try:
        with open(f"{PROC}/self/task/{thread}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # the thread has ended, or the kernel does not have this file
        return None


def send(process: ProcessId, number: int) -> bool:
    """Send a signal to this process. False if it has ended.

    The signal goes through a pidfd, a descriptor of the process: so the process cannot end, and its pid pass to
    another one, between the check and the signal.
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
    except PermissionError:  # it runs as another user
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
    """Send TERM to each, and KILL after `grace` seconds to those that remain. Blocks until they have ended.

    Args:
        processes: The processes to end.
        grace: The seconds between TERM and KILL.
        kill: How long to wait after KILL.
        wait: Called with a number of seconds to pass the time between two looks.

    Returns:
        The processes that still run after that.
    """
    remaining = list(processes)
    for number, seconds in ((os_signals.SIGTERM, grace), (os_signals.SIGKILL, kill)):
        remaining = [process for process in remaining if send(process, number)]
        until = time.monotonic() + seconds
        while (remaining := [process for process in remaining if is_alive(process)]) and time.monotonic() < until:
            wait(POLL_SECONDS)
    return remaining


def _exists(pid: int) -> bool:
    return _kill(pid, 0)


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists, and runs as another user
        pass
    return True
