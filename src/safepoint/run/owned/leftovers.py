"""Owns what remains when a run ends: tasks, threads and processes that still run. Each gets an entry in the receipt.

They are searched once, when a run that was stopped or has failed is about to report it. The context variable that
tasks and threads inherit shows which of them leaves of the run have started. A process whose starter cannot be found
is listed with the fate `unknown`.
"""

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import Context as Variables
from types import FrameType
from typing import Protocol, cast

from ...abort.guard import end_tasks
from ...abort.resource_account import current_account
from ...process.group import PARENT, PROC, STARTED, has_procfs, members, stat
from ...process.tree import children_of_thread, identify, name_of
from ..interrupt.code_location import place, thread_place
from ..receipt_builder import ReceiptBuilder
from .programs import seen_pids

__all__ = ["end_tasks_of", "executor_call_behind", "has_tasks", "name_leftovers"]

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# The local variable that holds the context of a function, in the frame of anyio that calls it in a thread.
CONTEXT_NAME = "context"
UNSEEN = "started during the run by unknown code: uvloop, multiprocessing or C code, whose starts cannot be seen"

ORPHANED = "the program that started it has ended, so it is not known whose it is; it began during the run"

# Tasks that no leaf has started, as the references that asyncio keeps of all tasks.
_unowned: "set[weakref.ref[asyncio.Task[object]]]" = set()

# Linux: also children that end without SIGCHLD, which C code may make with clone() (`__WALL`).
ANY_CHILD = 0x40000000 if sys.platform == "linux" else 0


class StartingLeaf(Protocol):
    """The part of a leaf that is needed to name what it has started."""

    operation: str
    task: "asyncio.Task[object] | None"

    @property
    def receipt_builder(self) -> ReceiptBuilder: ...

    def knows_thread(self, thread: int) -> bool: ...


async def name_leftovers(receipt_builder: ReceiptBuilder, begun: int) -> None:
    """Write an entry for everything that still runs although the run ends now.

    Args:
        receipt_builder: The receipt builder of the run.
        begun: When the run began, in clock ticks since boot. A date could be changed, and tests use other clocks.
    """
    receipt_builder.update()
    tasks = _tasks(receipt_builder)
    for _ in range(2):  # a task that was cancelled just now needs a turn of the loop to end
        if tasks:
            await asyncio.sleep(0)
            tasks = [(leaf, task) for leaf, task in tasks if not task.done()]
    for leaf, task in tasks:
        entry = receipt_builder.begin(f"{leaf.operation}/{_name_of(task)}", "task", owned=True)
        entry.end("still_running", where=place(task), note="a task that it started")
        task.add_done_callback(lambda _, entry=entry: entry.end("finished"))  # type: ignore[misc]
    for leaf, thread in _threads(receipt_builder):
        entry = receipt_builder.begin(f"{leaf.operation}/{_thread_name(thread)}", "thread", owned=True)
        entry.end("still_running", where=thread_place(thread), note="a thread that works for it")
    unknown = [(pid, UNSEEN) for pid in _unseen_children(begun)]
    if receipt_builder.programs_since is not None:
        unknown += [(pid, ORPHANED) for pid in _orphans(receipt_builder.programs_since)]
    for pid, note in unknown:
        process = identify(pid)
        if process is not None:
            entry = receipt_builder.begin(name_of(pid), "program", owned=True)
            entry.pid, entry.pid_started = process.pid, process.started
            entry.end("unknown", note=note)


async def end_tasks_of(leaf: object, seconds: float) -> None:
    """Cancel the tasks that this leaf has started and not awaited, and wait for them, at most `seconds`."""
    tasks = [task for owner, task in _tasks(None) if owner is leaf]
    if tasks:
        await end_tasks(tasks, seconds)


def has_tasks(leaf: object) -> bool:
    """Whether a task that this leaf has started still runs."""
    return any(owner is leaf for owner, _ in _tasks(None))


def executor_call_behind(callbacks: object) -> "Future[object] | None":
    """The call in an executor's thread for which an interrupted task waited, if it still runs.

    Args:
        callbacks: The callbacks of the awaited future, from before the interruption. If the future stands for a call
            in an executor, one of them passes a cancellation on to the executor's future. A call that runs ignores it.
    """
    if not isinstance(callbacks, list) or len(callbacks) < 2:  # the usual case: the task's own callback alone
        return None
    for entry in callbacks:
        callback = entry[0]
        names = getattr(getattr(callback, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, getattr(callback, "__closure__", None) or (), strict=False):
            if name == "source" and isinstance(cell.cell_contents, Future) and cell.cell_contents.running():
                return cell.cell_contents
    return None


def _tasks(receipt_builder: ReceiptBuilder | None) -> "list[tuple[StartingLeaf, asyncio.Task[object]]]":
    """The tasks of this loop that leaves of a run have started, each with its leaf.

    Args:
        receipt_builder: The receipt builder of the run; None for any run.
    """
    here = asyncio.current_task()
    return [
        (leaf, task)
        for leaf, task in _tasks_of_leaves(asyncio.get_running_loop())
        if (receipt_builder is None or leaf.receipt_builder is receipt_builder)
        and task is not here
        and leaf.task is not task
        and not _is_ours(task)
    ]


def _tasks_of_leaves(loop: asyncio.AbstractEventLoop) -> "list[tuple[StartingLeaf, asyncio.Task[object]]]":
    """The tasks of the running loop whose context names a leaf, each with it.

    A thousand runs that are stopped at once look for tasks a thousand times, so tasks without a leaf are remembered. A
    task gets the leaf that started it when it is created. Without one, it later only names leaves that it runs itself,
    and these are none that it was started by.
    """
    global _unowned
    if sys.version_info >= (3, 12):  # reading a context is quick, and the set of all tasks is not always to be had
        pairs = ((_leaf_in(task.get_context()), task) for task in asyncio.all_tasks(loop))
        return [(leaf, task) for leaf, task in pairs if leaf is not None]
    everything: set[weakref.ref[asyncio.Task[object]]]
    everything = asyncio.tasks._all_tasks.data  # type: ignore[attr-defined]  # the set behind `all_tasks()`
    unowned, found = _unowned & everything, []
    for ref in everything - unowned:
        task = ref()
        if task is None or task.get_loop() is not loop:
            continue
        leaf = _leaf_in(_variables(task))
        if leaf is None:
            unowned.add(ref)
        elif not task.done():
            found.append((leaf, task))
    _unowned = unowned  # if another thread does the same at this moment, one of the two looks again later
    return found


def _leaf_in(variables: Variables | None) -> StartingLeaf | None:
    # Only leaves are set as accounts: see run/leaf.py.
    return None if variables is None else cast("StartingLeaf | None", variables.get(current_account))


def _variables(task: "asyncio.Task[object]") -> Variables | None:
    # Tasks of Python 3.11 have no method for it, but the garbage collector can list what they refer to.
    for held in gc.get_referents(task):
        if type(held) is Variables:
            return held
    return None


def _is_ours(task: "asyncio.Task[object]") -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(PACKAGE)


def _name_of(task: "asyncio.Task[object]") -> str:
    return str(getattr(task.get_coro(), "__name__", None) or task.get_name())


def _threads(receipt_builder: ReceiptBuilder) -> Iterator[tuple[StartingLeaf, int]]:
    """The threads of other libraries' pools that run a function in the context of a leaf of this run."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]  # this very frame: it would refer to itself, and to all that it refers to
    for thread, frame in frames.items():
        leaf = _leaf_in(_context_of_call(frame))
        if leaf is not None and leaf.receipt_builder is receipt_builder and not leaf.knows_thread(thread):
            yield leaf, thread


def _context_of_call(frame: FrameType | None) -> Variables | None:
    """The context of the function that a pool's thread is running; None if it is idle or no such thread."""
    callee = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module == "anyio._backends._asyncio" and frame.f_code.co_name == "run" and callee not in ("queue", ""):
            variables = frame.f_locals.get(CONTEXT_NAME)
            if isinstance(variables, Variables):
                return variables
        callee, frame = module, frame.f_back
    return None


def _thread_name(thread: int) -> str:
    return next((each.name for each in threading.enumerate() if each.ident == thread), "thread")


def _unseen_children(begun: int) -> list[int]:
    """The children of this process that began during the run and whose start the hook has not seen."""
    if not _has_children():
        return []
    try:
        threads = os.listdir(f"{PROC}/self/task")
    except OSError:  # this system has no /proc
        return []
    children = {pid for thread in threads for pid in children_of_thread(int(thread)) or ()} - seen_pids()
    return [pid for pid in children if (process := identify(pid)) is not None and process.started >= begun]


def _has_children() -> bool:
    """Whether this process may have a child: one system call, instead of a file for each thread."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | ANY_CHILD)  # it takes no child away
    except ChildProcessError:
        return False
    except (AttributeError, OSError):  # not on this system, or forbidden in this sandbox
        pass
    return True


def _orphans(since: int) -> list[int]:
    """The processes of our group that began since then, and whose parent has ended: `sh -c "server &"` leaves one.

    A program inherits our process group and keeps it when its parent has ended. It is then no child of ours any more.
    """
    if not has_procfs():
        return []
    group = set(members(os.getpgrp()))
    found = []
    for pid in group:
        fields = stat(pid)
        # A clock tick of rounding, as for forks.
        if fields and int(fields[STARTED]) >= since - 1 and int(fields[PARENT]) not in group:
            found.append(pid)
    return found
