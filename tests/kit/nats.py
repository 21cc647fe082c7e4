"""Owns real NATS servers for tests, on loopback, each with a folder of its own; they end with the test."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
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


class NatsCluster:
    """Three servers that keep everything three times. `founders`: so many of them elect a leader without the others."""

    def __init__(self, folder: Path, founders: int = 3) -> None:
        routes = [free_port() for _ in range(3)]
        others = ", ".join(f"nats://127.0.0.1:{port}" for port in routes[:founders])
        self.servers = {
            f"n{number}": NatsServer(
                folder / f"n{number}",
                config=f"server_name: n{number}\ncluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{others}] }}\n",
            )
            for number, port in enumerate(routes)
        }

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers.values()]

    async def start(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in self.servers.values()))

    async def leader(self, stream: str, seconds: float = PATIENCE) -> str:
        """The name of the server that decides what this stream keeps, as soon as there is one."""
        import nats

        async def ignore(error: Exception) -> None:
            """A server that was killed is not there: the next one is asked."""

        connection = await nats.connect(self.urls, error_cb=ignore)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(nats.errors.Error, nats.js.errors.Error):
                        info = await connection.jetstream(timeout=2).stream_info(stream)
                        if info.cluster is not None and info.cluster.leader:
                            return info.cluster.leader
                    await asyncio.sleep(0.1)  # real time: they elect one
        finally:
            await connection.close()

    def kill(self) -> None:
        for server in self.servers.values():
            server.kill()


@contextlib.asynccontextmanager
async def nats_cluster(folder: Path) -> AsyncIterator[NatsCluster]:
    """Three servers that are started, and that end with the block."""
    cluster = NatsCluster(folder / "cluster")
    try:
        await cluster.start()
        yield cluster
    finally:
        cluster.kill()


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
