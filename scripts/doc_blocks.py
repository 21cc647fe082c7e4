"""Extracts the Python blocks of the README and of docs/ as programs, so that they can be run and type-checked.

All Python blocks of a page together are one program, from top to bottom, inside an async function. Imports and
stand-ins for a reader's own code, which the page does not show, are in a comment of the page before the block:

    <!-- setup
    from safepoint.abort import AbortController
    -->

A block of the README that calls `asyncio.run` is a program by itself.

python scripts/doc_blocks.py FOLDER     write the programs to FOLDER, one file for each
"""

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^<!-- setup\n(?P<setup>.*?)^-->$|^```python\n(?P<shown>.*?)^```$", re.DOTALL | re.MULTILINE)
PRINTED = re.compile(r"^ *print\(.*\) +# (.+)$", re.MULTILINE)
WRITTEN_ALONE = "asyncio.run("


@dataclass(frozen=True)
class Program:
    """The code of a page as one program.

    Attributes:
        name: The page and, if it has several programs, a number.
        text: The source.
        promised: The texts that it prints according to the page, from the comments after `print(…)`.
    """

    name: str
    text: str
    promised: tuple[str, ...]


def programs() -> list[Program]:
    """The programs of all pages."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [program for page in pages for program in programs_of(page.stem.lower(), page.read_text(encoding="utf-8"))]


def programs_of(name: str, page: str) -> list[Program]:
    """The programs of one page: one for each block that runs by itself, and one of all other blocks together."""
    alone: list[str] = []
    together: list[str] = []
    for found in BLOCK.finditer(page):
        shown = found["shown"]
        if shown is not None and WRITTEN_ALONE in shown:
            alone.append(shown)
        else:
            together.append(found["setup"] if shown is None else shown)
    texts = [*alone, *([_in_a_function("\n".join(together))] if any(map(str.strip, together)) else [])]
    names = [name] if len(texts) == 1 else [f"{name}_{number}" for number in range(1, len(texts) + 1)]
    return [
        Program("page_" + name.replace("-", "_"), text, tuple(PRINTED.findall(text)))
        for name, text in zip(names, texts, strict=True)
    ]


def _in_a_function(body: str) -> str:
    """Wrap the blocks in an async function, because they use `await` at the top level."""
    indented = textwrap.indent(body, "    ")
    return f"import asyncio\n\n\nasync def page() -> None:\n{indented}\n\nasyncio.run(page())\n"


def write(folder: Path) -> list[Path]:
    """Write each program to a file, and remove the files of earlier runs."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    paths = []
    for program in programs():
        path = folder / f"{program.name}.py"
        path.write_text(program.text, encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    for written in write(Path(sys.argv[1])):
        print(written)
