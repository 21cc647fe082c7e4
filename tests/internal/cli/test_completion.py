"""Owns the tests of completion scripts, in the shells that are there."""

import shutil
import subprocess
from pathlib import Path

import pytest

from safepoint.cli.main import SHELLS, completion_script, parser


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_its_flags_are_there(shell: str):
    text = completion_script(shell, parser())
    for word in (
        "serve",
        "sessions",
        "turns",
        "stop",
        "receipt",
        "completion",
        "db",
        "within",
        "on-disconnect",
        "json",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("shell", "check"), [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "-n"])]
)
def test_the_shell_can_read_it(shell: str, check: list[str], tmp_path: Path):
    if shutil.which(check[0]) is None:
        pytest.skip(f"there is no {shell} here")
    path = tmp_path / "completion"
    path.write_text(completion_script(shell, parser()))
    done = subprocess.run([*check, str(path)], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["safepoint", "se"], ["serve", "sessions"]),
        (["safepoint", "stop", "--w"], ["--within"]),
        (["safepoint", "serve", "--d"], ["--db"]),
        (["safepoint", "nothing", "--"], []),
    ],
)
def test_bash_offers_what_fits(words: list[str], offered: list[str], tmp_path: Path):
    path = tmp_path / "completion"
    path.write_text(completion_script("bash", parser()))
    typed = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
    line = f"source {path}; {typed}; _safepoint; echo ${{COMPREPLY[@]}}"
    told = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=20, check=True).stdout
    assert told.split() == offered
