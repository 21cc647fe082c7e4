"""Owns finding the place where something is stuck: file and line, for people. Knows nothing of aborts.

Reads frames of running code, which may move on while one looks: an answer is a good guess at that moment.
"""

import ast
import asyncio
import functools
import gc
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

__all__ = ["place", "swallower", "thread_place"]

_LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep
    for folder in {*sysconfig.get_paths().values(), os.path.dirname(os.path.dirname(__file__))}
    if folder
)
_WRAPPERS = {"async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"}
_SWALLOWS = {"BaseException", "CancelledError"}


def place(task: "asyncio.Task[Any]") -> str | None:
    """Where the task waits: the innermost line of the user's own code in its chain of awaits."""
    chain = list(await_chain(task))
    own = [entry for entry in chain if not _is_library(entry[0].co_filename)]
    return _text(*(own or chain)[-1]) if chain else None


def thread_place(thread_id: int) -> str | None:
    """Where a thread is: the innermost line of the user's own code, and what it has called if that is a library."""
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return None
    inner = _text(frame.f_code, frame.f_lineno)
    own: FrameType | None = frame
    while own is not None and _is_library(own.f_code.co_filename):
        own = own.f_back
    if own is None or own is frame:
        return inner
    return f"{_text(own.f_code, own.f_lineno)} (in {inner})"


def swallower(task: "asyncio.Task[Any]") -> str | None:
    """A handler that may have swallowed a cancellation: the innermost one that could, in the functions of the chain."""
    for code, line in reversed(list(await_chain(task))):
        if not _is_library(code.co_filename):
            for handler in _handlers(code.co_filename, code.co_firstlineno):
                if handler <= line or _loops_back(code.co_filename, handler, line):
                    return f"{code.co_filename}:{handler} in {code.co_name}"
    return None


def await_chain(task: "asyncio.Task[Any]") -> Iterator[tuple[CodeType, int]]:
    """The functions a task is in, outermost first, each with its line."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = _first_of(awaited, "cr_frame", "ag_frame", "gi_frame")
        if frame is not None:
            yield frame.f_code, frame.f_lineno
        awaited = _first_of(awaited, "cr_await", "ag_await", "gi_yieldfrom")
        if type(awaited).__name__ in _WRAPPERS:  # they do not say what they wrap; the garbage collector knows
            awaited = next((ref for ref in gc.get_referents(awaited) if _first_of(ref, "cr_frame", "ag_frame")), None)


def _first_of(obj: object, *names: str) -> Any:
    return next((found for name in names if (found := getattr(obj, name, None)) is not None), None)


def _text(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} in {code.co_name}"


@functools.cache
def _is_library(file: str) -> bool:
    return file.startswith("<") or os.path.realpath(file).startswith(_LIBRARIES)


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        with open(file, encoding="utf-8") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _function(file: str, first_line: int) -> ast.AST | None:
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorated = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if decorated <= first_line <= node.lineno:
                return node
    return None


def _handlers(file: str, first_line: int) -> list[int]:
    """Lines of the handlers in this function that catch a cancellation and do not raise again, last first."""
    function = _function(file, first_line)
    if function is None:
        return []
    lines = [
        node.lineno
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
    """True when a loop holds both lines: then the handler may have run before the line it stands behind."""
    tree = _tree(file)
    return tree is not None and any(
        isinstance(node, ast.While | ast.For | ast.AsyncFor)
        and node.lineno <= min(handler, line)
        and max(handler, line) <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )
