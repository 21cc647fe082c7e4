"""Owns the promise that the README counts the acceptance lines as they are, and that the count can be believed."""

from collections import Counter

import pytest

from scripts import acceptance
from scripts.acceptance import Line

pytest_plugins = ["pytester"]

TO_WRITE = "run what `make acceptance` runs, with its write flag: `.venv/bin/python scripts/acceptance.py --write`"
LINES = [
    Line("a: first", 1, "it works", "test_a.py::test_01_it_works", is_open=False),
    Line("a: first", 2, "it stops", "test_a.py::test_02_it_stops", is_open=True),
    Line("b: second", 1, "it goes on", "test_b.py::test_01_it_goes_on", is_open=True),
]
COUNTS = """\
| system | lines | pass | open |
|---|---:|---:|---:|
| a: first | 2 | 1 | 1 |
| b: second | 1 | 0 | 1 |
| **all** | **3** | **1** | **2** |"""


def test_the_readme_counts_the_acceptance_lines_as_they_are() -> None:
    readme = acceptance.README.read_text(encoding="utf-8")
    try:
        expected = acceptance.with_counts(readme, acceptance.counts(acceptance.all_lines()))
    except ValueError as error:
        raise pytest.fail.Exception(f"{error}; then {TO_WRITE}", pytrace=False) from None
    if readme != expected:
        pytest.fail(f"The counts in README.md are not those of tests/acceptance/: {TO_WRITE}", pytrace=False)


def test_every_line_of_the_list_has_its_test() -> None:
    lines = acceptance.all_lines()
    assert list(Counter(line.system for line in lines).values()) == [16, 14, 12, 12, 18]
    for system in acceptance.SYSTEMS.values():
        numbers = [line.number for line in lines if line.system == system]
        assert numbers == list(range(1, len(numbers) + 1)), system


def test_the_counts_go_by_the_marks() -> None:
    assert acceptance.counts(LINES) == COUNTS


def test_the_table_is_put_between_the_markers_and_nothing_else_changes() -> None:
    readme = f"# Title\n\n{acceptance.BEGIN}\nold\n{acceptance.END}\n\nMore.\n"
    written = acceptance.with_counts(readme, COUNTS)
    assert written == f"# Title\n\n{acceptance.BEGIN}\n{COUNTS}\n{acceptance.END}\n\nMore.\n"
    assert acceptance.with_counts(written, COUNTS) == written


@pytest.mark.parametrize(
    "readme",
    ["", acceptance.BEGIN, acceptance.END + acceptance.BEGIN, (acceptance.BEGIN + acceptance.END) * 2],
    ids=["none", "one", "swapped", "two pairs"],
)
def test_a_readme_without_one_pair_of_markers_is_refused(readme: str) -> None:
    with pytest.raises(ValueError, match="needs one line"):
        acceptance.with_counts(readme, COUNTS)


def test_the_report_shows_every_line_and_the_counts() -> None:
    statuses: dict[str, acceptance.Status] = {
        "test_a.py::test_01_it_works": "pass",
        "test_a.py::test_02_it_stops": "open",
        "test_b.py::test_01_it_goes_on": "FAIL",
    }
    assert acceptance.report(LINES, statuses, colour=False) == (
        "a: first\n  pass   1  it works\n  open   2  it stops\n  1 pass, 1 open, 0 FAIL\n\n"
        "b: second\n  FAIL   1  it goes on\n  0 pass, 0 open, 1 FAIL\n\n"
        "all 3 lines: 1 pass, 1 open, 1 FAIL"
    )
    assert "\033[1;31mFAIL\033[0m" in acceptance.report(LINES, statuses, colour=True)


def test_each_line_is_judged_by_the_worst_that_was_reported(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = open_line")
    pytester.makepyfile(
        test_a="""
        import pytest
        from tests.acceptance.lines import not_built, open_line

        @pytest.fixture
        def broken():
            yield
            raise RuntimeError

        def test_01_passes(): pass

        @open_line
        def test_02_is_open(): not_built()

        def test_03_fails(): assert False

        @open_line
        def test_04_passes_with_its_mark_left_on(): pass

        @open_line
        def test_05_breaks_with_its_mark_left_on(): assert False

        def test_06_lost_its_mark(): not_built()

        def test_07_fails_in_its_end(broken): pass

        def test_08_is_skipped(): pytest.skip("no server")

        @pytest.mark.parametrize("loop", ["a/b", "c"])
        def test_09_fails_on_one_loop(loop): assert loop == "c"

        @pytest.mark.parametrize("loop", ["a/b", "c"])
        def test_10_passes_on_all_loops(loop): pass
        """
    )
    outcomes = acceptance.Outcomes()
    pytester.inline_run(plugins=[outcomes])
    statuses = [outcomes.statuses[test] for test in sorted(outcomes.statuses)]
    assert statuses == ["pass", "open", "FAIL", "FAIL", "FAIL", "FAIL", "FAIL", "FAIL", "FAIL", "pass"]
