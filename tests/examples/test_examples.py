"""Every example runs, prints what it promises, and stays short enough to read."""

import signal
import subprocess
import sys
import time
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
    "02_receipt.py": [
        "Five tools are at work. Press Ctrl-C.",
        "Stopped: user: SIGINT",
        "run/build   await     stopped        after",
        "run/deaf    thread    still running  at",
        "02_receipt.py:21 in deaf (in",
    ],
}
# Examples that wait for Ctrl-C, and the line after which it is pressed.
PRESSED = {"02_receipt.py": "Press Ctrl-C"}


def test_every_example_has_its_promise():
    assert sorted(PROMISES) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PROMISES)
def test_the_example_does_what_it_says(name: str):
    path = EXAMPLES / name
    assert len(path.read_text().splitlines()) <= 60
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        told = ""
        if name in PRESSED:
            told = program.stdout.readline()
            assert PRESSED[name] in told
            time.sleep(0.5)  # real time: its tools have to be in the middle of their work
            program.send_signal(signal.SIGINT)
        rest, errors = program.communicate(timeout=50)
    told += rest
    assert (errors, program.returncode) == ("", 0)
    rest = told
    for line in PROMISES[name]:
        assert line in rest, f"{line!r} is missing, or not in its place, in:\n{told}"
        rest = rest.partition(line)[2]
