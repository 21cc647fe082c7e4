"""Owns the account of the acceptance lines: which pass, which are open, and the table of counts in the README."""

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- acceptance:begin -->"
END = "<!-- acceptance:end -->"
SYSTEMS = {
    "test_page_agent": "page-agent: one signal for model and tools",
    "test_gadget": "gadget: from the page to the worker",
    "test_archivist": "Archivist: flows",
    "test_think": "Think: a session turn with an outside signal",
    "test_turn_loop": "TurnLoop: timing, scope, preemption",
}

Status = Literal["pass", "open", "FAIL"]
COLOURS: dict[Status, str] = {"pass": "32", "open": "33", "FAIL": "1;31"}


@dataclass(frozen=True)
class Line:
    """One line of the list: the test of that number in the file of its system."""

    system: str
    number: int
    sentence: str
    test: str
    is_open: bool


class Outcomes:
    """A pytest plugin that keeps, for each test, the worst that was reported of it."""

    def __init__(self) -> None:
        self.statuses: dict[str, Status] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        status = status_of(report)
        test = report.nodeid.partition("[")[0].rpartition("/")[2]
        if status and severity(status) >= severity(self.statuses.get(test, "pass")):
            self.statuses[test] = status


def status_of(report: pytest.TestReport) -> Status | None:
    """What one report says; None for a phase that says nothing. A skipped line was not proved, hence it fails."""
    if report.skipped:
        return "open" if hasattr(report, "wasxfail") else "FAIL"
    if report.failed:
        return "FAIL"
    return "pass" if report.when == "call" else None


def severity(status: Status) -> int:
    return list(COLOURS).index(status)


def all_lines() -> list[Line]:
    """Every line, read from the names and marks of the tests; nothing is run."""
    found = []
    for module, system in SYSTEMS.items():
        for name, test in vars(importlib.import_module(f"tests.acceptance.{module}")).items():
            if parts := re.fullmatch(r"test_(\d\d)_(\w+)", name):
                is_open = any(mark.name == "open_line" for mark in getattr(test, "pytestmark", ()))
                sentence = parts[2].replace("_", " ")
                found.append(Line(system, int(parts[1]), sentence, f"{module}.py::{name}", is_open))
    return found


def counts(lines: Iterable[Line]) -> str:
    """The table of counts for the README, by the marks: a line without the mark passes, or the tests fail."""
    rows = ["| system | lines | pass | open |", "|---|---:|---:|---:|"]
    total: Counter[bool] = Counter()
    for system, group in groupby(lines, lambda line: line.system):
        marks = Counter(line.is_open for line in group)
        total += marks
        rows.append(f"| {system} | {marks.total()} | {marks[False]} | {marks[True]} |")
    rows.append(f"| **all** | **{total.total()}** | **{total[False]}** | **{total[True]}** |")
    return "\n".join(rows)


def with_counts(readme: str, table: str) -> str:
    """The README with the table between its two markers.

    Raises: ValueError when it does not have exactly one pair of them.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before + after:
        raise ValueError(f"README.md needs one line {BEGIN} and, below it, one line {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def report(lines: Iterable[Line], statuses: Mapping[str, Status], *, colour: bool) -> str:
    """The table for people: every line under its system, counts per system and in total."""

    def painted(status: Status) -> str:
        return f"\033[{COLOURS[status]}m{status}\033[0m" if colour else status

    def summary(tally: Counter[Status]) -> str:
        return ", ".join(f"{tally[status]} {painted(status)}" for status in COLOURS)

    text = []
    total: Counter[Status] = Counter()
    for system, group in groupby(lines, lambda line: line.system):
        tally: Counter[Status] = Counter()
        text.append(system)
        for line in group:
            status = statuses[line.test]
            tally[status] += 1
            text.append(f"  {painted(status)}  {line.number:2}  {line.sentence}")
        total += tally
        text += [f"  {summary(tally)}", ""]
    return "\n".join([*text, f"all {total.total()} lines: {summary(total)}"])


def run() -> tuple[int, dict[str, Status], str]:
    """Run the lines; give pytest's exit code, the status of each test, and what pytest printed."""
    outcomes = Outcomes()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = pytest.main([str(ROOT / "tests" / "acceptance"), "-p", "no:cacheprovider"], plugins=[outcomes])
    return int(code), outcomes.statuses, printed.getvalue()


def show() -> bool:
    """Run the lines and print the table, and what pytest says where it has to complain; True when no line fails."""
    code, reported, printed = run()
    if code:
        print(printed, file=sys.stderr)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return False
    lines = all_lines()
    # A test that was never reported did not run, and proves nothing.
    statuses: dict[str, Status] = {line.test: reported.get(line.test, "FAIL") for line in lines}
    print(report(lines, statuses, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    return not code and "FAIL" not in statuses.values()


def write() -> None:
    README.write_text(with_counts(README.read_text(encoding="utf-8"), counts(all_lines())), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the acceptance tests, one per line of what the five systems do, and show where they stand.",
        epilog="pass: proved by its test. open: not built yet. FAIL: neither; the exit code is then 1. "
        "The table is coloured on a terminal unless NO_COLOR is set.",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--counts", action="store_true", help="print only the table of counts for README.md; runs nothing"
    )
    only.add_argument("--write", action="store_true", help="when no line fails, put the table of counts into README.md")
    options = parser.parse_args()

    if options.counts:
        print(counts(all_lines()))
        return 0
    if not show():
        return 1
    if options.write:
        try:
            write()
        except ValueError as error:
            parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    # The tests are imported from the root; and the scripts beside this one must not hide packages of their names.
    sys.path[0] = str(ROOT)
    sys.exit(main())
