"""Owns what a run leaves behind in the process: threads, child processes, open descriptors. Knows nothing of tasks.

Where the system does not tell (no /proc, no /dev/fd), nothing is reported as left.
"""

import os
import threading
from dataclasses import dataclass

from ..abort import threads as pool
from .inject_chain import short, thread_place

__all__ = ["Left", "Stock", "left_since", "take_stock"]

PROC = "/proc"
DESCRIPTORS = "/dev/fd"


@dataclass(frozen=True, slots=True)
class Stock:
    """What there is at one moment."""

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    descriptors: frozenset[str]
    abandoned: frozenset[object]


@dataclass(frozen=True, slots=True)
class Left:
    """What has come since, and has not gone: in words."""

    threads: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    descriptors: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.threads or self.processes or self.descriptors)


def take_stock() -> Stock:
    """What there is now."""
    return Stock(frozenset(threading.enumerate()), _children(), _descriptors(), frozenset(pool._abandoned))


def left_since(before: Stock, *, executor_idle: bool) -> Left:
    """What is there now and was not there before. Idle threads of pools do not count."""
    pools = ("safepoint-", "asyncio_") if executor_idle else ("safepoint-",)
    threads = [
        f"{thread.name} at {thread_place(thread.ident)}"
        for thread in threading.enumerate()
        if thread not in before.threads and not thread.name.startswith(pools)
    ]
    threads += [
        f"{name_of_function(call.fn)}, abandoned by run_in_thread"
        for call in list(pool._abandoned)
        if call not in before.abandoned
    ]
    return Left(
        tuple(threads),
        tuple(f"pid {pid}: {_command(pid)}" for pid in sorted(_children() - before.processes)),
        tuple(map(_target, sorted(_descriptors() - before.descriptors, key=int))),
    )


def name_of_function(function: object) -> str:
    """Its name, and where it is defined if that can be known."""
    name = getattr(function, "__qualname__", None) or repr(function)
    code = getattr(function, "__code__", None)
    return f"{name} ({short(code.co_filename)}:{code.co_firstlineno})" if code else name


def _children() -> frozenset[int]:
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


def _command(pid: int) -> str:
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


def _target(fd: str) -> str:
    try:
        return f"{fd} ({os.readlink(f'{DESCRIPTORS}/{fd}')})"
    except OSError:
        return fd
