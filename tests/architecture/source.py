"""Owns what a rule looks at: one file, parsed, with the names it imports."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file: its path relative to the folder it was read from, and its text."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        for _ in range(5):
            try:
                return ast.parse(self.text, filename=str(self.path))
            except SystemError:  # until Python 3.11.7: a thread of an earlier test parsed at the same time
                continue
        raise AssertionError(f"{self.path} cannot be parsed")

    @cached_property
    def imported(self) -> dict[str, str]:
        """What each imported name stands for: `from asyncio import sleep as nap` gives `nap` → `asyncio.sleep`."""
        names = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return names

    def dotted(self, node: ast.AST) -> str:
        """The full name an expression stands for, as far as imports tell; `""` when it is no name."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


Rule = Callable[[Source], Iterable[str]]


def read(folder: Path) -> list[Source]:
    """All Python files under a folder, in the order of their paths."""
    return [
        Source(PurePosixPath(path.relative_to(folder).as_posix()), path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
    ]
