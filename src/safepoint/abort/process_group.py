"""Owns process groups: their members, the processes that have left them, and how a group is ended.

A program is started in a process group of its own, so one signal reaches it and its children. A child can leave the
group (`setsid`), and a new group leader can get the number of an old group. Three mechanisms cover that:

- The group finds all members that have not left it, even after their parents have ended.
- The mark is an environment variable that every child inherits. It finds children that have left the group, as long as
  they keep their environment.
- `has_ended()` does not collect the program (`WNOWAIT`). Until it is collected, it is a zombie, and the system gives
  neither its pid nor its group's number to another process. A signal sent after the collection could hit a stranger.

Zombies do not count as members: they run nothing, and in a container without an init process they may never be
collected.
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
    "PROC",
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

# The environment variable that finds children which have left the group. Its value is a list of marks.
MARK = "SAFEPOINT_PROCESS"
# Where the system shows its processes. The functions that read it take another folder as `proc`.
PROC = "/proc"
POLL_SECONDS = 0.01
# Indexes of fields of /proc/<pid>/stat, counted from the state of the process.
PARENT, GROUP, STARTED = 1, 2, 19


def has_procfs(proc: str = PROC) -> bool:
    """Whether this system shows the members of a group.

    Otherwise a group counts as alive until its last zombie is collected.
    """
    return os.path.isdir(f"{proc}/self")


def members(group: int, *, proc: str = PROC) -> list[int]:
    """The pids of the living processes in this group."""
    if not has_procfs(proc):
        return [group] if send(group, 0) else []
    return [pid for pid, fields in _living(proc) if int(fields[GROUP]) == group]


def marked(mark: str, since: int = 0, *, proc: str = PROC) -> list[int]:
    """The pids of the living processes that descend from the one started with this mark, inside the group or not.

    Args:
        mark: The mark that `with_mark` has put into the program's environment.
        since: When the program was started, in clock ticks since boot. Older processes are skipped, which saves
            reading their environments.
        proc: Where the system shows its processes.
    """
    wanted = mark.encode()
    return [
        pid
        for pid, fields in _living(proc)
        if (not since or int(fields[STARTED]) >= since) and wanted in _marks(read(f"{proc}/{pid}/environ"))
    ]


def with_mark(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """The environment for a program that `marked` shall find."""
    # Appended, because this process may itself run under a mark, and our children descend from that program, too.
    return {**environment, MARK: " ".join(filter(None, (os.environ.get(MARK), mark)))}


def send(group: int, number: int) -> bool:
    """Send a signal to the group. False if it has no members."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # it has members, which run as another user
        pass
    return True


def end_group(
    process: "subprocess.Popen[bytes]",
    *,
    grace: float,
    kill: float,
    wait: Callable[[float], object],
    proc: str = PROC,
) -> None:
    """End the group that this process leads: TERM, and KILL after `grace` seconds. Returns when it is empty.

    Args:
        process: The leader of the group.
        grace: The seconds between TERM and KILL.
        kill: How long to wait after KILL. A process inside a system call may not end before the call returns.
        wait: Called with a number of seconds to pass the time between two looks.
        proc: Where the system shows its processes.
    """
    for number, seconds in ((os_signals.SIGTERM, grace), (os_signals.SIGKILL, kill)):
        send(process.pid, number)
        until = time.monotonic() + seconds
        while members_of(process, proc=proc) and time.monotonic() < until:
            wait(POLL_SECONDS)


@contextmanager
def exit_watch(pid: int, selector: selectors.BaseSelector) -> Iterator[bool]:
    """Wake the selector when the process ends. Yields False if the system cannot do that, and the caller must poll."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not on this system, forbidden in this sandbox, or the process has ended
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
    """Whether the program has ended. Where possible it is not collected, so that its pid and group stay reserved."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # collected already, by us or because the application ignores SIGCHLD
        return True


def members_of(process: "subprocess.Popen[bytes]", *, proc: str = PROC) -> list[int]:
    """The pids of the processes left in its group.

    Without /proc, zombies cannot be told from living processes, so there the program is collected first if it ended.
    """
    if not has_procfs(proc):
        process.poll()
    return members(process.pid, proc=proc)


def collect(process: "subprocess.Popen[bytes]") -> int | None:
    """Collect the program and return its exit code, or None if it has not ended."""
    try:
        return process.wait(0.1)
    except subprocess.TimeoutExpired:  # killed, but still in a system call: it is listed as a survivor
        return None


def _living(proc: str) -> Iterator[tuple[int, list[bytes]]]:
    """All living processes, as pairs of pid and `stat` fields."""
    for name in os.listdir(proc) if has_procfs(proc) else ():
        if name.isdigit() and (fields := stat(int(name), proc=proc)):
            yield int(name), fields


def stat(pid: int, *, proc: str = PROC) -> list[bytes]:
    """The fields of /proc/<pid>/stat from the state on; empty if the process has ended or is a zombie."""
    # The command name before them is in parentheses, and may itself contain blanks and parentheses.
    fields = read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    return fields if fields and fields[0] not in (b"Z", b"X") else []


def _marks(environment: bytes) -> list[bytes]:
    name = f"{MARK}=".encode()
    return [mark for entry in environment.split(b"\0") if entry.startswith(name) for mark in entry[len(name) :].split()]


def read(path: str) -> bytes:
    """The content of a small file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has ended, or belongs to another user
        return b""
