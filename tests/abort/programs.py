"""Owns programs that tests run beside themselves, and waiting for what they do."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

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


def alive(pid: int) -> bool:
    """Whether the process runs: a zombie, which nobody may ever collect in a container, does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def wait_until(condition: Callable[[], object]) -> None:
    """Block this thread until the condition is true. Bounded."""
    __tracebackhide__ = True
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not come true in time")
