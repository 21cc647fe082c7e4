"""Owns how a file looks from outside: its size, its name, its docstring, its test, and the words in its text."""

import ast
import re
from collections.abc import Iterator, Set
from pathlib import PurePosixPath

from tests.architecture.source import Function, Source

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
NAMELESS = {"utils", "base", "manager", "common", "helpers"}


def oversized(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield source.at(1, f"the file has {lines} lines")
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield source.at(node.lineno, f"{node.name} has {length} lines")


def nameless(source: Source) -> Iterator[str]:
    for part in source.path.with_suffix("").parts:
        if part in NAMELESS:
            yield source.at(1, f"{part} does not say what is inside")


def undescribed(source: Source) -> Iterator[str]:
    if not (ast.get_docstring(source.tree) or "").strip():
        yield source.at(1, "no module docstring")


def unmirrored(source: Source, tests: Set[PurePosixPath]) -> Iterator[str]:
    """A module in a folder whose test file is missing; special names such as `__init__.py` need none."""
    path = source.path
    mirror = path.with_name(f"test_{path.name}")
    if len(path.parts) > 1 and not path.name.startswith("__") and mirror not in tests:
        yield source.at(1, f"tests/{mirror} is missing")


def unfinished(source: Source) -> Iterator[str]:
    return _lines_with(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", source)


def private_paths(source: Source) -> Iterator[str]:
    """Paths of somebody's machine; a path inside the project, or in a URL, is none."""
    return _lines_with(r"(?<![\w.~}-])/(root|home|Users|work|tmp)/", source)


def _lines_with(pattern: str, source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := re.search(pattern, line):
            yield source.at(number, found[0])
