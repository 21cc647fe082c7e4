"""The table of phases × sources on the page of sessions is the one that is tested."""

import pytest

from safepoint.testing.conformance import table
from scripts import phases

TO_WRITE = "write it: `.venv/bin/python -m scripts.phases --write`"


def test_the_page_has_the_table_that_is_tested() -> None:
    page = phases.PAGE.read_text(encoding="utf-8")
    assert page == phases.with_table(page, table()), (
        f"The table in docs/sessions.md is not that of the suite: {TO_WRITE}"
    )
    assert phases.main([]) == 0


def test_the_table_is_put_between_the_markers_and_nothing_else_changes() -> None:
    page = f"# Title\n\n{phases.BEGIN}\nold\n{phases.END}\n\nMore.\n"
    written = phases.with_table(page, "| new |")
    assert written == f"# Title\n\n{phases.BEGIN}\n| new |\n{phases.END}\n\nMore.\n"
    assert phases.with_table(written, "| new |") == written


@pytest.mark.parametrize("page", ["", phases.BEGIN, phases.END + phases.BEGIN, (phases.BEGIN + phases.END) * 2])
def test_a_page_without_one_pair_of_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="needs one line"):
        phases.with_table(page, "")
