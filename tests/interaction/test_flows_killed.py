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
from tests.kit.waiting import wait_until

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
        pid = self.start(folder)
        if kill_after is not None:
            time.sleep(kill_after)  # real time: the moment of the kill
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it was faster
        return self.ended()

    def start(self, folder: Path) -> int:
        """The child's process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        return int(self._line())

    def ended(self) -> int:
        """How the child ended that was started."""
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
        assert len(World(folder).runs()) == 1, "every node had the key that it had before, the first one too"
        completed += 1


@pytest.mark.parametrize("store", ["folder", "sqlite"])
def test_a_flow_that_is_killed_in_its_first_node_runs_it_again_with_the_same_key(
    store: str, tmp_path: Path, program: Program
):
    folder = tmp_path / store
    folder.mkdir()
    world = World(folder)
    (folder / "hold").touch()
    pid = program.start(folder)
    wait_until(lambda: len(world.lines()) == 1)
    os.kill(pid, signal.SIGKILL)
    assert program.ended() == -signal.SIGKILL
    (folder / "hold").unlink()
    assert program.run(folder, None) == 0
    first, again = world.lines()[:2]
    assert first == again
    assert first.endswith("=c1")


@pytest.mark.parametrize("store", ["folder", "sqlite"])
def test_of_two_processes_with_one_id_the_second_is_refused_and_told_who_has_it(
    store: str, tmp_path: Path, program: Program
):
    folder = tmp_path / store
    folder.mkdir()
    world, second = World(folder), Program()
    (folder / "hold").touch()
    pid = program.start(folder)
    try:
        wait_until(lambda: len(world.lines()) == 1)
        assert second.run(folder, None) == 2
    finally:
        os.kill(pid, signal.SIGKILL)
        second.close()
    assert program.ended() == -signal.SIGKILL
    assert f"is in use by process {pid} on " in (folder / "refused").read_text()
    assert len(world.lines()) == 1
    (folder / "hold").unlink()
    assert program.run(folder, None) == 0, "the lease ends with its holder"
    lines = world.lines()
    assert program.run(folder, None) == 0, "it has completed, and is given as it ended"
    assert world.lines() == lines
