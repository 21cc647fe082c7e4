"""Owns reading docstrings: the texts of the parameters, and what remains as the description for a model.

Reads the three usual styles: Google (`Args:`), NumPy (`Parameters` above a line of dashes) and Sphinx (`:param x:`).
Knows nothing of functions and of tools.
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ReadDocstring", "read_docstring"]

GOOGLE = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters):\s*")
GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")
NUMPY = re.compile(r"(Parameters|Other Parameters)\s*")
NUMPY_LINE = re.compile(r"-{3,}\s*")
NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
SPHINX = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
SPHINX_TYPE = re.compile(r":(?:type\s+\w+|rtype)\s*:.*")


@dataclass(frozen=True, slots=True)
class ReadDocstring:
    """What a docstring says.

    Attributes:
        description: The text without the parameters. What the function returns and raises is kept.
        parameters: The text of each parameter, on one line.
    """

    description: str
    parameters: dict[str, str]


def read_docstring(docstring: str | None) -> ReadDocstring:
    """Read a docstring of any of the three styles."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    kept: list[str] = []
    parameters: dict[str, str] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        if GOOGLE.fullmatch(line) and (end := _end_of_block(lines, index + 1)) > index + 1:
            parameters.update(_google(lines[index + 1 : end]))
        elif NUMPY.fullmatch(line) and index + 1 < len(lines) and NUMPY_LINE.fullmatch(lines[index + 1]):
            end = _end_of_numpy_section(lines, index + 2)
            parameters.update(_numpy(lines[index + 2 : end]))
        elif (field := SPHINX.fullmatch(line)) is not None:
            end = _end_of_block(lines, index + 1)
            parameters[field[1]] = _joined([field[2], *lines[index + 1 : end]])
        elif SPHINX_TYPE.fullmatch(line):
            end = index + 1
        else:
            kept.append(line)
            end = index + 1
        index = end
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return ReadDocstring(description, {name: text for name, text in parameters.items() if text})


def _end_of_block(lines: Sequence[str], start: int) -> int:
    """Return the index after the indented lines from `start` on. Blank lines at their end do not belong to them."""
    end = start
    for index in range(start, len(lines)):
        if not lines[index].strip():
            continue
        if not lines[index][0].isspace():
            break
        end = index + 1
    return end


def _end_of_numpy_section(lines: Sequence[str], start: int) -> int:
    for index in range(start, len(lines) - 1):
        if lines[index].strip() and NUMPY_LINE.fullmatch(lines[index + 1]):
            return index
    return len(lines)


def _google(lines: Sequence[str]) -> dict[str, str]:
    indent = min(_indent(line) for line in lines if line.strip())
    texts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        item = GOOGLE_ITEM.fullmatch(line.strip()) if _indent(line) == indent else None
        if item is not None:
            current = texts[item[1]] = [item[2] or ""]
        else:
            current.append(line)  # also an indented line that lost its indentation
    return {name: _joined(text) for name, text in texts.items()}


def _numpy(lines: Sequence[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    current: list[list[str]] = []
    for line in lines:
        item = None if not line.strip() or line[0].isspace() else NUMPY_ITEM.fullmatch(line.strip())
        if item is None:
            for text in current:
                text.append(line)
        else:
            current = [texts.setdefault(name.strip().lstrip("*"), []) for name in item[1].split(",")]
    return {name: _joined(text) for name, text in texts.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())
