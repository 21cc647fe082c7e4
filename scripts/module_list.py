"""Writes docs/modules.md, the list of all modules, from their docstrings. A test compares the two.

python scripts/module_list.py            print the page
python scripts/module_list.py --write    write docs/modules.md
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "safepoint"
PAGE = ROOT / "docs" / "modules.md"
HEAD = """# All modules

The first sentence of each module's docstring, package by package, in the order of the layers in
[architecture.md](architecture.md). This page is written by `python scripts/module_list.py --write`.
"""
PACKAGES = (
    "",
    "abort",
    "process",
    "storage",
    "run",
    "run/interrupt",
    "run/owned",
    "agent",
    "models",
    "flow",
    "turns",
    "session",
    "worker",
    "worker/nats",
    "server",
    "cli",
    "testing",
    "testing/inject",
    "testing/conformance",
)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for package in PACKAGES:
        name = ".".join(["safepoint", *package.split("/")]).rstrip(".")
        parts.append(f"\n## {name}\n\n| module | purpose |\n|---|---|\n")
        parts.extend(f"| `{name}` | {sentence} |\n" for name, sentence in modules(PACKAGE / package))
    return "".join(parts)


def modules(folder: Path) -> Iterator[tuple[str, str]]:
    """The modules of one folder with the first sentence of their docstrings."""
    for path in sorted(folder.glob("*.py")):
        text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
        yield path.name, first_sentence(text).replace("|", "\\|")


def first_sentence(text: str) -> str:
    """The text up to the first full stop that ends a sentence."""
    end = text.find(". ")
    return text if end < 0 else text[: end + 1]


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description="The list of all modules in docs/modules.md.")
    parser.add_argument("--write", action="store_true", help="write docs/modules.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())


if __name__ == "__main__":
    main()
