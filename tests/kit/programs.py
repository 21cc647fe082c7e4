"""Programs that tests run beside themselves, the processes that are alive, and a server that never answers."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


def gone(*pids: int) -> bool:
    """Whether none of these processes runs; one that waits to be collected does not."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    return not any(map(runs, pids))


def children(command: str) -> list[int]:
    """The living processes with this command line; a word alone may stand anywhere in it."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read()
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state = file.read().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            # Several words are a whole command: not that of a program which is about to become it, such as `env`.
            wanted = words.startswith(command.encode()) if "\0" in command else command.encode() in words
            if wanted and state not in (b"Z", b"X"):
                found.append(int(entry))
    return found


@contextmanager
def silent_server() -> Iterator[tuple[str, list[socket.socket]]]:
    """A server that takes connections and never says anything: its address, and the connections it has."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connections.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", connections
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)
            for connection in connections:
                connection.close()
