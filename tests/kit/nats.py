"""Owns real NATS servers for tests, on loopback, each with a folder of its own; they end with the test."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 20.0


def server_binary() -> str:
    """The server that came with the tools, or the one of the system."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else "nats-server"


def new_namespace() -> str:
    """Where no other test is."""
    return f"t{uuid.uuid4().hex[:12]}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """One server that can be killed and started again where it was."""

    def __init__(self, folder: Path, port: int | None = None, config: str = "") -> None:
        self._folder = folder
        self._config = config
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [server_binary(), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder / "data")]
        if self._config:
            path = self._folder / "server.conf"
            path.write_text(self._config)
            command += ["-c", str(path)]
        log = (self._folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                if probe.recv(16).startswith(b"INFO"):
                    return
            time.sleep(0.02)  # real time: a process starts
        raise TimeoutError(f"nats-server does not answer: {(self._folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None


@contextlib.contextmanager
def nats_server(config: str = "") -> Iterator[NatsServer]:
    """A server of its own, new and empty."""
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder), config=config)
        server.start()
        try:
            yield server
        finally:
            server.kill()


_SHARED: list[tuple[contextlib.ExitStack, NatsServer]] = []


def shared_url() -> str:
    """One server for all tests of this process that do not harm it, or the one in NATS_URL."""
    if url := os.environ.get("NATS_URL"):
        return url
    if not _SHARED:
        import atexit

        stack = contextlib.ExitStack()
        _SHARED.append((stack, stack.enter_context(nats_server())))
        atexit.register(stack.close)
    return _SHARED[0][1].url
