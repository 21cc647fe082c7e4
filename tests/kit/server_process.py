"""`safepoint serve` in a child process, and a client for it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """One server. `with ServerProcess("--db", path) as child:`; whatever is left of it at the end is killed."""

    def __init__(self, *options: str, agent: str | None = "tests.server.agents:helper", port: int = 0) -> None:
        named = [] if agent is None else [agent]
        command = [sys.executable, "-m", "safepoint", "serve", *named, "--port", str(port), *options]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self._kill = threading.Timer(50, self.process.kill)  # every wait is bounded
        self._kill.start()
        first = self.process.stdout.readline()
        assert first.startswith("Safepoint is at "), first or self.process.communicate()[1]
        self.address = first.removeprefix("Safepoint is at ").strip()
        self.url = self.address.partition("/#")[0]
        self.client = httpx.Client(base_url=self.url, timeout=20, trust_env=False, verify=False)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *about: object) -> None:
        self.client.close()
        self._kill.cancel()
        self.process.kill()
        self.process.communicate(timeout=10)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        more = {} if body is None else {"json": body}
        return self.client.request(method, path, **more)

    def session(self, session_id: str = "s") -> str:
        assert self.call("POST", "/api/sessions", {"id": session_id}).status_code == 201
        return session_id

    def send(self, text: str, turn_id: str, session: str = "s") -> str:
        answer = self.call("POST", f"/api/sessions/{session}/messages", {"text": text, "turn_id": turn_id})
        assert answer.status_code == 202, answer.text
        return turn_id

    def until(
        self, kind: str, session: str = "s", *, reads: threading.Event | None = None, **fields: Any
    ) -> list[dict[str, Any]]:
        """All events up to and with the first of this kind. `reads` is set when the first one has come."""
        read = []
        with self.client.stream("GET", f"/api/sessions/{session}/events") as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    read.append(event)
                    if reads is not None:
                        reads.set()
                    if event["kind"] == kind and all(event[name] == value for name, value in fields.items()):
                        return read
        raise AssertionError(f"the stream ended without {kind}")

    def until_draining(self) -> None:
        """Wait until it has heard the signal."""
        until = time.monotonic() + 20
        while self.call("GET", "/healthz").status_code != 503:
            assert time.monotonic() < until, "the server does not drain"

    def until_blocked(self) -> None:
        """Wait until it answers nobody."""
        until = time.monotonic() + 20
        try:
            while time.monotonic() < until:
                self.client.get("/healthz", timeout=1)
        except httpx.TimeoutException:
            return
        raise AssertionError("the server is not blocked")

    def turn(self, turn: str, session: str = "s") -> dict[str, Any]:
        return dict(self.call("GET", f"/api/sessions/{session}/turns/{turn}").json())

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float, str, str]:
        """Send a signal; the exit code, the seconds it took, and what was said since."""
        began = time.monotonic()
        self.process.send_signal(number)
        told, errors = self.process.communicate(timeout=40)
        return self.process.returncode, time.monotonic() - began, told, errors
