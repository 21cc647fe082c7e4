"""Owns the table of phases × sources in docs/sessions.md: it is what the conformance suite for hosts plays."""

import sys
from pathlib import Path

from safepoint.testing.conformance import table

PAGE = Path(__file__).parent.parent / "docs" / "sessions.md"
BEGIN = "<!-- phases:begin -->"
END = "<!-- phases:end -->"


def with_table(page: str, rows: str) -> str:
    """The page with the table between its two markers. Raises: ValueError when it has not exactly one pair of them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before + after:
        raise ValueError(f"docs/sessions.md needs one line {BEGIN} and, below it, one line {END}")
    return f"{before}{BEGIN}\n{rows}\n{END}{after}"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    written = with_table(page, table())
    if "--write" in arguments:
        PAGE.write_text(written, encoding="utf-8")
    return 0 if "--write" in arguments or written == page else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
