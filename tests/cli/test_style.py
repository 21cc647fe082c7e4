"""Owns the tests of how the terminal looks: columns that stand in line, and bold only where a person looks."""

import os
import pty
import subprocess
import sys

import pytest

SAY = "from safepoint.cli.style import bold; print(bold('head'))"


@pytest.mark.parametrize(("no_color", "shown"), [(None, b"\x1b[1mhead\x1b[0m"), ("1", b"head")])
def test_a_terminal_is_shown_bold_unless_it_wants_none(no_color: str | None, shown: bytes):
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    master, slave = pty.openpty()
    more = {} if no_color is None else {"NO_COLOR": no_color}
    subprocess.run([sys.executable, "-c", SAY], stdout=slave, env=environment | more, timeout=30, check=True)
    os.close(slave)
    assert os.read(master, 100).strip() == shown
    os.close(master)
