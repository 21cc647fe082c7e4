"""Owns the tests that look inside, beside those of `tests/cli/test_main.py`.

Owns the tests of the `safepoint` command against servers that really run: each command, and every exit code.
"""

import pytest

from safepoint.cli.main import parser


def test_the_examples_of_the_help_are_commands_that_exist(capsys: pytest.CaptureFixture[str]):
    shown = [
        line.split("  ")[1].split() for line in parser().format_help().splitlines() if line.startswith("  safepoint ")
    ]
    assert len(shown) >= 6
    for _, *arguments in shown:
        parser().parse_args(arguments)
