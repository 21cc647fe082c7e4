"""Owns the audit hook of the interpreter that shows what a leaf starts.

Python raises an audit event before it starts a program, a thread or a connection. The hook runs at that moment, in the
thread and in the context of the code that does it. So a context variable gives the leaf (`account_here()`), and the
frames below the hook show the rest: `subprocess.Popen` raises the event inside a method, whose local `self` is the
`Popen` object, and the first frame outside of `subprocess` and `os` is the code that starts the program. Nothing is
guessed from "new processes since": a process of somebody else could be among them.

Three kinds of starts need different answers:

- `Popen`: the object is put on the account before the process exists, and its pid is read from it later.
- `os.fork`, `os.system`, `os.posix_spawn`: there is no object. The children of this thread are compared before and
  after (`programs.Forks`). The event of a `Popen` is followed by one of these, which must not count twice.
- A leaf that is being interrupted must start nothing more: the hook raises AbortInterrupt, so the start fails.

The hook is installed with the first leaf, not at import, because it cannot be removed. For all other audit events it
costs one look-up in a set. It does not see programs of uvloop, processes that multiprocessing starts by spawn or
forkserver, and forks and threads of C code.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Literal, Protocol, TypeVar, cast

from ...abort.resource_account import account_here, is_detached
from ..interrupt import InterruptibleCall
from .account import ResourceAccount
from .connections import leave_alone
from .executor import install_helpers, is_helper
from .programs import FORKS, Program, mark_seen
from .starter import starter_of

__all__ = ["install"]

T = TypeVar("T")

_FORKS = frozenset({"os.system", "os.posix_spawn", "os.fork", "os.forkpty"})
_THREADS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_WATCHED = _FORKS | _THREADS | {"subprocess.Popen", "socket.connect"}

# Pools of worker processes: killing a worker breaks or hangs the pool for all of its users.
_POOLS = ("multiprocessing", "concurrent.futures.process", "loky", "joblib")
_POOL_NOTE = "a process of a pool, which a stop never ends"
# Where Safepoint starts processes that it supervises: it ends them, and reports what survives.
_SUPERVISORS = ("safepoint.process.child",)


class HookLeaf(Protocol):
    """The part of a leaf that the hook uses."""

    task: "asyncio.Task[object] | None"

    def ensure_account(self) -> ResourceAccount:
        """The account of the leaf, made if it has none."""
        ...

    def call_here(self) -> "InterruptibleCall[object] | None":
        """The function of the leaf that runs in this thread."""
        ...

    def helper(self, fn: Callable[..., T], *, thread: threading.Thread) -> Callable[..., T]:
        """Wrap the function of a thread that the leaf starts."""
        ...

    def refuse_if_stopped(self, what: Literal["programs", "connections"]) -> None:
        """Raise AbortInterrupt if the leaf is being interrupted and its body does not know yet."""
        ...


_installed: list[None] = []  # one entry once the hook is installed


def install() -> None:
    """Install the hook, once per process. A forked child inherits it."""
    if not _installed:
        _installed.append(None)
        sys.addaudithook(_hook)
        install_helpers()


def _hook(
    event: str,
    args: tuple[object, ...],
    watched: frozenset[str] = _WATCHED,
    finalizing: Callable[[], bool] = sys.is_finalizing,
) -> None:
    # The last two are default arguments because the hook outlives this module: when the interpreter ends, it clears
    # the module's globals, but still calls the hook.
    if event not in watched or finalizing():
        return
    FORKS.find_here()
    leaf = cast("HookLeaf | None", account_here())  # only leaves are set as accounts: see run/leaf.py
    if event == "socket.connect":
        if leaf is not None:
            leaf.refuse_if_stopped("connections")
        elif is_detached():
            leave_alone(args[0])
    elif event in _THREADS:
        if leaf is not None:
            _started_thread(leaf, args[0])
    else:
        _starts_program(leaf, event, sys._getframe(1))


def _starts_program(leaf: HookLeaf | None, event: str, frame: FrameType) -> None:
    popen = frame.f_locals.get("self") if event == "subprocess.Popen" else None
    if popen is not None:
        mark_seen(popen)
    module = _starting_module(frame)
    if leaf is None or module in _SUPERVISORS:
        return
    leaf.refuse_if_stopped("programs")
    keep = _POOL_NOTE if module.startswith(_POOLS) else ""
    starter = starter_of(frame, leaf.task, leaf.call_here(), awaits=module.startswith("asyncio"))
    if popen is not None:
        account = leaf.ensure_account()
        keep = keep or account.keep_reason
        account.add_program(Program(_program_name(popen, frame), popen=popen, keep_reason=keep, starter=starter))
    elif frame.f_globals.get("__name__") != "subprocess":  # otherwise the event of its `Popen` came before
        leaf.ensure_account().expect_program(keep, starter)


def _started_thread(leaf: HookLeaf, function: object) -> None:
    thread = getattr(function, "__self__", None)
    if isinstance(thread, threading.Thread) and is_helper(thread):
        thread.run = leaf.helper(thread.run, thread=thread)  # type: ignore[method-assign]


def _starting_module(frame: FrameType | None) -> str:
    """The module whose code starts the program: the first one outside of `subprocess` and `os`."""
    while frame is not None and frame.f_globals.get("__name__") in ("subprocess", "os"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__") or "")


def _program_name(popen: object, frame: FrameType) -> str:
    command = frame.f_locals.get("args", getattr(popen, "args", "program"))
    first = command if isinstance(command, str | bytes | os.PathLike) else next(iter(command), "program")
    words = os.fsdecode(first).split()
    return os.path.basename(words[0]) if words else "program"
