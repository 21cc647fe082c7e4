"""Owns which values a test may replace in a module: a constant of ours is a parameter's default, and is passed."""

import ast
import re
from collections.abc import Iterator, Mapping

from tests.architecture.source import Source

PACKAGE = "safepoint"
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
# The calls that replace an attribute, by the last part of their name: `monkeypatch.setattr`, `mock.patch.object`.
REPLACES = {"setattr", "patch", "object"}

# Constants that tests replace all the same: `module.NAME` as it is written, or `file:NAME` → why there is no other way.
PATCHED_CONSTANTS: dict[str, str] = {}


def patched_constants(source: Source, allowed: Mapping[str, str] = PATCHED_CONSTANTS) -> Iterator[str]:
    """Tests that replace a module constant of ours.

    An owner whose module is not known from an import, such as a loop variable, counts as ours. Constants of other
    packages may be replaced.
    """
    for node, owner, name in _replaced(source):
        if CONSTANT.fullmatch(name) and f"{source.path}:{name}" not in allowed and f"{owner}.{name}" not in allowed:
            yield source.at(node.lineno, f"{owner}.{name}")


def _replaced(source: Source) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """The attributes of ours that a file sets from outside: where, on what and which."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call(func, [ast.Constant(str() as path), *_]) if _replaces(func):
                owner, _, name = path.rpartition(".")
                if owner.partition(".")[0] == PACKAGE:
                    yield node, owner, name
            case ast.Call(func, [owner_node, ast.Constant(str() as name), *_]) if _replaces(func):
                if _may_be_ours(source, owner_node):
                    yield node, ast.unparse(owner_node), name
            case ast.Assign(targets):
                for target in targets:
                    if isinstance(target, ast.Attribute) and _is_ours(source, target.value):
                        yield node, ast.unparse(target.value), target.attr
            case _:
                pass


def _replaces(func: ast.expr) -> bool:
    return (isinstance(func, ast.Name) and func.id in REPLACES) or (
        isinstance(func, ast.Attribute) and func.attr in REPLACES
    )


def _is_ours(source: Source, owner: ast.expr) -> bool:
    return source.dotted(owner).partition(".")[0] == PACKAGE


def _may_be_ours(source: Source, owner: ast.expr) -> bool:
    root = owner
    while isinstance(root, ast.Attribute):
        root = root.value
    is_imported = isinstance(root, ast.Name) and root.id in source.imported
    return _is_ours(source, owner) or not is_imported
