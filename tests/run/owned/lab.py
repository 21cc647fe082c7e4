"""A run with one leaf that is stopped while its tool is at work, and things for tools to hang in."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from safepoint import AbortController
from safepoint.run import Completed, Context, Entry, Outcome, Policy, Receipt, leaf, settle

SECONDS = 20.0


@dataclass
class Stopped:
    """How the run ended: its outcome, and how long after the stop."""

    outcome: Outcome[Any]
    seconds: float

    @property
    def receipt(self) -> Receipt:
        assert not isinstance(self.outcome, Completed)
        return self.outcome.receipt

    def entries(self, name: str) -> list[Entry]:
        """The lines whose operation ends with this name."""
        return [entry for entry in self.receipt.entries if entry.name.rpartition("/")[2] == name]

    def fate(self, name: str) -> str:
        [entry] = self.entries(name)
        return entry.fate


class Gate:
    """Says that the tool is where the test wants it: set in the tool, awaited by the test."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    async def opened(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self._event.wait, SECONDS)


async def until(condition: Callable[[], object]) -> None:
    """Bounded by the test's own time limit."""
    while not condition():
        await asyncio.sleep(0.001)  # real time: a thread, a program or a socket has to get somewhere


async def stop(tool: Callable[..., Any], when: Callable[[], object], policy: Policy | None = None) -> Stopped:
    """Run the tool as a leaf of a run, and stop the run as soon as `when()` is true."""
    controller = AbortController()
    ctx = Context(signal=controller.signal)

    async def work(ctx: Context, value: None) -> Any:
        return await leaf(ctx, tool, policy=policy or Policy())

    running = asyncio.ensure_future(settle(ctx, work, None))
    await until(lambda: when() or running.done())
    start = time.monotonic()
    controller.abort("stop")
    outcome = await running
    return Stopped(outcome, time.monotonic() - start)


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
