"""Questions about the statements of a source file: what surrounds one, what follows it, what it has acquired.

Everything is read from the syntax tree; bytecode, frames and threads are not known here.

**Why the surroundings of a statement matter.** An exception after a statement is harmless only if everything acquired
so far is released by a block that has already begun. In

    file = open(path)          # (1)
    log.info("opened")         # (2)
    try:
        return file.read()
    finally:
        file.close()

an exception after (1) or (2) loses the file: it is held, and the `try` whose `finally` closes it has not begun. So for
each later sibling of a statement, this module collects the names that the sibling releases when it is over
(`_released_by`), and for each earlier sibling the names that it may have acquired (`_possibly_acquired`). If the two
have a name in common, the statements between them are not safe. Names are compared as text, `a.b.c`, because a wrong
match only makes a place unsafe, and is repaired by the next safe one. Locks that are acquired and released by calls
(`lock.acquire()`, `lock.release()`), possibly across functions, are followed by `held_locks.py`.
"""

import ast
import linecache
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from .held_locks import AcquiredLocks
from .loaded_source import parse_source

__all__ = ["StatementPosition", "Statements", "calls_in", "condition_reads_body_values", "read_statements"]

K = TypeVar("K")
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Branching = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.TryStar | ast.Match
Loop = ast.For | ast.AsyncFor | ast.While
# Calls of these methods acquire nothing, although clean-up code often calls them as well.
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}


class StatementPosition(NamedTuple):
    """A span of the source, as `code.co_positions()` returns it: lines from 1, columns in bytes from 0."""

    line: int
    end_line: int
    column: int
    end_column: int


class _Location(NamedTuple):
    """The location of a statement: in which field of which statement (None: the module), and among which siblings."""

    owner: ast.stmt | None
    field: str
    siblings: list[ast.stmt]
    number: int


def read_statements(file: str, module: dict[str, object]) -> "Statements | None":
    """Parse the statements of a file. None if its source cannot be read, or is not Python."""
    text = "".join(linecache.getlines(file, module))
    tree = parse_source(text) if text else None
    return None if tree is None else Statements(tree, text)


class Statements:
    """The statements of one file, found by position."""

    def __init__(self, tree: ast.Module, text: str = "") -> None:
        self.text = text
        self._locations: dict[ast.stmt, _Location] = {}
        self._ordered: list[ast.stmt] = []
        self._modules: set[str] = set()
        self._locks = AcquiredLocks(tree)
        self._collect(tree)
        self._ordered.sort(key=lambda stmt: (stmt.lineno, stmt.col_offset, -(stmt.end_lineno or 0)))
        self._starts = [(stmt.lineno, stmt.col_offset) for stmt in self._ordered]

    def _collect(self, tree: ast.Module) -> None:
        todo: list[tuple[ast.stmt | None, str, list[ast.stmt]]] = [(None, "body", tree.body)]
        while todo:
            owner, field, siblings = todo.pop()
            for index, stmt in enumerate(siblings):
                self._locations[stmt] = _Location(owner, field, siblings, index)
                self._ordered.append(stmt)
                todo += [(stmt, name, block) for name, block in _blocks(stmt)]
                if isinstance(stmt, ast.Import | ast.ImportFrom):
                    self._modules |= {(alias.asname or alias.name).partition(".")[0] for alias in stmt.names}

    def at(self, position: StatementPosition) -> ast.stmt | None:
        """Return the innermost statement that contains the span."""
        index = bisect_right(self._starts, (position.line, position.column)) - 1
        found: ast.stmt | None = self._ordered[index] if index >= 0 else None
        while found is not None and (position.end_line, position.end_column) > _end(found):
            found = self._locations[found].owner
        return found

    def loop_around(self, positions: Iterable[StatementPosition]) -> ast.stmt | None:
        """Return the innermost loop statement that contains all of the spans."""
        spans = list(positions)
        stmt = self.at(spans[0])
        while stmt is not None:
            if isinstance(stmt, Loop) and all(_contains(stmt, span) for span in spans):
                return stmt
            stmt = self._locations[stmt].owner
        return None

    def in_clean_up(self, stmt: ast.stmt, *, cut: bool = False) -> bool:
        """Whether the statement is in the body of a `finally` or `except` of its function.

        Args:
            stmt: The statement.
            cut: Count only clean-up code that may not even be left if it uses a result that was cut. A handler of an
                ordinary error does not count then, because tools often fetch from another source there.
        """
        for _, location in self._around(stmt):
            if location.field == "finalbody":
                return True
            if location.field == "handlers" and isinstance(location.owner, ast.Try | ast.TryStar):
                handler = next(each for each in location.owner.handlers if each.body is location.siblings)
                if not cut or _catches_interrupts(handler):
                    return True
        return False

    def acquires_something(self, stmt: ast.stmt) -> bool:
        """Whether the statement acquires something that has to be released.

        It does if a later `finally` or `with` beside it releases that, or follows directly; if it is an acquiring call
        (`lock.acquire()`); or if it calls nothing while something is held (`held = True`).
        """
        if not _calls(stmt):
            return self._locks.before(stmt)
        if self._locks.by(stmt):
            return True
        location = self._locations[stmt]
        names = {name for later in location.siblings[location.number + 1 :] for name in self._released_by(later)}
        return bool(_possibly_acquired(stmt) & names) or (isinstance(stmt, ast.Expr) and self._leads_into_block(stmt))

    def between_hold_and_block(self, stmt: ast.stmt, *, inside: bool) -> bool:
        """Whether something is held that no block releases yet, so that an exception would lose it.

        Args:
            stmt: The statement that is being executed.
            inside: Whether the exception would come from a function that the statement calls. What the statement itself
                acquires, it holds only when it is over.
        """
        if self._locks.before(stmt) if inside else self._locks.after(stmt):
            return True
        for around, location in self._around(stmt):
            so_far = location.siblings[: location.number + (around is stmt and not inside)]
            for later in location.siblings[location.number + 1 :]:
                names = self._released_by(later)
                if names and any(_possibly_acquired(before) & names for before in so_far):
                    return True
                # `for lock in locks: lock.acquire()` holds what earlier iterations have acquired. `item = get()` in a
                # loop that retries holds nothing: the next iteration replaces the item.
                if names and around is not stmt and _acquired([around]) & names:
                    return True
        return False

    def ends_without_handing_over(self, stmt: ast.stmt) -> bool:
        """Whether an exception after this statement, a call whose value is discarded, leaves nothing held.

        It may leave something held if a block follows (`lock.acquire()`, `try:`), here or after the function returns.
        """
        return not self._leads_into_block(stmt) and not self.between_hold_and_block(stmt, inside=False)

    def uses_received_value(self, stmt: ast.stmt) -> bool | None:
        """Whether the statement uses a value that the statement before it has received from a call.

        None if nothing was called before it in this function, so that it may use what the function was called with.
        """
        at: ast.stmt | None = stmt
        while at is not None:
            location = self._locations[at]
            for before in reversed(location.siblings[: location.number]):
                if _calls(before):
                    return bool(_bound(before) & _read(stmt))
            if location.owner is None or isinstance(location.owner, Function):
                return None
            header = list(_header(location.owner))
            if calls_in(header) or isinstance(location.owner, ast.For | ast.AsyncFor):
                return bool({name for part in header for name in _bound(part)} & _read(stmt))
            at = location.owner
        return None

    def _around(self, stmt: ast.stmt) -> Iterator[tuple[ast.stmt, _Location]]:
        """The statement and those around it, up to its function, each with its location."""
        at: ast.stmt | None = stmt
        while at is not None:
            location = self._locations[at]
            yield at, location
            at = None if isinstance(location.owner, Function) else location.owner

    def _leads_into_block(self, stmt: ast.stmt) -> bool:
        """Whether a `try: … finally:`, a `with`, or the end of the function comes next, with no call in between."""
        location = self._locations[stmt]
        if location.number + 1 < len(location.siblings):
            return self._is_or_leads_into_block(location.siblings[location.number + 1])
        owner = location.owner
        if owner is None or isinstance(owner, Function):
            return True
        if isinstance(owner, Loop) and location.field == "body":
            return False
        if isinstance(owner, ast.Try | ast.TryStar) and location.field == "body" and owner.orelse:
            return self._is_or_leads_into_block(owner.orelse[0])
        return self._leads_into_block(owner)

    def _is_or_leads_into_block(self, stmt: ast.stmt) -> bool:
        match stmt:
            case ast.With() | ast.AsyncWith() | ast.Return():
                return True
            case ast.Try() | ast.TryStar():
                return _has_clean_up(stmt) or self._is_or_leads_into_block(stmt.body[0])
            case ast.Break():
                loop = next((around for around, _ in self._around(stmt) if isinstance(around, Loop)), None)
                return loop is None or self._leads_into_block(loop)
            case ast.Continue() | ast.Raise():
                return False
            case ast.If() if not calls_in(_header(stmt)):
                if self._is_or_leads_into_block(stmt.body[0]):
                    return True
                return self._is_or_leads_into_block(stmt.orelse[0]) if stmt.orelse else self._leads_into_block(stmt)
            case ast.For() | ast.While() if not calls_in(_header(stmt)):
                return self._is_or_leads_into_block(stmt.body[0])
            case _:
                return not calls_in([stmt]) and self._leads_into_block(stmt)

    def _released_by(self, stmt: ast.stmt) -> set[str]:
        """The names of what a statement releases when it is over: `lock` for `try: … finally: lock.release()`."""
        found: set[str] = set()
        if isinstance(stmt, ast.With | ast.AsyncWith):
            for item in stmt.items:
                match item.context_expr:
                    case ast.Call(func=ast.Name("closing") | ast.Attribute(attr="closing"), args=given):
                        found |= {_dotted(each) for each in given}
                    case expr:
                        found.add(_dotted(expr))
        elif isinstance(stmt, ast.Try | ast.TryStar):
            blocks: list[ast.stmt] = list(stmt.finalbody)
            for handler in stmt.handlers:
                blocks += handler.body if _catches_interrupts(handler) else []
            found = _used_objects(blocks)
        elif isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call):
            function = stmt.value.func
            if isinstance(function, ast.Attribute) and function.attr == "release":
                found = {_dotted(function.value)}
        return {name for name in found if name not in ("", "self", "cls") and name not in self._modules}


def calls_in(nodes: Iterable[ast.AST]) -> bool:
    """Whether any of the nodes calls, awaits or yields something when it is executed."""
    return any(isinstance(node, ast.Call | ast.Await | ast.Yield | ast.YieldFrom) for node in _walk(nodes))


def condition_reads_body_values(loop: ast.stmt) -> bool:
    """Whether the condition of a `while` reads a name that its body binds: the value may be used after the loop."""
    if not isinstance(loop, ast.While):
        return False
    received = {name for stmt in loop.body if _calls(stmt) for name in _bound(stmt)}
    return bool(received & _read(loop.test))


def _cached(question: Callable[[ast.AST], K]) -> Callable[[ast.AST], K]:
    """Cache the answer in an attribute of the node."""
    name = f"_safepoint_{question.__name__}"

    def answer(node: ast.AST) -> K:
        try:
            return getattr(node, name)  # type: ignore[no-any-return]
        except AttributeError:
            value = question(node)
            setattr(node, name, value)
            return value

    return answer


@_cached
def _calls(node: ast.AST) -> bool:
    return calls_in([node])


@_cached
def _bound(node: ast.AST) -> set[str]:
    """The names that the node binds."""
    return {part.id for part in _walk([node]) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


@_cached
def _read(node: ast.AST) -> set[str]:
    return {part.id for part in _walk([node]) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


@_cached
def _possibly_acquired(node: ast.AST) -> set[str]:
    """The names of what the node may have acquired: what it binds to the value of a call, or calls a method of."""
    if not _calls(node):
        return set()
    bound = {_dotted(part) for part in _walk([node]) if isinstance(getattr(part, "ctx", None), ast.Store)}
    return bound | _used_objects([node])


def _used_objects(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of the objects whose methods are called, and of those that are passed to a call."""
    found: set[str] = set()
    for node in _walk(nodes):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in LOGGING:
                continue
            found.add(_dotted(node.func.value))
        found |= {_dotted(part) for part in node.args}
    return found


def _acquired(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of what is acquired by `name.acquire()`."""
    calls = [node.func for node in _walk(nodes) if isinstance(node, ast.Call)]
    return {_dotted(call.value) for call in calls if isinstance(call, ast.Attribute) and call.attr == "acquire"}


def _dotted(node: ast.AST) -> str:
    """Return `a.b.c` as text; an empty text for an expression that is no such name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            prefix = _dotted(value)
            return f"{prefix}.{attribute}" if prefix else ""
        case _:
            return ""


def _blocks(stmt: ast.stmt) -> Iterator[tuple[str, list[ast.stmt]]]:
    for field in ("body", "orelse", "finalbody"):
        if block := getattr(stmt, field, None):
            yield field, block
    for handler in getattr(stmt, "handlers", ()):
        yield "handlers", handler.body
    for case in getattr(stmt, "cases", ()):
        yield "cases", case.body


def _header(stmt: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a compound statement that are evaluated before its blocks; a simple statement as a whole."""
    if not isinstance(stmt, Function | Branching):
        yield stmt
        return
    for child in ast.iter_child_nodes(stmt):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These nodes and all inside them that are executed with them: not the bodies of functions that they define."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += node.decorator_list
        elif not isinstance(node, ast.Lambda):
            todo += ast.iter_child_nodes(node)


def _has_clean_up(stmt: ast.Try | ast.TryStar) -> bool:
    """Whether some of its code runs when an interrupt passes through it."""
    return bool(stmt.finalbody) or any(_catches_interrupts(handler) for handler in stmt.handlers)


def _catches_interrupts(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_dotted(kind).rpartition(".")[2] in ("BaseException", "AbortInterrupt") for kind in kinds)


def _end(stmt: ast.stmt) -> tuple[int, int]:
    return stmt.end_lineno or stmt.lineno, stmt.end_col_offset or 0


def _contains(stmt: ast.stmt, span: StatementPosition) -> bool:
    return (stmt.lineno, stmt.col_offset) <= (span.line, span.column) and (span.end_line, span.end_column) <= _end(stmt)
