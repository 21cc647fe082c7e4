"""Owns how it is known what a leaf starts: an audit hook of the interpreter.

The hook runs in the thread and in the context of the code that starts something, so a context variable tells which leaf
that is. It is installed with the first leaf, not at import, and can never be removed: for whatever is no start of a
program, connection or thread it costs one look into a set.

Not seen: programs of uvloop, processes that multiprocessing starts by spawn or forkserver, C code that forks, threads
of C libraries.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from ...abort.resource_account import account_here
from ..interrupt import InterruptibleCall
from .account import ResourceAccount
from .executor import install_helpers, is_helper
from .programs import FORKS, Program, see
from .starter import starter_of

__all__ = ["install"]

_FORKS = frozenset({"os.system", "os.posix_spawn", "os.fork", "os.forkpty"})
_THREADS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_WATCHED = _FORKS | _THREADS | {"subprocess.Popen", "socket.connect"}

# Pools of worker processes: one that is killed breaks or hangs the pool for everybody who uses it.
_POOLS = ("multiprocessing", "concurrent.futures.process", "loky", "joblib")
_POOL_NOTE = "a process of a pool, which a stop never ends"
# Our own supervisors end what they start, and report what survives.
_SUPERVISORS = ("safepoint.abort.processes", "safepoint.run.isolate", "safepoint.worker.executors")


class HookLeaf(Protocol):
    """The leaf, as the hook sees it."""

    task: "asyncio.Task[Any] | None"

    def own(self) -> ResourceAccount:
        """Its account, made if there is none."""
        ...

    def call_here(self) -> "InterruptibleCall[Any] | None":
        """The function of the leaf that runs in this thread."""
        ...

    def helper(self, fn: Callable[..., Any], *, thread: threading.Thread) -> Callable[..., Any]:
        """It starts a thread: what to run there instead of its function."""
        ...

    def refuse_if_stopped(self, what: str) -> None:
        """Raises: AbortInterrupt, where the leaf is being interrupted and that has not reached the body yet."""
        ...


_installed: list[None] = []  # one entry, once it is there


def install() -> None:
    """Install the hook, once per process. A forked child inherits it."""
    if not _installed:
        _installed.append(None)
        sys.addaudithook(_hook)
        install_helpers()


def _hook(
    event: str,
    args: tuple[Any, ...],
    watched: frozenset[str] = _WATCHED,
    finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    # The last two are arguments because the hook outlives this module: at the end of the interpreter the globals are
    # gone, and so is everything that an account is made of.
    if event not in watched or finalizing():
        return
    FORKS.find_here()
    leaf: Any = account_here()
    if event == "socket.connect":
        if leaf is not None:
            leaf.refuse_if_stopped("connections")
    elif event in _THREADS:
        if leaf is not None:
            _started_thread(leaf, args[0])
    else:
        _starts_program(leaf, event, sys._getframe(1))


def _starts_program(leaf: HookLeaf | None, event: str, frame: FrameType) -> None:
    popen = frame.f_locals.get("self") if event == "subprocess.Popen" else None
    if popen is not None:
        see(popen)
    module = _starting_module(frame)
    if leaf is None or module in _SUPERVISORS:
        return
    leaf.refuse_if_stopped("programs")
    keep = _POOL_NOTE if module.startswith(_POOLS) else ""
    starter = starter_of(frame, leaf.task, leaf.call_here(), awaits=module.startswith("asyncio"))
    if popen is not None:
        owned = leaf.own()
        owned.add_program(Program(_program_name(popen, frame), popen=popen, keep=keep or owned.keeps, starter=starter))
    elif frame.f_globals.get("__name__") != "subprocess":  # its `Popen` was told of before
        leaf.own().expect_program(keep, starter)


def _started_thread(leaf: HookLeaf, function: Any) -> None:
    thread = getattr(function, "__self__", None)
    if isinstance(thread, threading.Thread) and is_helper(thread):
        thread.run = leaf.helper(thread.run, thread=thread)  # type: ignore[method-assign]


def _starting_module(frame: FrameType | None) -> str:
    """The module whose code starts the program: the first one outside of `subprocess` itself."""
    while frame is not None and frame.f_globals.get("__name__") in ("subprocess", "os"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__") or "")


def _program_name(popen: Any, frame: FrameType) -> str:
    command = frame.f_locals.get("args", getattr(popen, "args", "program"))
    first = command if isinstance(command, str | bytes | os.PathLike) else next(iter(command), "program")
    words = os.fsdecode(first).split()
    return os.path.basename(words[0]) if words else "program"
