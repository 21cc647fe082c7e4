"""Owns the proof that the tests notice a broken guard or signal: breaks them in one place at a time, and looks.

Nothing in src/ is touched: every break happens in a temporary copy of the package and its tests.
"""

import argparse
import ast
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYER = Path("src", "safepoint", "abort")
FILES = ("guard.py", "signal.py", "deadline.py")
# The file's own tests come first, which notice most; the randomised schedules last, which take longest.
TESTS = ("guard", "signal", "deadline", "ambient", "controller", "listeners", "stream", "guard_anyio")
LAST = ("guard_interleavings",)
AT_ONCE = 2
TEST_SECONDS = 20
RUN_SECONDS = 60.0

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
OPPOSITES = {"min": "max", "max": "min"}
UNTOUCHED = {"annotation", "returns", "decorator_list", "bases"}
Positioned = ast.expr | ast.stmt
Edit = tuple[Positioned, str]


@dataclass(frozen=True)
class Mutant:
    """A file with one change: where, in which line, what, and the whole changed text."""

    place: str
    number: int
    line: str
    change: str
    text: str = field(repr=False)

    @property
    def file(self) -> str:
        return self.place.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.line}\n    {self.change}"


@dataclass(frozen=True)
class Equivalent:
    """A change nobody can notice, and why. It holds for this very line only: a changed line is looked at again."""

    place: str
    line: str
    change: str
    why: str

    def covers(self, mutant: Mutant) -> bool:
        return (self.place, self.line, self.change) == (mutant.place, mutant.line, mutant.change)


EQUIVALENT: tuple[Equivalent, ...] = ()


def mutants(file: str, text: str) -> list[Mutant]:
    """Every change of this file, in the order of its lines, none twice."""
    lines = text.encode().splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    found: dict[str, Mutant] = {}
    for place, node in visited(ast.parse(text), file):
        for target, replacement in edits(node):
            assert target.end_lineno is not None
            assert target.end_col_offset is not None
            begin = starts[target.lineno - 1] + target.col_offset
            end = starts[target.end_lineno - 1] + target.end_col_offset
            changed = (text.encode()[:begin] + replacement.encode() + text.encode()[end:]).decode()
            line = lines[target.lineno - 1].decode().strip()
            change = f"{ast.unparse(target)} → {replacement}"
            found.setdefault(ast.dump(ast.parse(changed)), Mutant(place, target.lineno, line, change, changed))
    return sorted(found.values(), key=lambda mutant: mutant.number)


def visited(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node that may be changed, with the name of the function it stands in."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Expr(ast.Constant()):
            return  # for the type checker, for people, and docstrings
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            place = f"{place}.{name}" if ":" in place else f"{place}:{name}"
        case _:
            pass
    yield place, node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNTOUCHED:
                yield from visited(child, place)


def edits(node: ast.AST) -> Iterator[Edit]:
    """The changes that begin at this node: which part of it becomes what."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from changed_defaults(node)
            yield from removed_statements(node)
            yield from changed_returns(node)
        case ast.Compare(left, ops, comparators):
            for index, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    swapped = ast.Compare(left, [*ops[:index], other(), *ops[index + 1 :]], comparators)
                    yield node, f"({ast.unparse(swapped)})"
        case ast.BoolOp(op, values):
            yield node, f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
            yield from chain.from_iterable(map(negated, values))
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield from negated(test)
        case ast.comprehension(ifs=ifs):
            yield from chain.from_iterable(map(negated, ifs))
        case ast.UnaryOp(ast.Not(), operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            yield node, f"({ast.unparse(ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right))})"
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() | float() as value):
            yield node, str(value + 1)
        case ast.keyword(value=ast.Constant(None) as default):
            yield default, "0"
        case ast.Call(ast.Name(name) as function) if name in OPPOSITES:
            yield function, OPPOSITES[name]
        case _:
            pass


def negated(condition: ast.expr) -> Iterator[Edit]:
    """`not` in front, where no other change amounts to the same."""
    match condition:
        case ast.UnaryOp(ast.Not()) | ast.Constant() | ast.Compare():
            return
        case _:
            yield condition, f"(not ({ast.unparse(condition)}))"


def changed_defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    """None as the default of a parameter; the other constants are changed wherever they stand."""
    for default in [*function.args.defaults, *function.args.kw_defaults]:
        if isinstance(default, ast.Constant) and default.value is None:
            yield default, "0"


def removed_statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    """Statements whose absence only shows in behaviour: not the one assignment that gives a variable its value."""
    nodes = list(own_nodes(function))
    stores = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in nodes:
        match node:
            case ast.Expr(ast.Constant()):
                pass
            case ast.Expr() | ast.Raise() | ast.Break() | ast.Continue() | ast.Return(None) | ast.AugAssign():
                yield node, "pass"
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                for kept, value in zip(targets, values, strict=True):
                    yield node, f"{ast.unparse(kept)} = {ast.unparse(value)}"
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name), value=ast.expr()):
                if stores.count(name) > 1:
                    yield node, "pass"
            case ast.Assign([_]) | ast.AnnAssign(value=ast.expr()):
                yield node, "pass"
            case ast.Assign(targets, value):
                for target in targets:
                    if not isinstance(target, ast.Name):
                        rest = [ast.unparse(other) for other in targets if other is not target]
                        yield node, " = ".join([*rest, ast.unparse(value)])
            case _:
                pass


def changed_returns(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
    truth = isinstance(function.returns, ast.Name) and function.returns.id == "bool"
    for node in own_nodes(function):
        match node:
            case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
                yield node, f"return not ({ast.unparse(value)})" if truth else "return None"
            case _:
                pass


def own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions inside it."""
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If) or not is_skipped(node):
            yield node
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))
