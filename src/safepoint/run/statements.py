"""Owns questions about the statements of a source file: what surrounds one, what follows it, what it has got hold of.

Everything is read from the syntax tree. Knows nothing of bytecode, frames or threads.
"""

import ast
import linecache
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from .held_locks import Acquired

__all__ = ["StatementPosition", "Statements", "calls_in", "read_statements", "reads_what_its_body_gets"]

K = TypeVar("K")
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Branching = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.TryStar | ast.Match
Loop = ast.For | ast.AsyncFor | ast.While
# Calls of these methods take hold of nothing, although a clean-up often calls them too.
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}


class StatementPosition(NamedTuple):
    """A span of the source, as `code.co_positions()` gives it: lines from 1, columns in bytes from 0."""

    entry: int
    end_line: int
    column: int
    end_column: int


class _Home(NamedTuple):
    """Where a statement stands: in which field of which statement (None: of the module), and among which siblings."""

    owner: ast.stmt | None
    field: str
    siblings: list[ast.stmt]
    place: int


def read_statements(file: str, module: dict[str, object]) -> "Statements | None":
    """The statements of a file. None if its source cannot be had, or is not Python."""
    text = "".join(linecache.getlines(file, module))
    try:
        return Statements(ast.parse(text), text) if text else None
    except (SyntaxError, ValueError):
        return None


class Statements:
    """The statements of one file, found by position."""

    def __init__(self, tree: ast.Module, text: str = "") -> None:
        self.text = text
        self._homes: dict[ast.stmt, _Home] = {}
        self._ordered: list[ast.stmt] = []
        self._modules: set[str] = set()
        self._acquired = Acquired(tree)
        self._collect(tree)
        self._ordered.sort(key=lambda stmt: (stmt.lineno, stmt.col_offset, -(stmt.end_lineno or 0)))
        self._starts = [(stmt.lineno, stmt.col_offset) for stmt in self._ordered]

    def _collect(self, tree: ast.Module) -> None:
        todo: list[tuple[ast.stmt | None, str, list[ast.stmt]]] = [(None, "body", tree.body)]
        while todo:
            owner, field, siblings = todo.pop()
            for index, stmt in enumerate(siblings):
                self._homes[stmt] = _Home(owner, field, siblings, index)
                self._ordered.append(stmt)
                todo += [(stmt, name, block) for name, block in _blocks(stmt)]
                if isinstance(stmt, ast.Import | ast.ImportFrom):
                    self._modules |= {(alias.asname or alias.name).partition(".")[0] for alias in stmt.names}

    def at(self, position: StatementPosition) -> ast.stmt | None:
        """The innermost statement that contains the span."""
        index = bisect_right(self._starts, (position.entry, position.column)) - 1
        found: ast.stmt | None = self._ordered[index] if index >= 0 else None
        while found is not None and (position.end_line, position.end_column) > _end(found):
            found = self._homes[found].owner
        return found

    def loop_around(self, positions: Iterable[StatementPosition]) -> ast.stmt | None:
        """The innermost loop statement that contains all of the spans."""
        spans = list(positions)
        stmt = self.at(spans[0])
        while stmt is not None:
            if isinstance(stmt, Loop) and all(_contains(stmt, span) for span in spans):
                return stmt
            stmt = self._homes[stmt].owner
        return None

    def in_clean_up(self, stmt: ast.stmt, *, cut: bool = False) -> bool:
        """Whether it is in the body of a `finally` or `except` of its function.

        Args:
            stmt: The statement.
            cut: Ask for what may not even be left if it uses what was cut. A handler of an ordinary error, in which
                tools like to fetch from elsewhere, then is no clean-up.
        """
        for _, home in self._around(stmt):
            if home.field == "finalbody":
                return True
            if home.field == "handlers" and isinstance(home.owner, ast.Try | ast.TryStar):
                handler = next(each for each in home.owner.handlers if each.body is home.siblings)
                if not cut or _catches_interrupts(handler):
                    return True
        return False

    def takes_hold(self, stmt: ast.stmt) -> bool:
        """Whether it gets hold of what a later `finally` or `with` beside it gives back, or directly precedes one.

        Also if it acquires something (`lock.acquire()`), or calls nothing while something is acquired.
        """
        if not _calls(stmt):
            return self._acquired.before(stmt)  # such as `held = True`
        if self._acquired.by(stmt):
            return True
        home = self._homes[stmt]
        names = {name for later in home.siblings[home.place + 1 :] for name in self._given_back(later)}
        return bool(_takes(stmt) & names) or (isinstance(stmt, ast.Expr) and self._leads_into_a_block(stmt))

    def between_hold_and_block(self, stmt: ast.stmt, *, inside: bool) -> bool:
        """Whether something is held for which no block has begun yet: it would be lost if this raised.

        Args:
            stmt: The statement that is being executed.
            inside: Ask for what is called by the statement. What a statement gets hold of, it has only when it is over.
        """
        if self._acquired.before(stmt) if inside else self._acquired.after(stmt):
            return True
        for around, home in self._around(stmt):
            so_far = home.siblings[: home.place + (around is stmt and not inside)]
            for later in home.siblings[home.place + 1 :]:
                names = self._given_back(later)
                if names and any(_takes(before) & names for before in so_far):
                    return True
                # `for lock in locks: lock.acquire()` holds what earlier rounds have got; `item = get()` in a loop that
                # tries again and again does not: the next round begins afresh.
                if names and around is not stmt and _acquired([around]) & names:
                    return True
        return False

    def ends_without_handing_over(self, stmt: ast.stmt) -> bool:
        """Whether an exception after this statement, a call whose value is thrown away, leaves nothing held.

        Not so where a block follows (`lock.acquire()`, `try:`), here or after the function returns.
        """
        return not self._leads_into_a_block(stmt) and not self.between_hold_and_block(stmt, inside=False)

    def uses_what_was_got(self, stmt: ast.stmt) -> bool | None:
        """Whether it uses what the statement before it has got from a call: it may be the first to know of it.

        None: nothing was called before it in this function, so it may be what the function was called with.
        """
        at: ast.stmt | None = stmt
        while at is not None:
            home = self._homes[at]
            for before in reversed(home.siblings[: home.place]):
                if _calls(before):
                    return bool(_bound(before) & _read(stmt))
            if home.owner is None or isinstance(home.owner, Function):
                return None
            header = list(_header(home.owner))
            if calls_in(header) or isinstance(home.owner, ast.For | ast.AsyncFor):
                return bool({name for part in header for name in _bound(part)} & _read(stmt))
            at = home.owner
        return None

    def _around(self, stmt: ast.stmt) -> Iterator[tuple[ast.stmt, _Home]]:
        """The statement and those around it, up to its function, each with its place."""
        at: ast.stmt | None = stmt
        while at is not None:
            home = self._homes[at]
            yield at, home
            at = None if isinstance(home.owner, Function) else home.owner

    def _leads_into_a_block(self, stmt: ast.stmt) -> bool:
        """Whether a `try: … finally:`, a `with`, or the end of the function comes next, with no call in between."""
        home = self._homes[stmt]
        if home.place + 1 < len(home.siblings):
            return self._is_or_leads_into_a_block(home.siblings[home.place + 1])
        owner = home.owner
        if owner is None or isinstance(owner, Function):
            return True
        if isinstance(owner, Loop) and home.field == "body":
            return False
        if isinstance(owner, ast.Try | ast.TryStar) and home.field == "body" and owner.orelse:
            return self._is_or_leads_into_a_block(owner.orelse[0])
        return self._leads_into_a_block(owner)

    def _is_or_leads_into_a_block(self, stmt: ast.stmt) -> bool:
        match stmt:
            case ast.With() | ast.AsyncWith() | ast.Return():
                return True
            case ast.Try() | ast.TryStar():
                return _gives_back(stmt) or self._is_or_leads_into_a_block(stmt.body[0])
            case ast.Break():
                loop = next((around for around, _ in self._around(stmt) if isinstance(around, Loop)), None)
                return loop is None or self._leads_into_a_block(loop)
            case ast.Continue() | ast.Raise():
                return False
            case ast.If() if not calls_in(_header(stmt)):
                if self._is_or_leads_into_a_block(stmt.body[0]):
                    return True
                return self._is_or_leads_into_a_block(stmt.orelse[0]) if stmt.orelse else self._leads_into_a_block(stmt)
            case ast.For() | ast.While() if not calls_in(_header(stmt)):
                return self._is_or_leads_into_a_block(stmt.body[0])
            case _:
                return not calls_in([stmt]) and self._leads_into_a_block(stmt)

    def _given_back(self, stmt: ast.stmt) -> set[str]:
        """The names of what a statement gives back when it is over: `lock` for `try: … finally: lock.release()`."""
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
            found = _touched(blocks)
        elif isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call):
            function = stmt.value.func
            if isinstance(function, ast.Attribute) and function.attr == "release":
                found = {_dotted(function.value)}
        return {name for name in found if name not in ("", "self", "cls") and name not in self._modules}


def calls_in(nodes: Iterable[ast.AST]) -> bool:
    """Whether any of the nodes calls or awaits something when it is executed."""
    return any(isinstance(node, ast.Call | ast.Await | ast.Yield | ast.YieldFrom) for node in _walk(nodes))


def reads_what_its_body_gets(loop: ast.stmt) -> bool:
    """Whether the condition of a `while` reads a name that its body binds: what ends the loop may be used after it."""
    if not isinstance(loop, ast.While):
        return False
    got = {name for stmt in loop.body if _calls(stmt) for name in _bound(stmt)}
    return bool(got & _read(loop.test))


def _cached(question: Callable[[ast.AST], K]) -> Callable[[ast.AST], K]:
    """Keep the answer in the node itself."""
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
    """The names that it binds."""
    return {part.id for part in _walk([node]) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


@_cached
def _read(node: ast.AST) -> set[str]:
    return {part.id for part in _walk([node]) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


@_cached
def _takes(node: ast.AST) -> set[str]:
    """The names of what it may have got hold of: what it has bound to the value of a call, or called a method of."""
    if not _calls(node):
        return set()
    bound = {_dotted(part) for part in _walk([node]) if isinstance(getattr(part, "ctx", None), ast.Store)}
    return bound | _touched([node])


def _touched(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of what is called a method of, and of what is handed to a call."""
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
    """The names of what is taken by `name.acquire()`."""
    calls = [node.func for node in _walk(nodes) if isinstance(node, ast.Call)]
    return {_dotted(call.value) for call in calls if isinstance(call, ast.Attribute) and call.attr == "acquire"}


def _dotted(node: ast.AST) -> str:
    """`a.b.c` as text. Empty for what is no such name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            left = _dotted(value)
            return f"{left}.{attribute}" if left else ""
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
    """The parts of a compound statement that are evaluated before its blocks; of a simple one, all of it."""
    if not isinstance(stmt, Function | Branching):
        yield stmt
        return
    for child in ast.iter_child_nodes(stmt):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These nodes and all beneath them that are executed with them: not the bodies of functions that they define."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += node.decorator_list
        elif not isinstance(node, ast.Lambda):
            todo += ast.iter_child_nodes(node)


def _gives_back(stmt: ast.Try | ast.TryStar) -> bool:
    """Whether something of it runs when an interrupt passes through it."""
    return bool(stmt.finalbody) or any(_catches_interrupts(handler) for handler in stmt.handlers)


def _catches_interrupts(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_dotted(kind).rpartition(".")[2] in ("BaseException", "AbortInterrupt") for kind in kinds)


def _end(stmt: ast.stmt) -> tuple[int, int]:
    return stmt.end_lineno or stmt.lineno, stmt.end_col_offset or 0


def _contains(stmt: ast.stmt, span: StatementPosition) -> bool:
    return (stmt.lineno, stmt.col_offset) <= (span.entry, span.column) and (span.end_line, span.end_column) <= _end(
        stmt
    )
