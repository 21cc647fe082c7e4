"""Owns how the terminal looks: bold heads and tables. Knows nothing of what is shown."""

import os
import sys
from typing import Any

__all__ = ["bold", "table"]


def bold(text: str) -> str:
    """Bold, where a person looks and has not forbidden it."""
    return text if os.environ.get("NO_COLOR") or not sys.stdout.isatty() else f"\033[1m{text}\033[0m"


def table(head: list[str], rows: list[list[Any]]) -> None:
    """Print columns."""
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print(bold(line) if number == 0 else line)
