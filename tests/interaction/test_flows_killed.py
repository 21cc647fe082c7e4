"""A flow whose process is killed at any moment goes on from its last checkpoint, and ends as if it had not been."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import counts
from tests.flow.killed import World

ROOT = Path(__file__).parents[2]


class Program:
    """The program of `tests/flow/killed.py`, which runs one child after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.flow.killed"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, kill_after: float | None) -> int:
        """How the child ended; -9 if it was killed in time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        pid = int(self._line())
        if kill_after is not None:
            time.sleep(kill_after)  # real time: the moment of the kill
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it was faster
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program has ended"
        return line

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    yield program
    program.close()


@pytest.mark.parametrize("store", ["folder", "sqlite"])
def test_a_flow_that_is_killed_again_and_again_ends_as_if_it_had_not_been(store: str, tmp_path: Path, program: Program):
    for name in ("first", "whole"):  # the first one waits for Python to start, and does not tell how long a run takes
        whole = tmp_path / f"{name}-{store}"
        whole.mkdir()
        began = time.monotonic()
        assert program.run(whole, None) == 0
        took = time.monotonic() - began
    expected = (whole / "result").read_text()
    assert expected.count("\n") == 25  # 26 entries: 13 in each round
    kills, completed = 0, 0
    rng = random.Random(store)
    while kills < counts(10, 200) or not completed:
        folder = tmp_path / f"{completed}-{store}"
        folder.mkdir()
        while (status := program.run(folder, rng.uniform(0, took))) == -signal.SIGKILL:
            kills += 1
        assert status == 0
        assert (folder / "result").read_text() == expected
        assert World(folder).effects() == World(whole).effects()
        completed += 1
