"""Owns running Python source in a process of its own: for what a test cannot do to the process it runs in."""

import subprocess
import sys
import textwrap

SECONDS = 30.0


def run_python(source: str) -> "subprocess.CompletedProcess[str]":
    """Run the source to its end. Raises: TimeoutExpired if it does not come to one."""
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def printed(source: str) -> str:
    """What the source prints when it ends well. Whatever goes wrong is shown."""
    __tracebackhide__ = True
    ended = run_python(source)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()
