"""Owns the comparison of every place that may abort with the table in docs/abort-triggers.md."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile

from tests.architecture.source import Function, Source

COLUMNS = ["where", "who asks", "can it hit running work?"]
ABORTS = {"abort", "announce", "wake_guards"}


def unlisted_triggers(sources: Iterable[Source], page: str) -> Iterator[str]:
    """Where the source and the table differ, and rows that leave a question open."""
    sites = {site for source in sources for site in abort_sites(source)}
    rows = list(table_rows(page))
    listed = Counter(row[0].strip("`") for row in rows)
    yield from (f"add the line: | `{site}` | <who asks> | <yes or no, and why> |" for site in sorted(sites - {*listed}))
    yield from (f"remove the line of `{site}`: nothing aborts there" for site in sorted({*listed} - sites))
    yield from (f"`{site}` is listed {times} times" for site, times in listed.items() if times > 1)
    yield from (f"{row[0]}: fill in every column" for row in rows if len(row) != len(COLUMNS) or "" in row)


def abort_sites(source: Source) -> Iterator[str]:
    """Every function of a file that aborts or hands the means on, as `path/file.py:Class.function`."""
    return (f"{source.path}:{'.'.join(names) or '<module>'}" for names in _aborting(source.tree, ()))


def _aborting(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(node, Function | ast.ClassDef):
        # What `abort` does inside is the abort; whoever calls it is the trigger.
        if node.name in ABORTS:
            return
        names = (*names, node.name)
    if isinstance(node, ast.Attribute) and node.attr in ABORTS and isinstance(node.ctx, ast.Load):
        yield names
    for child in ast.iter_child_nodes(node):
        yield from _aborting(child, names)


def table_rows(page: str) -> Iterator[list[str]]:
    """The rows of each markdown table on the page that has the columns of the list."""
    lines = iter(page.splitlines())
    for line in lines:
        if [cell.lower() for cell in _cells(line)] == COLUMNS:
            rows = takewhile(lambda text: text.lstrip().startswith("|"), lines)
            yield from (row for row in map(_cells, rows) if set("".join(row)) - set(":- "))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]
