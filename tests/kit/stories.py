"""A program that is killed again and again, until its work is done."""

import subprocess
import sys
from pathlib import Path


class Story:
    """One piece of work over many lives of a program, which forks a life for each seed that it is told."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        root = Path(__file__).parents[2]
        self.program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)

    def live(self, seed: int) -> str:
        """How the life ended: killed, done or failed."""
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        print(seed, file=self.program.stdin, flush=True)
        return self.program.stdout.readline().strip()

    def end(self) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.close()
        self.program.wait(20)
        self.program.stdout.close()
