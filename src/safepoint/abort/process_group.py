"""Owns what the system knows of a process group: who is in it, who came out of it, and how it is ended.

A zombie is not counted: it runs nothing, and in a container without an init nobody may ever collect it.
"""

import os
import selectors
import signal as os_signals
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

__all__ = [
    "MARK",
    "POLL_SECONDS",
    "collect",
    "end_group",
    "exit_watch",
    "has_ended",
    "has_procfs",
    "marked",
    "members",
    "members_of",
    "send",
    "with_mark",
]

# Children inherit it, also those that leave the group: that is how they are found. Its value is a list of marks.
MARK = "SAFEPOINT_PROCESS"
PROC = "/proc"
POLL_SECONDS = 0.01
# The fields of /proc/<pid>/stat that are asked for, counted from the state on.
PARENT, GROUP, STARTED = 1, 2, 19


def has_procfs() -> bool:
    """Whether this system shows who is in a group. Otherwise a group counts as alive until its last zombie is gone."""
    return os.path.isdir(f"{PROC}/self")


def members(group: int) -> list[int]:
    """The living processes of this group."""
    if not has_procfs():
        return [group] if send(group, 0) else []
    return [pid for pid, fields in _living() if int(fields[GROUP]) == group]


def marked(mark: str, since: int = 0) -> list[int]:
    """The living processes that descend from the one started with this mark, in the group or not.

    Args:
        mark: The mark, as `with_mark` put it into the program's environment.
        since: When the program was started, in clock ticks since boot: what is older need not be looked into.
    """
    wanted = mark.encode()
    return [
        pid
        for pid, fields in _living()
        if (not since or int(fields[STARTED]) >= since) and wanted in _marks(read(f"{PROC}/{pid}/environ"))
    ]


def with_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """The environment of a program to be found by this mark."""
    # Behind the mark of the program that we ourselves may run in: for that one, ours are its children too.
    return {**environment, MARK: " ".join(filter(None, (os.environ.get(MARK), mark)))}


def send(group: int, number: int) -> bool:
    """Signal the group. False: there is nobody in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody is there, under another user's name
        pass
    return True


def end_group(
    process: "subprocess.Popen[bytes]", *, grace: float, kill: float, wait: Callable[[float], object]
) -> None:
    """End the group that this process leads: TERM, and KILL after `grace` seconds. Returns when it is empty.

    Or `kill` seconds after the KILL, which nothing in the kernel heeds. `wait(seconds)` passes time between two looks.
    """
    for number, seconds in ((os_signals.SIGTERM, grace), (os_signals.SIGKILL, kill)):
        send(process.pid, number)
        until = time.monotonic() + seconds
        while members_of(process) and time.monotonic() < until:
            wait(POLL_SECONDS)


@contextmanager
def exit_watch(pid: int, selector: selectors.BaseSelector) -> Iterator[bool]:
    """Wake the selector when the process ends. False: the system cannot tell, so one has to look again and again."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not on this system, forbidden in this sandbox, or the process is gone
        yield False
        return
    selector.register(fd, selectors.EVENT_READ)
    try:
        yield True
    finally:
        if fd in selector.get_map():
            selector.unregister(fd)
        os.close(fd)


def has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether the program is over. If possible it is not collected yet: until then its group's number stays its own."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # already collected: by us, or by a host program that ignores SIGCHLD
        return True


def members_of(process: "subprocess.Popen[bytes]") -> list[int]:
    """Who is left of its group. Where the dead look like the living, the program is collected as soon as it is dead."""
    if not has_procfs():
        process.poll()
    return members(process.pid)


def collect(process: "subprocess.Popen[bytes]") -> int | None:
    """Its exit code, if it has ended."""
    try:
        return process.wait(0.1)
    except subprocess.TimeoutExpired:  # killed, but still inside the kernel: it is among the survivors
        return None


def _living() -> Iterator[tuple[int, list[bytes]]]:
    """Every living process: its pid and what the system says of it."""
    for name in os.listdir(PROC) if has_procfs() else ():
        if name.isdigit() and (fields := stat(int(name))):
            yield int(name), fields


def stat(pid: int) -> list[bytes]:
    """What /proc says of a living process, from its state on; empty if there is none, or only a zombie."""
    # The command's name, in parentheses, may itself hold blanks and parentheses.
    fields = read(f"{PROC}/{pid}/stat").rpartition(b")")[2].split()
    return fields if fields and fields[0] not in (b"Z", b"X") else []


def _marks(environment: bytes) -> list[bytes]:
    name = f"{MARK}=".encode()
    return [mark for entry in environment.split(b"\0") if entry.startswith(name) for mark in entry[len(name) :].split()]


def read(path: str) -> bytes:
    """A small file of the system's; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone in the meantime, or not ours to read
        return b""
