"""Owns the output formats: a table that reads the same in a terminal and as Markdown, and JSON."""

from collections.abc import Iterable, Mapping, Sequence

from .measure import AtMost, Limit, Line, Target, Unit

__all__ = ["as_json", "markdown", "quantity"]

COLUMNS = ("what", "ours", "peer", "theirs", "ratio", "target", "verdict")
SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
UNEXPLAINED = "not explained yet"


def markdown(lines: Iterable[Line]) -> str:
    """The table, and below it the reason of each missed target."""
    lines = list(lines)
    missed = [
        f"- MISSED: {line.what}, against {line.peer}: {_why(line) or UNEXPLAINED}"
        for line in lines
        if line.verdict == "MISSED"
    ]
    return "\n".join([*_aligned([COLUMNS, *map(_cells, lines)]), *(["", *missed] if missed else [])])


def as_json(lines: Iterable[Line]) -> list[Mapping[str, object]]:
    """The same lines for a program: plain values, seconds and bytes."""
    return [
        {
            "what": line.what,
            "ours": line.ours,
            "peer": line.peer,
            "theirs": line.theirs,
            "unit": line.unit,
            "ratio": line.ratio,
            "target": _target(line.target, line.unit),
            "verdict": line.verdict,
            "why": _why(line),
        }
        for line in lines
    ]


def quantity(value: float, unit: Unit) -> str:
    """Three digits, in the unit that fits: `0.0000031 s` is `3.10 us`."""
    if unit == "B" and value >= 1e6:
        return f"{value / 1e6:,.1f} MB"
    if unit != "s":
        return f"{round(value, 1):,g} {unit}".rstrip()
    scale, name = next((s for s in SCALES if abs(value) >= s[0]), SCALES[-1])
    digits = value / scale
    return f"{digits:.{2 if abs(digits) < 10 else 1 if abs(digits) < 100 else 0}f} {name}"


def _cells(line: Line) -> Sequence[str]:
    return (
        line.what,
        quantity(line.ours, line.unit),
        line.peer,
        "not here" if line.theirs is None else quantity(line.theirs, line.unit),
        "" if line.ratio is None else f"{line.ratio:.3g}",
        _target(line.target, line.unit),
        line.verdict,
    )


def _why(line: Line) -> str:
    return line.target.why if line.target and line.verdict == "MISSED" else ""


def _target(target: Target | None, unit: Unit) -> str:
    match target:
        case None:
            return ""
        case AtMost(times):
            return f"<= {times:g} x"
        case Limit(most):
            return f"<= {quantity(most, unit)}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [head, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *body]
