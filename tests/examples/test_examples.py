"""Every example runs, prints what it promises, and stays short enough to read."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# What a reader is told to see, in order.
PROMISES = {
    "01_signal.py": [
        "An await, a thread and a process tree",
        "Stop!",
        "await          stopped after",
        "thread         stopped after",
        "process tree   stopped after",
        "it had said b'three processes, deaf to TERM\\n'; still running: nobody",
        "Why: user: the user pressed Stop",
    ],
}


def test_every_example_has_its_promise():
    assert sorted(PROMISES) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PROMISES)
def test_the_example_does_what_it_says(name: str):
    path = EXAMPLES / name
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=50, check=True)
    assert done.stderr == ""
    rest = done.stdout
    for line in PROMISES[name]:
        assert line in rest, f"{line!r} is missing, or not in its place, in:\n{done.stdout}"
        rest = rest.partition(line)[2]
