"""Owns what the system knows of a process group: who is in it, who came out of it, and how to signal it.

A zombie is not counted: it runs nothing, and in a container without an init nobody may ever collect it.
"""

import os
from collections.abc import Iterator

__all__ = ["MARK", "marked", "members", "send", "tells_the_dead"]

# Children inherit it, also those that leave the group: that is how they are found. Its value is a list of marks.
MARK = "SAFEPOINT_PROCESS"
PROC = "/proc"


def tells_the_dead() -> bool:
    """Whether this system shows who is in a group. Otherwise a group counts as alive until its last zombie is gone."""
    return os.path.isdir(f"{PROC}/self")


def members(group: int) -> list[int]:
    """The living processes of this group."""
    if not tells_the_dead():
        return [group] if send(group, 0) else []
    return [pid for pid, pgrp in _living() if pgrp == group]


def marked(mark: str) -> list[int]:
    """The living processes that descend from the one started with this mark, in the group or not."""
    return [pid for pid, _ in _living() if mark.encode() in _marks(_read(f"{PROC}/{pid}/environ"))]


def send(group: int, number: int) -> bool:
    """Signal the group. False: there is nobody in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody is there, under another user's name
        pass
    return True


def _living() -> Iterator[tuple[int, int]]:
    for name in os.listdir(PROC) if tells_the_dead() else ():
        if name.isdigit():
            # The command's name, in parentheses, may itself hold blanks and parentheses.
            fields = _read(f"{PROC}/{name}/stat").rpartition(b")")[2].split()
            if fields and fields[0] not in (b"Z", b"X"):
                yield int(name), int(fields[2])


def _marks(environment: bytes) -> list[bytes]:
    name = f"{MARK}=".encode()
    return [mark for entry in environment.split(b"\0") if entry.startswith(name) for mark in entry[len(name) :].split()]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone in the meantime, or not ours to read
        return b""
