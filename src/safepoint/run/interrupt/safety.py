"""The decision where a thread can be interrupted so that nothing is left held, lost or half cleaned up.

`safe_to_interrupt(frame)` is a pure function of a frame, its code and its callers. It is called in the thread itself,
immediately before the instruction at `frame.f_lasti`, so its answer still holds when the exception is raised.

**Why most instructions are not safe.** An exception discards what the interpreter holds at that moment and what only
the next instruction would record:

- between `lock.acquire()` and the `try:` that follows, the lock is held and no block releases it;
- after the call in `item = inbox.get()`, the item is on the evaluation stack only, and the exception destroys it; after
  the assignment it is in a variable, which dies with the frame;
- inside a `finally`, an `except` or an `__exit__`, the rest of the clean-up is skipped.

So three kinds of places are used, where the value of the last call is not needed: after a statement that is only a
call, at the end of an iteration of a loop, and at the start of a function. They are found in `positions.py`.
Even there the statements around the place, in this frame and in all callers of the tool's own code, must not hold
anything (`statements.py`, `held_locks.py`). docs/interrupting-threads.md lists the rules with examples.
"""

import ast
import dis
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import NamedTuple

from .own_code import CodePosition
from .positions import MAX_CACHED, position_of, reading, safe_positions, statement_at
from .statements import calls_in

__all__ = ["holds_something", "in_clean_up", "safe_to_interrupt", "stack"]

# Functions that acquire or release something, whatever their statements are; and `__del__`, whose exceptions Python
# ignores.
UNTOUCHABLE = {"__enter__", "__exit__", "__aenter__", "__aexit__", "__del__"}
ENTERING = {"__enter__", "__aenter__"}
# Through how many callers the arguments of a function are followed to the call that they came from.
MAX_FOLLOWED_CALLERS = 8
RESUME = dis.opmap["RESUME"]

_call_sites: dict[tuple[CodeType, str, int], "_CallSite"] = {}


def safe_to_interrupt(
    frame: FrameType,
    is_own: Callable[[CodePosition], bool] = lambda frame: True,
    *,
    outermost: CodeType | None = None,
    cut: bool = False,
) -> bool:
    """Whether an exception that is raised before the instruction at `frame.f_lasti` leaves nothing held.

    Args:
        frame: The innermost frame of the thread. It must belong to the tool's own code.
        is_own: Whether a frame belongs to the tool's own code. The sources of libraries are not read.
        outermost: The code that called the tool. Its frame and those around it are ignored.
        cut: Whether what the tool was blocked in was ended from outside. Its result is not whole then, so the exception
            comes before the tool can use the result, except in clean-up code.
    """
    at_start, positions = _is_at_start(frame), safe_positions(frame)
    if not at_start and frame.f_lasti not in (positions.cut if cut else positions.safe):
        return False
    frames = stack(frame, outermost)
    if any(_is_untouchable(each, is_own, cut) for each in frames):
        return False
    own = [caller for caller in frames[1:] if is_own(caller)]
    for caller in own:
        site = _call_site(caller)
        if site.cut_forbidden or site.holds or (not cut and site.cleans_up):
            return False
    return cut or not at_start or not _gets_received_value(own)


class _CallSite(NamedTuple):
    """What is known about a caller while the function that it called runs.

    Attributes:
        cleans_up: It is in clean-up code.
        cut_forbidden: It is in clean-up code that not even a cut may leave.
        holds: It holds something that no block releases yet.
        passes_received: It passes a value that it has just received as an argument. None if it passes on what it was
            itself called with.
    """

    cleans_up: bool
    cut_forbidden: bool
    holds: bool
    passes_received: bool | None


def in_clean_up(frames: Iterable[CodePosition], is_own: Callable[[CodePosition], bool], *, cut: bool = False) -> bool:
    """Whether one of the frames is in clean-up code.

    Args:
        frames: The frames of a thread, or copies of their positions.
        is_own: Whether a frame belongs to the tool's own code.
        cut: Count only clean-up code that may not even be left if what the thread is blocked in is ended from outside.
    """
    for each in frames:
        if _is_untouchable(each, is_own, cut):
            return True
        statements, stmt = statement_at(each) if is_own(each) else (None, None)
        if statements is not None and stmt is not None and statements.in_clean_up(stmt, cut=cut):
            return True
    return False


def holds_something(frames: Iterable[CodePosition], is_own: Callable[[CodePosition], bool]) -> bool:
    """Whether one of the frames holds something that no block releases yet: `lock.acquire()` before the `try`."""
    for each in frames:
        statements, stmt = statement_at(each) if is_own(each) else (None, None)
        if statements is not None and stmt is not None and statements.between_hold_and_block(stmt, inside=True):
            return True
    return False


def stack(frame: FrameType, outermost: CodeType | None) -> list[FrameType]:
    """Return the frame and its callers, innermost first, without the code that called the tool."""
    found = [frame]
    back = frame.f_back
    while back is not None and back.f_code is not outermost:
        found.append(back)
        back = back.f_back
    return found


def _is_untouchable(frame: CodePosition, is_own: Callable[[CodePosition], bool], cut: bool) -> bool:
    """Whether nothing may be raised in the frame, nor in what it calls.

    With `cut`, the `__enter__` of a library does not count. It has not given anything to the tool yet, so what it waits
    for may be ended: it gets an error, as from a server that closes the connection, and undoes what it has done.
    """
    name = frame.f_code.co_name
    return name in UNTOUCHABLE and not (cut and name in ENTERING and not is_own(frame))


def _is_at_start(frame: FrameType) -> bool:
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 0 and code[at] == RESUME and code[at + 1] & 3 == 0


def _call_site(frame: FrameType) -> _CallSite:
    """Return what is known about the call that a frame is in."""
    key = (frame.f_code, frame.f_code.co_filename, frame.f_lasti)
    found = _call_sites.get(key)
    if found is None:
        with reading():
            if len(_call_sites) > MAX_CACHED:
                _call_sites.clear()
            found = _call_sites.get(key) or _read_call_site(frame)
            _call_sites[key] = found
    return found


def _read_call_site(frame: FrameType) -> _CallSite:
    (statements, stmt), position = statement_at(frame), position_of(frame)
    if statements is None or position is None or stmt is None:
        return _CallSite(cleans_up=True, cut_forbidden=True, holds=True, passes_received=True)
    passes_received = statements.uses_received_value(stmt)
    end = (position.end_line, position.end_column)
    for node in ast.walk(stmt):
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == end:
            passes_received = calls_in([*node.args, *node.keywords]) or passes_received
    enters, leaves = _enters_or_leaves(frame, stmt)
    cleans_up = statements.in_clean_up(stmt) or enters or leaves
    cut_forbidden = statements.in_clean_up(stmt, cut=True) or leaves
    return _CallSite(cleans_up, cut_forbidden, statements.between_hold_and_block(stmt, inside=True), passes_received)


def _enters_or_leaves(frame: FrameType, stmt: ast.stmt) -> tuple[bool, bool]:
    """Whether the call is the one with which a `with` enters, or leaves (a call with three times None)."""
    if not isinstance(stmt, ast.With | ast.AsyncWith):
        return False, False
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    while at > 0 and dis.opname[code[at]] in ("CALL", "PRECALL", "CACHE"):
        at -= 2
    return name.startswith("BEFORE_"), name == "WITH_EXCEPT_START" or dis.opname[code[at]] == "LOAD_CONST"


def _gets_received_value(callers: list[FrameType]) -> bool:
    """Whether the function at whose start the thread is may hold the only reference to a value that was received.

    After `item = inbox.get()`, `handle(item)`, the item is nowhere else at the start of `handle`. Arguments are
    followed through a few functions that only pass them on. Recursion goes deeper, and must stay interruptible.
    """
    for caller in callers[:MAX_FOLLOWED_CALLERS]:
        passes_received = _call_site(caller).passes_received
        if passes_received is not None:
            return passes_received
    return False
