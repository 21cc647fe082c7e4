"""Owns what the system knows of a process group: who is in it, who came out of it, and how to signal it.

A zombie is not counted: it runs nothing, and in a container without an init nobody may ever collect it.
"""

import os
from collections.abc import Iterator

__all__ = ["MARK", "marked", "members", "send"]

# Children inherit it, also those that leave the group: that is how they are found.
MARK = "SAFEPOINT_PROCESS"
PROC = "/proc"


def members(group: int) -> list[int]:
    """The living processes of this group."""
    if not os.path.isdir(f"{PROC}/self"):
        return [group] if send(group, 0) else []
    return [pid for pid, pgrp in _living() if pgrp == group]


def marked(mark: str) -> list[int]:
    """The living processes that descend from the one started with this mark, in the group or not."""
    entry = f"{MARK}={mark}".encode()
    return [pid for pid, _ in _living() if entry in _read(f"{PROC}/{pid}/environ")]


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
    if not os.path.isdir(PROC):
        return
    for name in os.listdir(PROC):
        if name.isdigit():
            # The command's name, in parentheses, may itself hold blanks and parentheses.
            fields = _read(f"{PROC}/{name}/stat").rpartition(b")")[2].split()
            if fields and fields[0] not in (b"Z", b"X"):
                yield int(name), int(fields[2])


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone in the meantime, or not ours to read
        return b""
