"""Finding the place where a task or a thread is stuck: file and line, for people.

It reads the frames of running code, which may move on meanwhile, so an answer is a good guess.

A task is in one of two states, which are read in different ways. A task that *waits* is a chain of suspended
coroutines, each of which knows what it awaits. A task that *runs* has no such chain (`cr_await` is None while a
coroutine executes): its frames are on the stack of the thread that runs its event loop. A task that runs for seconds
blocks its loop and every other task on it; those wait for it, whatever else they seem to wait for.
"""

import ast
import asyncio
import functools
import gc
import itertools
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import TypeVar

from ...abort.reason import owner_of
from .loaded_source import parse_source

__all__ = ["blocking_place", "place", "swallower", "thread_place"]

_WRAPPERS = {"async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"}
_RUN_CALLBACK = asyncio.Handle._run.__code__
_SWALLOWS = {"BaseException", "CancelledError"}


T = TypeVar("T")


def place(task: "asyncio.Task[T]") -> str | None:
    """Return where a task is: the innermost line of the user's own code.

    If the task waits while something else blocks its event loop, the text also names that, because the task cannot go
    on until the loop is free.
    """
    if (running := blocking_place(task)) is not None:
        return running
    chain = list(await_chain(task))
    if not chain:
        return None
    own = [entry for entry in chain if not _is_library(entry[0].co_filename)]
    waits = _text(*(own or chain)[-1])
    busy = _busy_with(task.get_loop())
    return waits if busy is None else f"{waits} (it waits; the event loop is busy with {busy})"


def blocking_place(task: "asyncio.Task[T]") -> str | None:
    """Return where a task is that runs now, and so blocks its event loop. None if it waits or has ended.

    In the thread of that event loop the result is always None, because the caller itself is what runs there.
    """
    if _is_this_threads(task.get_loop()):
        return None
    frames = _running_frames(task)
    return _innermost(frames) if frames else None


def thread_place(thread_id: int) -> str | None:
    """Return where a thread is: the innermost line of the user's own code, and the place in a library it has called."""
    frames = list(_stack(sys._current_frames().get(thread_id)))
    return _innermost(frames) if frames else None


def swallower(task: "asyncio.Task[T]") -> str | None:
    """Return the innermost `except` in the functions of a task that may have swallowed a cancellation.

    For a task that runs, only an `except` in which it is just now counts: an earlier one may have caught something
    else, and a task that blocks its event loop has most likely not been interrupted yet.
    """
    if not _is_this_threads(task.get_loop()) and (frames := _running_frames(task)):
        for frame in frames:
            code = frame.f_code
            if not _is_library(code.co_filename):
                for handler, end in _handlers(code.co_filename, code.co_firstlineno):
                    if handler <= frame.f_lineno <= end:
                        return f"{code.co_filename}:{handler} in {code.co_name}"
        return None
    for code, line in reversed(list(await_chain(task))):
        if not _is_library(code.co_filename):
            for handler, _ in _handlers(code.co_filename, code.co_firstlineno):
                if handler <= line or _loops_back(code.co_filename, handler, line):
                    return f"{code.co_filename}:{handler} in {code.co_name}"
    return None


def await_chain(task: "asyncio.Task[T]") -> Iterator[tuple[CodeType, int]]:
    """Yield the functions in which a task waits, outermost first, each with its line."""
    awaited: object = _coroutine(task)
    while awaited is not None:
        frame = _frame_of(awaited, "cr_frame", "ag_frame", "gi_frame")
        if frame is not None:
            yield frame.f_code, frame.f_lineno
        awaited = _first_of(awaited, "cr_await", "ag_await", "gi_yieldfrom")
        if (
            type(awaited).__name__ in _WRAPPERS
        ):  # they have no attribute for what they wrap; the garbage collector knows
            awaited = next((ref for ref in gc.get_referents(awaited) if _frame_of(ref, "cr_frame", "ag_frame")), None)


def _running_frames(task: "asyncio.Task[T]") -> list[FrameType]:
    """The frames of a running task on the stack of its thread, innermost first; empty if it does not run.

    The task's part of the stack ends with the frame of its own coroutine. Searching all threads for that frame also
    finds the thread, which uvloop does not expose.
    """
    coroutine = _coroutine(task)
    outermost = _frame_of(coroutine, "cr_frame", "gi_frame")
    if outermost is None or not _first_of(coroutine, "cr_running", "gi_running"):
        return []
    for innermost in sys._current_frames().values():
        frames = list(_stack(innermost))
        if outermost in frames:
            return frames[: frames.index(outermost) + 1]
    return []


def _busy_with(loop: asyncio.AbstractEventLoop) -> str | None:
    """What the event loop of another thread executes now: a task or a callback, with its place. None if it waits."""
    if _is_this_threads(loop):
        return None  # it executes the caller
    if (task := asyncio.current_task(loop)) is not None:
        frames = _running_frames(task)
        return f"task {task.get_name()!r} at {_innermost(frames)}" if frames else None
    thread_id = getattr(loop, "_thread_id", None)  # uvloop has no such attribute, so its callbacks are not found
    frames = list(_stack(sys._current_frames().get(thread_id))) if thread_id is not None else []
    callback = list(itertools.takewhile(lambda frame: frame.f_code is not _RUN_CALLBACK, frames))
    return f"a callback at {_innermost(callback)}" if 0 < len(callback) < len(frames) else None


def _is_this_threads(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of a stack, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _innermost(frames: Sequence[FrameType]) -> str:
    """The innermost line of the user's own code, and the place in a library that it has called."""
    inner = _text(frames[0].f_code, frames[0].f_lineno)
    own = next((frame for frame in frames if not _is_library(frame.f_code.co_filename)), frames[0])
    return inner if own is frames[0] else f"{_text(own.f_code, own.f_lineno)} (in {inner})"


def _coroutine(task: "asyncio.Task[T]") -> object:
    """The coroutine of a task; None if it is done, because Python 3.12.1 crashes for a task that has ended eagerly."""
    return None if task.done() else task.get_coro()


def _first_of(obj: object, *names: str) -> object:
    return next((found for name in names if (found := getattr(obj, name, None)) is not None), None)


def _frame_of(obj: object, *names: str) -> FrameType | None:
    frame = _first_of(obj, *names)
    return frame if isinstance(frame, FrameType) else None


def _text(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} in {code.co_name}"


@functools.cache
def _is_library(file: str) -> bool:
    return file.startswith("<") or owner_of(file) != "user"


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        with open(file, encoding="utf-8") as source:
            return parse_source(source.read())
    except (OSError, ValueError):
        return None


def _function(file: str, first_line: int) -> ast.AST | None:
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorated = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if decorated <= first_line <= node.lineno:
                return node
    return None


def _handlers(file: str, first_line: int) -> list[tuple[int, int]]:
    """The first and last lines of the handlers in this function that catch a cancellation and do not re-raise it."""
    function = _function(file, first_line)
    if function is None:
        return []
    lines = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler) and _catches(node.type) and not _raises(node)
    ]
    return sorted(lines, reverse=True)


def _catches(kind: ast.expr | None) -> bool:
    match kind:
        case None:
            return True
        case ast.Tuple(elts=kinds):
            return any(_catches(each) for each in kinds)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _SWALLOWS
        case _:
            return False


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def _loops_back(file: str, handler: int, line: int) -> bool:
    """Whether a loop contains both lines, so that the handler may have run before a line above it."""
    tree = _tree(file)
    return tree is not None and any(
        isinstance(node, ast.While | ast.For | ast.AsyncFor)
        and node.lineno <= min(handler, line)
        and max(handler, line) <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )
