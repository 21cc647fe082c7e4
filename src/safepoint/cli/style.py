"""Output for the terminal: bold text and tables. Knows nothing of what is shown."""

import os
import sys
from collections.abc import Sequence

__all__ = ["bold", "table"]


def bold(text: str) -> str:
    """The text in bold, if the output is a terminal and NO_COLOR is not set."""
    return text if os.environ.get("NO_COLOR") or not sys.stdout.isatty() else f"\033[1m{text}\033[0m"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with aligned columns."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print(bold(line) if number == 0 else line)
