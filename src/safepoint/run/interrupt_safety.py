"""Owns the decision where a thread can be interrupted so that nothing is left held, lost or half cleaned up.

`safe_to_interrupt(frame)` is a pure function of a frame, its code and its callers: it looks at nothing else and changes
nothing. docs/interrupting-threads.md explains the rules, with examples. It is asked immediately before the instruction
at `frame.f_lasti`, in the thread itself, so the answer still holds when the exception is raised. Knows nothing of
threads and of how the exception is raised.
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
from .statements import StatementPosition, Statements, calls_in, read_statements, reads_what_its_body_gets

__all__ = ["SafePositions", "holds_something", "in_clean_up", "places", "safe_to_interrupt", "stack"]

# Functions that take or give back, whatever stands in them; and where Python ignores exceptions.
UNTOUCHABLE = {"__enter__", "__exit__", "__aenter__", "__aexit__", "__del__"}
ENTERING = {"__enter__", "__aenter__"}
# How far the arguments of a function are followed to the call that they came from.
HANDED_DOWN = 8
RESUME = dis.opmap["RESUME"]

# How many answers are kept. Only a program that makes code all the time has more.
KEPT = 10_000

# Reading a source takes long; of many threads that are interrupted at once, one does it for all. Reentrant, because a
# finalizer that the garbage collector runs meanwhile may be code of a tool.
_reading = threading.RLock()
_statements: dict[str, tuple[Statements, LoadedSource] | None] = {}
_fits: dict[tuple[CodeType, str], bool] = {}
_places: dict[tuple[CodeType, str], "SafePositions"] = {}
_sites: dict[tuple[CodeType, str, int], "_CallSite"] = {}


class SafePositions(NamedTuple):
    """The offsets of the instructions of one code object before which an exception may be raised."""

    safe: frozenset[int]
    cut: frozenset[int]  # if what the thread has just been in was ended from outside, so that its value is not whole


class _CallSite(NamedTuple):
    """What is true of a function's caller while the function runs."""

    cleans_up: bool
    must_end: bool  # it cleans up so that not even a cut may leave it
    holds: bool  # something for which no block has begun yet
    hands_down: bool | None  # what it has just received. None: what it was itself called with


def safe_to_interrupt(
    frame: FrameType,
    is_own: Callable[[CodePosition], bool] = lambda frame: True,
    *,
    outermost: CodeType | None = None,
    cut: bool = False,
) -> bool:
    """Whether an exception that is raised before the instruction at `frame.f_lasti` leaves nothing held.

    Args:
        frame: The innermost frame of the thread. It must be of the tool's own code.
        is_own: Tells the frames of the tool's own code from those of libraries. Libraries' sources are not read.
        outermost: The code that called the tool: frames from there on are of no interest.
        cut: What the tool was blocked in was ended from outside. What it returns is not whole, so the exception comes
            before the tool can use it, except in clean-up code.
    """
    start, here = _is_at_start(frame), places(frame)
    if not start and frame.f_lasti not in (here.cut if cut else here.safe):
        return False
    frames = stack(frame, outermost)
    if any(_is_untouchable(each, is_own, cut) for each in frames):
        return False
    own = [caller for caller in frames[1:] if is_own(caller)]
    for caller in own:
        site = _site(caller)
        if site.must_end or site.holds or (not cut and site.cleans_up):
            return False
    return cut or not start or not _is_handed_something(own)


def in_clean_up(frames: Iterable[CodePosition], is_own: Callable[[CodePosition], bool], *, cut: bool = False) -> bool:
    """Whether one of the frames is cleaning up. With `cut`: so that no cut may leave it.

    Args:
        frames: The frames of a thread, or what was written down of them.
        is_own: Tells the frames of the tool's own code from those of libraries.
        cut: What the thread is blocked in is to be ended from outside.
    """
    for each in frames:
        if _is_untouchable(each, is_own, cut):
            return True
        statements, stmt = _statement(each) if is_own(each) else (None, None)
        if statements is not None and stmt is not None and statements.in_clean_up(stmt, cut=cut):
            return True
    return False


def holds_something(frames: Iterable[CodePosition], is_own: Callable[[CodePosition], bool]) -> bool:
    """Whether one of the frames holds something for which no block has begun yet: `lock.acquire()` without `try`."""
    for each in frames:
        statements, stmt = _statement(each) if is_own(each) else (None, None)
        if statements is not None and stmt is not None and statements.between_hold_and_block(stmt, inside=True):
            return True
    return False


def stack(frame: FrameType, outermost: CodeType | None) -> list[FrameType]:
    """The frame and those that it was called from, innermost first, up to the code that called the tool."""
    found = [frame]
    back = frame.f_back
    while back is not None and back.f_code is not outermost:
        found.append(back)
        back = back.f_back
    return found


def places(frame: FrameType) -> SafePositions:
    """The places in the code of a frame. None at all if its source cannot be read."""
    code = frame.f_code
    key = (code, code.co_filename)  # code objects of different files may be equal
    found = _places.get(key)
    if found is None:
        with _reading:
            found = _places.get(key)
            if found is None:
                if len(_places) > KEPT:
                    _places.clear()
                statements = _read(frame)
                found = SafePositions(frozenset(), frozenset()) if statements is None else _find(code, statements)
                _places[key] = found
    return found


def _is_untouchable(frame: CodePosition, is_own: Callable[[CodePosition], bool], cut: bool) -> bool:
    """Whether nothing may be raised in it, nor in what it calls.

    A library's `__enter__` has given nothing to the tool yet. What it waits for may be ended: it gets an error, as from
    a server that hangs up, and takes back what it has done so far. (`contextlib`'s runs the tool's own generator.)
    """
    name = frame.f_code.co_name
    return name in UNTOUCHABLE and not (cut and name in ENTERING and not is_own(frame))


def _statement(frame: CodePosition) -> tuple[Statements | None, ast.stmt | None]:
    statements, position = _read(frame), _position(frame)
    return statements, None if statements is None or position is None else statements.at(position)


def _is_at_start(frame: FrameType) -> bool:
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 0 and code[at] == RESUME and code[at + 1] & 3 == 0


def _read(frame: CodePosition) -> Statements | None:
    """The statements of the file. None if there is no source, or not the one from which the code was made."""
    fits = _fits.get((frame.f_code, frame.f_code.co_filename))
    if fits is None:
        with _reading:
            fits = _read_first(frame)
    found = _statements[frame.f_code.co_filename]
    return found[0] if fits and found is not None else None


def _read_first(frame: CodePosition) -> bool:
    code, file = frame.f_code, frame.f_code.co_filename
    if (code, file) in _fits:  # another thread has just read it
        return _fits[code, file]
    if file not in _statements:
        statements = read_statements(file, frame.f_globals)
        _statements[file] = None if statements is None else (statements, LoadedSource(statements.text, file))
    found = _statements[file]
    if len(_fits) > KEPT:
        _fits.clear()
    fits = _fits[code, file] = found is not None and found[1].has(code)
    return fits


def _site(frame: FrameType) -> _CallSite:
    """What there is to know of the call that a frame is in."""
    key = (frame.f_code, frame.f_code.co_filename, frame.f_lasti)
    found = _sites.get(key)
    if found is None:
        with _reading:
            if len(_sites) > KEPT:
                _sites.clear()
            found = _sites.get(key) or _look_at_call(frame)
            _sites[key] = found
    return found


def _look_at_call(frame: FrameType) -> _CallSite:
    (statements, stmt), position = _statement(frame), _position(frame)
    if statements is None or position is None or stmt is None:
        return _CallSite(cleans_up=True, must_end=True, holds=True, hands_down=True)
    hands_down = statements.uses_what_was_got(stmt)
    end = (position.end_line, position.end_column)
    for node in ast.walk(stmt):
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == end:
            hands_down = calls_in([*node.args, *node.keywords]) or hands_down
    enters, leaves = _enters_or_leaves(frame, stmt)
    cleans_up = statements.in_clean_up(stmt) or enters or leaves
    must_end = statements.in_clean_up(stmt, cut=True) or leaves
    return _CallSite(cleans_up, must_end, statements.between_hold_and_block(stmt, inside=True), hands_down)


def _enters_or_leaves(frame: FrameType, stmt: ast.stmt) -> tuple[bool, bool]:
    """Whether the call is what a `with` does by itself: entering; leaving, which is a call with three times None."""
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


def _is_handed_something(callers: list[FrameType]) -> bool:
    """Whether the function at whose start the thread is may have been given the only reference to something received.

    `item = inbox.get()`, `handle(item)`: at the start of `handle` the item is nowhere else. Arguments are followed
    through a few functions that only pass them on. Recursion goes deeper than that, and must be interruptible.
    """
    for caller in callers[:HANDED_DOWN]:
        hands_down = _site(caller).hands_down
        if hands_down is not None:
            return hands_down
    return False


def _find(code: CodeType, statements: Statements) -> SafePositions:
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
        if may_be_cut and (step.offset <= last_call[stmt] or not statements.takes_hold(stmt)):
            cut.add(step.offset)
        if statements.in_clean_up(stmt):
            continue
        if step.opname == "POP_TOP" and _throws_away_a_call(stmt, span) and "CALL" in before.opname:
            if statements.ends_without_handing_over(stmt):
                safe.add(step.offset)
        elif "JUMP" in step.opname and "NO_INTERRUPT" not in step.opname and step.argval <= step.offset:
            round_end = _end_of_round(steps, step, spans, statements)
            if round_end is not None and block(round_end) == block(step.argval):
                safe.add(round_end)
    return SafePositions(frozenset(safe), frozenset(cut))


def _can_be_cut(stmt: ast.stmt) -> bool:
    """Whether it is a simple statement, or one whose header uses values as simple ones do: `if write(read()):`."""
    return not hasattr(stmt, "body") or isinstance(stmt, ast.If | ast.For | ast.AsyncFor | ast.While | ast.Match)


def _last_calls(
    steps: list[dis.Instruction], spans: dict[int, StatementPosition | None], statements: Statements
) -> defaultdict[ast.stmt | None, int]:
    """The last call of each statement. Before it the statement has not got hold of anything that it must give back.

    A `yield` counts too: it hands on what was got.
    """
    found: defaultdict[ast.stmt | None, int] = defaultdict(lambda: -1)
    for step in steps:
        span = spans[step.offset]
        hands_on = step.opname.startswith("CALL") and "INTRINSIC" not in step.opname
        if span is not None and (hands_on or step.opname == "YIELD_VALUE"):
            found[statements.at(span)] = step.offset
    return found


def _throws_away_a_call(stmt: ast.stmt, span: StatementPosition) -> bool:
    """Whether this is the end of a statement that is nothing but a call. Inner calls end earlier in the text."""
    if not isinstance(stmt, ast.Expr) or not isinstance(stmt.value, ast.Call):
        return False
    return (stmt.value.end_lineno, stmt.value.end_col_offset) == (span.end_line, span.end_column)


def _end_of_round(
    steps: list[dis.Instruction],
    jump: dis.Instruction,
    spans: dict[int, StatementPosition | None],
    statements: Statements,
) -> int | None:
    """Where a round of the loop that this jump closes is over and nothing of the next one has been done.

    Usually the jump itself. The condition of a `while` is evaluated before the jump: if it calls something
    (`while lock.acquire():`), the place is before the condition.
    """
    here, there = spans[jump.offset], spans.get(jump.argval)
    if here is None or there is None:
        return None
    stmt = statements.at(here)
    loop = statements.loop_around([here, there])
    if stmt is None or statements.between_hold_and_block(stmt, inside=False):
        return None
    if loop is None:  # of a comprehension
        return jump.offset
    if reads_what_its_body_gets(loop):
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
    """Finds where an exception that is raised at an offset goes to: the same for two places in the same block."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]

    def block(offset: int) -> int | None:
        return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)

    return block


def _forget_lock() -> None:
    global _reading
    _reading = threading.RLock()  # in a forked child nobody would ever release it


os.register_at_fork(after_in_child=_forget_lock)
