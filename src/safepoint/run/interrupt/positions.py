"""The places in the code of one function before which an exception may be raised, and the statements around a place.

Both are found in the source of the code. If the source cannot be read, or is not the source of the running code, no
place is safe: interrupting too late is harmless, a lost lock is not. `safety.py` asks for the places, and decides for
the whole stack of a thread.
"""

import ast
import dis
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import NamedTuple

from .loaded_source import LoadedSource
from .own_code import CodePosition
from .statements import StatementPosition, Statements, calls_in, condition_reads_body_values, read_statements

__all__ = ["MAX_CACHED", "SafePositions", "position_of", "reading", "safe_positions", "statement_at"]

# The limit of each cache. Only a program that creates code all the time reaches it.
MAX_CACHED = 10_000

# Reading a source takes long, so if many threads are interrupted at once, one of them does it for all. The lock is
# reentrant, because the garbage collector may meanwhile run a finalizer in this thread that is code of a tool.
_reading = threading.RLock()
_statements: dict[str, tuple[Statements, LoadedSource] | None] = {}
_matches: dict[tuple[CodeType, str], bool] = {}
_positions_by_code: dict[tuple[CodeType, str], "SafePositions"] = {}


class SafePositions(NamedTuple):
    """The offsets of the instructions of one code object before which an exception may be raised.

    Attributes:
        safe: In general.
        cut: If the call that the thread has just been in was ended from outside, so that its value is not whole.
    """

    safe: frozenset[int]
    cut: frozenset[int]


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


def statement_at(frame: CodePosition) -> tuple[Statements | None, ast.stmt | None]:
    """Return the statements of the file and the one that the frame is in. None for what is not known."""
    statements, position = _matching_statements(frame), position_of(frame)
    return statements, None if statements is None or position is None else statements.at(position)


def position_of(frame: CodePosition) -> StatementPosition | None:
    """Return the place in the source of the instruction that the frame is at; None if the code has none."""
    spans = islice(frame.f_code.co_positions(), max(frame.f_lasti, 0) // 2, None)
    line, end_line, column, end_column = next(spans, (None, None, None, None))
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return StatementPosition(line, end_line, column, end_column)


def reading() -> threading.RLock:
    """Return the lock that is held while a source is read, so that one thread does it for all."""
    return _reading


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
