"""Owns what is left when a run ends: tasks, threads and processes that go on, each of which gets a line in the receipt.

Looked for once, when a run that was stopped or has failed is about to say so. What a leaf of the run started is found
by the context variable that tasks and threads inherit. What can be seen, but not whose it is, is `unknown`.
"""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import Context as Variables
from types import FrameType
from typing import Any

from ...abort.guard import end_tasks
from ...abort.process_group import PROC
from ...abort.process_tree import children_of_thread, identify, name_of
from ...abort.resource_account import current_account
from ..code_location import place, thread_place
from ..receipt import ReceiptBuilder
from .programs import seen

__all__ = ["end_tasks_of", "has_tasks", "name_leftovers", "running_behind"]

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# Where a function that was handed to a thread is called: the local variable that holds its context.
CONTEXT_NAME = "context"
UNSEEN = "started while the run was on, by code that cannot be seen (uvloop, multiprocessing, C); by whom is not known"


async def name_leftovers(receipt_builder: ReceiptBuilder, begun: int) -> None:
    """Write a line for all that goes on although the run of this ledger ends now.

    Args:
        ledger: The run's.
        begun: When the run began, in clock ticks since boot: dates move, and tests have clocks of their own.
    """
    receipt_builder.update()
    tasks = _tasks(receipt_builder)
    for _ in range(2):  # one that was told to end in this very moment may do so
        if tasks:
            await asyncio.sleep(0)
            tasks = [(leaf, task) for leaf, task in tasks if not task.done()]
    for leaf, task in tasks:
        line = receipt_builder.begin(f"{leaf.operation}/{_name_of(task)}", "task", owned=True)
        line.end("still_running", where=place(task), note="a task that it started")
        task.add_done_callback(lambda _, line=line: line.end("finished"))  # type: ignore[misc]
    for leaf, thread in _threads(receipt_builder):
        line = receipt_builder.begin(f"{leaf.operation}/{_thread_name(thread)}", "thread", owned=True)
        line.end("still_running", where=thread_place(thread), note="a thread behind it")
    for pid in _unseen_children(begun):
        process = identify(pid)
        if process is not None:
            line = receipt_builder.begin(name_of(pid), "program", owned=True)
            line.pid, line.pid_started = process.pid, process.started
            line.end("unknown", note=UNSEEN)


async def end_tasks_of(leaf: object, seconds: float) -> None:
    """Cancel the tasks that this leaf has left behind, and wait for them at most so long."""
    tasks = [task for owner, task in _tasks(None) if owner is leaf]
    if tasks:
        await end_tasks(tasks, seconds)


def has_tasks(leaf: object) -> bool:
    """Whether a task that this leaf has started still runs."""
    return any(owner is leaf for owner, _ in _tasks(None))


def running_behind(callbacks: object) -> "Future[Any] | None":
    """The call in an executor's thread that an interrupted wait was for, if it runs.

    Args:
        callbacks: Those of the future that the task waited for, as they were before the wait was interrupted. One of
            them passes a cancellation on to the executor's future; a call that runs takes no notice of it.
    """
    if not isinstance(callbacks, list) or len(callbacks) < 2:  # the usual case: only the task itself waits
        return None
    for entry in callbacks:
        callback = entry[0]
        names = getattr(getattr(callback, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, getattr(callback, "__closure__", None) or (), strict=False):
            if name == "source" and isinstance(cell.cell_contents, Future) and cell.cell_contents.running():
                return cell.cell_contents
    return None


def _tasks(receipt_builder: ReceiptBuilder | None) -> "list[tuple[Any, asyncio.Task[Any]]]":
    """The tasks of this loop that leaves of this run have started, each with its leaf. None: of any run."""
    here = asyncio.current_task()
    found = []
    for task in asyncio.all_tasks():
        variables = _variables(task)
        leaf: Any = None if variables is None or task is here else variables.get(current_account)
        if leaf is None or (receipt_builder is not None and leaf.receipt_builder is not receipt_builder):
            continue
        if leaf.task is not task and not _is_ours(task):
            found.append((leaf, task))
    return found


def _variables(task: "asyncio.Task[Any]") -> Variables | None:
    get: Any = getattr(task, "get_context", None)
    if get is not None:
        found: Variables | None = get()
        return found
    # Python 3.11 has no way to ask a task; but the garbage collector knows what it holds.
    return next((held for held in gc.get_referents(task) if isinstance(held, Variables)), None)


def _is_ours(task: "asyncio.Task[Any]") -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(PACKAGE)


def _name_of(task: "asyncio.Task[Any]") -> str:
    coroutine: Any = task.get_coro()
    return str(getattr(coroutine, "__name__", None) or task.get_name())


def _threads(receipt_builder: ReceiptBuilder) -> Iterator[tuple[Any, int]]:
    """The threads of other libraries' pools that run a function in the context of a leaf of this run."""
    here = threading.get_ident()
    for thread, frame in sys._current_frames().items():
        if thread == here:
            continue
        variables = _called_in(frame)
        leaf: Any = None if variables is None else variables.get(current_account)
        if leaf is not None and leaf.receipt_builder is receipt_builder and not leaf.knows_thread(thread):
            yield leaf, thread


def _called_in(frame: FrameType | None) -> Variables | None:
    """The context in which a pool's thread calls a function now; None if it is idle, or does no such thing."""
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
    """Children of this process that began during the run, and whose start nobody saw."""
    try:
        threads = os.listdir(f"{PROC}/self/task")
    except OSError:  # not this system
        return []
    children = {pid for thread in threads for pid in children_of_thread(int(thread)) or ()} - seen()
    return [pid for pid in children if (process := identify(pid)) is not None and process.started >= begun]
