"""Owns the tests that look inside, beside those of `tests/cli/test_style.py`.

Owns the tests of how the terminal looks: columns that stand in line, and bold only where a person looks.
"""

import pytest

from safepoint.cli.style import bold, table


def test_columns_stand_in_line_and_nothing_trails(capsys: pytest.CaptureFixture[str]):
    table(["turn", "status"], [["a-long-name", "ok"], ["b", 7]])
    assert capsys.readouterr().out.splitlines() == ["turn         status", "a-long-name  ok", "b            7"]


def test_a_table_without_rows_is_its_head(capsys: pytest.CaptureFixture[str]):
    table(["turn", "status"], [])
    assert capsys.readouterr().out == "turn  status\n"


def test_what_is_read_by_a_program_is_not_bold():
    assert bold("head") == "head"
