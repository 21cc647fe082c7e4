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
call, at the end of an iteration of a loop, and at the start of a function. Even there the statements around the place,
in this frame and in all callers of the tool's own code, must not hold anything (`statements.py`, `held_locks.py`). If
the source cannot be read, or is not the source of the running code, no place is safe: interrupting too late is
harmless, a lost lock is not. docs/interrupting-threads.md lists the rules with examples.
"""

import ast
import dis
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import NamedTuple

from .loaded_source import LoadedSource
from .own_code import CodePosition
from .statements import StatementPosition, Statements, calls_in, condition_reads_body_values, read_statements

__all__ = ["SafePositions", "holds_something", "in_clean_up", "safe_positions", "safe_to_interrupt", "stack"]

# Functions that acquire or release something, whatever their statements are; and `__del__`, whose exceptions Python
# ignores.
UNTOUCHABLE = {"__enter__", "__exit__", "__aenter__", "__aexit__", "__del__"}
ENTERING = {"__enter__", "__aenter__"}
# Through how many callers the arguments of a function are followed to the call that they came from.
MAX_FOLLOWED_CALLERS = 8
RESUME = dis.opmap["RESUME"]

# The limit of each cache. Only a program that creates code all the time reaches it.
MAX_CACHED = 10_000

# Reading a source takes long, so if many threads are interrupted at once, one of them does it for all. The lock is
# reentrant, because the garbage collector may meanwhile run a finalizer in this thread that is code of a tool.
_reading = threading.RLock()
_statements: dict[str, tuple[Statements, LoadedSource] | None] = {}
_matches: dict[tuple[CodeType, str], bool] = {}
_positions_by_code: dict[tuple[CodeType, str], "SafePositions"] = {}
_call_sites: dict[tuple[CodeType, str, int], "_CallSite"] = {}


class SafePositions(NamedTuple):
    """The offsets of the instructions of one code object before which an exception may be raised.

    Attributes:
        safe: In general.
        cut: If the call that the thread has just been in was ended from outside, so that its value is not whole.
    """

    safe: frozenset[int]
    cut: frozenset[int]


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
        statements, stmt = _statement(each) if is_own(each) else (None, None)
        if statements is not None and stmt is not None and statements.in_clean_up(stmt, cut=cut):
            return True
    return False


def holds_something(frames: Iterable[CodePosition], is_own: Callable[[CodePosition], bool]) -> bool:
    """Whether one of the frames holds something that no block releases yet: `lock.acquire()` before the `try`."""
    for each in frames:
        statements, stmt = _statement(each) if is_own(each) else (None, None)
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


def safe_positions(frame: FrameType) -> SafePositions:
    """Return where the code of a frame may be interrupted. The sets are empty if its source cannot be read."""
    code = frame.f_code
    key = (code, code.co_filename)  # because code objects of different files may be equal
    found = _positions_by_code.get(key)
    if found is None:
        with _reading:
            found = _positions_by_code.get(key)
            if found is None:
                if len(_positions_by_code) > MAX_CACHED:
                    _positions_by_code.clear()
                statements = _matching_statements(frame)
                found = (
                    SafePositions(frozenset(), frozenset())
                    if statements is None
                    else _find_safe_positions(code, statements)
                )
                _positions_by_code[key] = found
    return found


def _is_untouchable(frame: CodePosition, is_own: Callable[[CodePosition], bool], cut: bool) -> bool:
    """Whether nothing may be raised in the frame, nor in what it calls.

    With `cut`, the `__enter__` of a library does not count. It has not given anything to the tool yet, so what it waits
    for may be ended: it gets an error, as from a server that closes the connection, and undoes what it has done.
    """
    name = frame.f_code.co_name
    return name in UNTOUCHABLE and not (cut and name in ENTERING and not is_own(frame))


def _statement(frame: CodePosition) -> tuple[Statements | None, ast.stmt | None]:
    statements, position = _matching_statements(frame), _position(frame)
    return statements, None if statements is None or position is None else statements.at(position)


def _is_at_start(frame: FrameType) -> bool:
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 0 and code[at] == RESUME and code[at + 1] & 3 == 0


def _matching_statements(frame: CodePosition) -> Statements | None:
    """Read the statements of the file. None if there is no source, or it is not the one the code was compiled from."""
    fits = _matches.get((frame.f_code, frame.f_code.co_filename))
    if fits is None:
        with _reading:
            fits = _read_first(frame)
    found = _statements[frame.f_code.co_filename]
    return found[0] if fits and found is not None else None


def _read_first(frame: CodePosition) -> bool:
    code, file = frame.f_code, frame.f_code.co_filename
    if (code, file) in _matches:  # another thread has just read it
        return _matches[code, file]
    if file not in _statements:
        statements = read_statements(file, frame.f_globals)
        _statements[file] = None if statements is None else (statements, LoadedSource(statements.text, file))
    found = _statements[file]
    if len(_matches) > MAX_CACHED:
        _matches.clear()
    fits = _matches[code, file] = found is not None and found[1].has(code)
    return fits


def _call_site(frame: FrameType) -> _CallSite:
    """Return what is known about the call that a frame is in."""
    key = (frame.f_code, frame.f_code.co_filename, frame.f_lasti)
    found = _call_sites.get(key)
    if found is None:
        with _reading:
            if len(_call_sites) > MAX_CACHED:
                _call_sites.clear()
            found = _call_sites.get(key) or _read_call_site(frame)
            _call_sites[key] = found
    return found


def _read_call_site(frame: FrameType) -> _CallSite:
    (statements, stmt), position = _statement(frame), _position(frame)
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


def _position(frame: CodePosition) -> StatementPosition | None:
    spans = islice(frame.f_code.co_positions(), max(frame.f_lasti, 0) // 2, None)
    line, end_line, column, end_column = next(spans, (None, None, None, None))
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return StatementPosition(line, end_line, column, end_column)


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


def _find_safe_positions(code: CodeType, statements: Statements) -> SafePositions:
    steps = list(dis.get_instructions(code))
    safe, cut = set[int](), set[int]()
    spans = {step.offset: _span(step) for step in steps}
    block = _blocks(code)
    last_call = _last_calls(steps, spans, statements)
    for before, step in pairwise(steps):
        span = spans[step.offset]
        if span is None or (stmt := statements.at(span)) is None or statements.in_clean_up(stmt, cut=True):
            continue
        may_be_cut = _can_be_cut(stmt) and not statements.between_hold_and_block(stmt, inside=True)
        if may_be_cut and (step.offset <= last_call[stmt] or not statements.acquires_something(stmt)):
            cut.add(step.offset)
        if statements.in_clean_up(stmt):
            continue
        if step.opname == "POP_TOP" and _discards_call(stmt, span) and "CALL" in before.opname:
            if statements.ends_without_handing_over(stmt):
                safe.add(step.offset)
        elif "JUMP" in step.opname and "NO_INTERRUPT" not in step.opname and step.argval <= step.offset:
            iteration_end = _end_of_iteration(steps, step, spans, statements)
            if iteration_end is not None and block(iteration_end) == block(step.argval):
                safe.add(iteration_end)
    return SafePositions(frozenset(safe), frozenset(cut))


def _can_be_cut(stmt: ast.stmt) -> bool:
    """Whether it is a simple statement, or a compound one whose header uses values, such as `if write(read()):`."""
    return not hasattr(stmt, "body") or isinstance(stmt, ast.If | ast.For | ast.AsyncFor | ast.While | ast.Match)


def _last_calls(
    steps: list[dis.Instruction], spans: dict[int, StatementPosition | None], statements: Statements
) -> defaultdict[ast.stmt | None, int]:
    """Find the last call of each statement. Before it, the statement has not acquired what it must release.

    A `yield` counts as a call, because it passes on what was received.
    """
    found: defaultdict[ast.stmt | None, int] = defaultdict(lambda: -1)
    for step in steps:
        span = spans[step.offset]
        passes_on = step.opname.startswith("CALL") and "INTRINSIC" not in step.opname
        if span is not None and (passes_on or step.opname == "YIELD_VALUE"):
            found[statements.at(span)] = step.offset
    return found


def _discards_call(stmt: ast.stmt, span: StatementPosition) -> bool:
    """Whether this is the end of a statement that is only a call. (Inner calls end earlier in the text.)"""
    if not isinstance(stmt, ast.Expr) or not isinstance(stmt.value, ast.Call):
        return False
    return (stmt.value.end_lineno, stmt.value.end_col_offset) == (span.end_line, span.end_column)


def _end_of_iteration(
    steps: list[dis.Instruction],
    jump: dis.Instruction,
    spans: dict[int, StatementPosition | None],
    statements: Statements,
) -> int | None:
    """Find the offset at which an iteration of the loop is over and nothing of the next one has been done.

    Usually that is the jump that closes the loop. But the condition of a `while` is evaluated before the jump: if it
    calls something (`while lock.acquire():`), the offset is that of the condition.

    Returns:
        The offset; None if there is none, or it is not safe.
    """
    end, beginning = spans[jump.offset], spans.get(jump.argval)
    if end is None or beginning is None:
        return None
    stmt = statements.at(end)
    loop = statements.loop_around([end, beginning])
    if stmt is None or statements.between_hold_and_block(stmt, inside=False):
        return None
    if loop is None:  # the loop of a comprehension
        return jump.offset
    if condition_reads_body_values(loop):
        return None
    if not isinstance(loop, ast.While) or stmt is not loop or not calls_in([loop.test]):
        return jump.offset
    first = jump.offset
    for step in reversed(steps):
        if jump.argval <= step.offset < jump.offset:
            span = spans[step.offset]
            if span is None or statements.at(span) is not loop:
                break
            first = step.offset
    return first if first < jump.offset else None


def _span(step: dis.Instruction) -> StatementPosition | None:
    at = step.positions
    if at is None or at.lineno is None or at.end_lineno is None or at.col_offset is None or at.end_col_offset is None:
        return None
    return StatementPosition(at.lineno, at.end_lineno, at.col_offset, at.end_col_offset)


def _blocks(code: CodeType) -> Callable[[int], int | None]:
    """Return a function that gives the target of an exception raised at an offset: it is the same within one block."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]

    def block(offset: int) -> int | None:
        return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)

    return block


def _renew_lock() -> None:
    global _reading
    _reading = threading.RLock()  # in a forked child, the thread that may hold the old one does not exist


os.register_at_fork(after_in_child=_renew_lock)
