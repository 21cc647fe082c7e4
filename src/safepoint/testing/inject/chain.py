"""Owns where code is: the chain of awaits of a suspended task, the stack of running code, and their text.

A chain is a list of (code, line) pairs, outermost first. Text is made of it only when needed. Knows nothing of aborts.
"""

import asyncio
import functools
import gc
import os
import sys
import types
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import TypeAlias

__all__ = ["Chain", "place", "running", "shown", "suspended", "thread_place"]

Chain: TypeAlias = list[tuple[CodeType, int]]

LIBRARY = os.path.dirname(os.__file__) + os.sep
PACKAGES = os.sep + "site-packages" + os.sep
HERE = os.path.dirname(os.path.abspath(__file__))
PRIMITIVE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "abort") + os.sep
MACHINERY = HERE + os.sep
CLOCK = os.path.join(os.path.dirname(HERE), "clock.py")
DEPTH = 200
DRIVEN = (types.CoroutineType, types.AsyncGeneratorType, types.GeneratorType)


def suspended(awaited: object) -> Chain:
    """The chain of a suspended coroutine, through coroutines, generators, async generators and wrappers of them."""
    chain: Chain = []
    for _ in range(DEPTH):
        if awaited is None or isinstance(awaited, asyncio.Future):
            break
        frame, awaited = _step(awaited)
        if frame is not None:
            chain.append((frame.f_code, frame.f_lineno))
    return chain


def _step(awaited: object) -> tuple[FrameType | None, object]:
    """The frame of an awaitable, and what it waits for in turn."""
    match awaited:
        case types.CoroutineType():
            return awaited.cr_frame, awaited.cr_await
        case types.AsyncGeneratorType():
            return awaited.ag_frame, awaited.ag_await
        case types.GeneratorType():
            return awaited.gi_frame, awaited.gi_yieldfrom
        case _:
            pass
    if (frame := getattr(awaited, "cr_frame", None)) is not None:  # a wrapper, or a compiled coroutine
        return frame, getattr(awaited, "cr_await", None)
    # `asend()` of an async generator and `__await__()` of a coroutine hide what they drive, but the garbage collector
    # can list what they refer to.
    return None, next((each for each in gc.get_referents(awaited) if isinstance(each, DRIVEN)), None)


def running(depth: int = 1) -> Chain:
    """The chain of the running code, from the first frame of its task or thread."""
    chain: Chain = []
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if frame.f_code.co_filename.startswith(MACHINERY) and frame.f_code.co_name in ("send", "throw"):
            break  # the frames further out belong to the event loop
        chain.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    chain.reverse()
    return chain


def place(chain: Sequence[tuple[CodeType, int]]) -> tuple[str, int]:
    """The innermost file and line that belong neither to the standard library nor to `safepoint.abort`."""
    for code, line in reversed(chain):
        if not _plumbing(code.co_filename):
            return code.co_filename, line
    for code, line in reversed(chain):
        if not code.co_filename.startswith(MACHINERY):
            return code.co_filename, line
    return "?", 0


def shown(chain: Iterable[tuple[CodeType, int]]) -> tuple[str, ...]:
    """A chain as text, `file:line function` each, without the frames of this package."""
    return tuple(
        f"{short(code.co_filename)}:{line} {code.co_qualname}"
        for code, line in chain
        if not code.co_filename.startswith(MACHINERY)
    )


def thread_place(ident: int | None) -> str:
    """The place at which a thread is now, as `file:line`."""
    frame = sys._current_frames().get(ident or -1)
    chain: Chain = []
    while frame is not None:
        chain.insert(0, (frame.f_code, frame.f_lineno))
        frame = frame.f_back
    file, line = place(chain)
    return f"{short(file)}:{line}" if chain else "?"


@functools.cache
def short(file: str) -> str:
    """A short path: relative to the working directory, or to the library that contains the file."""
    for root in (LIBRARY.rstrip(os.sep), os.getcwd()):
        if file.startswith(root + os.sep) and PACKAGES not in file:
            return os.path.relpath(file, root)
    return file.rpartition(PACKAGES)[2]


@functools.cache
def _plumbing(file: str) -> bool:
    if file.startswith((PRIMITIVE, MACHINERY, "<")) or file == CLOCK:
        return True
    return file.startswith(LIBRARY) and PACKAGES not in file
