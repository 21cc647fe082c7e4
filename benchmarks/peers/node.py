"""Owns the Node process: one for the whole run, which gets one request per round like every other contender."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["Node", "Task", "node"]

SCRIPT = Path(__file__).with_suffix(".mjs")
Task: TypeAlias = Literal["any", "anyBytes", "anyObservers", "addListeners", "tellListeners"]


class Node:
    """A running Node that does what it is asked to."""

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [program, "--no-warnings", "--expose-gc", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.version = self._answer()

    def ask(self, task: Task, count: int) -> float:
        """Do the task with so many operations. What comes back is for one of them."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{task} {count}\n")
        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def node() -> Iterator[Node | None]:
    """Node, or None on a machine where there is none, or one without `AbortSignal.any`."""
    program = shutil.which("node")
    if program is None:
        yield None
        return
    peer = Node(program)
    with peer.process:  # closes its stdin at the end, by which it ends
        yield peer if peer.version else None
