"""Owns process groups: their members, and the processes that have left them.

A program is started in a process group of its own, so one signal reaches it and its children. A child can leave the
group (`setsid`), and a new group leader can get the number of an old group. Three mechanisms cover that:

- The group finds all members that have not left it, even after their parents have ended.
- The mark is an environment variable that every child inherits. It finds children that have left the group, as long as
  they keep their environment.
- `ChildProcess.has_ended()` does not collect the program (`WNOWAIT`). Until it is collected, it is a zombie, and the
  system gives neither its pid nor its group's number to another process. A signal sent after the collection could hit a
  stranger.

Zombies do not count as members: they run nothing, and in a container without an init process they may never be
collected.
"""

import os
import signal as os_signals
from collections.abc import Iterator, Mapping
from contextlib import suppress

__all__ = [
    "MARK",
    "PROC",
    "has_procfs",
    "kill_own_processes",
    "marked",
    "members",
    "send",
    "with_mark",
]

# The environment variable that finds children which have left the group. Its value is a list of marks.
MARK = "SAFEPOINT_PROCESS"
# Where the system shows its processes. The functions that read it take another folder as `proc`.
PROC = "/proc"
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


def kill_own_processes() -> None:
    """Kill this process and everything it has started, whether in its process group or not."""
    for mark in os.environ.get(MARK, "").split()[-1:]:
        for pid in marked(mark):
            if pid != os.getpid():
                with suppress(OSError):
                    os.kill(pid, os_signals.SIGKILL)
    os.killpg(0, os_signals.SIGKILL)


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
