"""Writes the table of all events in docs/events.md from their classes. A test compares the two.

python scripts/event_table.py            print the table
python scripts/event_table.py --write    put it into docs/events.md
"""

import argparse
import ast
import inspect
from pathlib import Path
from typing import get_args

from safepoint import events

PAGE = Path(__file__).parent.parent / "docs" / "events.md"
BEGIN = "<!-- table:begin -->"
END = "<!-- table:end -->"


def table() -> str:
    """One row for each member of `Event`: class, kind, fields, meaning."""
    rows = ["| event | `kind` | own fields | meaning |", "|---|---|---|---|"]
    for event in get_args(events.Event):
        own = ", ".join(f"`{name}: {kind}`" for name, kind in _annotations(event).items() if name != "kind")
        kind = event.__dataclass_fields__["kind"].default
        rows.append(f"| `{event.__name__}` | `{kind}` | {own or '–'} | {_meaning(event)} |")
    return "\n".join(rows)


def _annotations(event: type) -> dict[str, str]:
    """The types of the fields as they are written in the source, by name."""
    (found,) = ast.parse(inspect.getsource(event)).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id: ast.unparse(field.annotation).replace("|", "\\|")
        for field in found.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _meaning(event: type) -> str:
    """The description of a class, without its list of attributes."""
    text = inspect.cleandoc(event.__doc__ or "").partition("\nAttributes:")[0]
    return " ".join(text.split()).replace("|", "\\|")


def page_with(text: str, new: str) -> str:
    """The page with another table between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description="The table of all events in docs/events.md.")
    parser.add_argument("--write", action="store_true", help="put it into docs/events.md")
    if parser.parse_args().write:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), table()), encoding="utf-8")
    else:
        print(table())


if __name__ == "__main__":
    main()
