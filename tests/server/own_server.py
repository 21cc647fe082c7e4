"""Owns a program that serves `create_app(host)` by a uvicorn of its own, and a client of it.

It is given a port, a database, and what its model says; without that it says a word and then nothing more.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from safepoint.agent import Agent
from safepoint.models.scripted import ScriptedModel, Stall
from safepoint.server import create_app
from safepoint.session import LocalHost, SqliteStore

SECONDS = 20.0


class OwnServer:
    """The program while it runs."""

    def __init__(self, db: Path, *answers: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [sys.executable, "-m", __name__, port, str(db), *answers]
        self.process = subprocess.Popen(command)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS, trust_env=False)

    def __enter__(self) -> "OwnServer":
        until = time.monotonic() + SECONDS
        while True:
            try:
                self.client.get("/healthz")
                return self
            except httpx.TransportError:
                assert time.monotonic() < until, "it does not begin"
                time.sleep(0.05)  # real time: another process begins

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait(SECONDS)

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return dict(answer.json())

    @contextmanager
    def reading(self, kind: str, after_kind: str | None = None) -> Iterator[Iterator[str]]:
        """An open stream of events that has brought this kind, after that other one. Gives the lines that come then."""
        with self.client.stream("GET", "/api/sessions/s/events") as response:
            lines = response.iter_lines()
            for line in lines:
                found = json.loads(line[6:]).get("kind") if line.startswith("data: {") else None
                if found is not None and found == after_kind:
                    after_kind = None
                elif found == kind and after_kind is None:
                    break
            yield lines

    def until(self, kind: str, after_kind: str | None = None) -> None:
        with self.reading(kind, after_kind):
            pass


def main(port: str, db: str, *answers: str) -> None:
    model = ScriptedModel(*answers) if answers else ScriptedModel(["half", Stall()])
    host = LocalHost(Agent(model, name="helper"), SqliteStore(db), resume=True)
    uvicorn.run(create_app(host, within=0.1), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
