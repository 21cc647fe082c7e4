"""Owns the tests that look inside, beside those of `tests/run/test_terminal.py`.

Reading answers from the standard input: a stop withdraws the question, and every question gets a line of its own.
"""

import builtins

import pytest

from safepoint.run import read_line
from safepoint.run.terminal import withdrawable


def test_only_the_builtin_input_is_replaced(monkeypatch: pytest.MonkeyPatch):
    assert withdrawable(builtins.input)
    assert not withdrawable(read_line)
    monkeypatch.setattr(builtins, "input", lambda prompt: "of a notebook")
    assert not withdrawable(builtins.input)
