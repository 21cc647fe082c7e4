"""Owns programs that tests run beside themselves, and waiting for what they do."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import safepoint

SECONDS = 30.0
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
SOURCES = Path(safepoint.__file__).parents[1]

# The first lines of a program that uses Safepoint's core in a Python that has nothing but the standard library: the
# `__init__` of these packages needs more.
CORE = f"""
import os, sys
from types import ModuleType
for name in ("safepoint", "safepoint.run"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [os.path.join({str(SOURCES)!r}, *name.split("."))]
"""


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


@cache
def python_of(version: str) -> str:
    """An interpreter of this version: this one, one on the path, or one of pyenv. Skips the test if there is none."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob("*/bin"))
    for folder in folders:
        python = str(folder / f"python{version}")
        # A version that pyenv lists does not have to run.
        if os.path.isfile(python) and not subprocess.run([python, "-c", ""], capture_output=True).returncode:
            return python
    pytest.skip(f"there is no Python {version} here")


def run_core(version: str, source: str, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that uses Safepoint's core in another version of Python. Skips the test if that is not here."""
    command = [python_of(version), "-c", CORE + textwrap.dedent(source), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 4, check=False)


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
