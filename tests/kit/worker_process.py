"""`safepoint worker` in a child process, which a test kills or drains."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 30.0


class WorkerProcess:
    """A worker that runs somewhere else."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self.name = name

    async def kill(self) -> None:
        """As the power cut does."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def drain(self) -> int:
        """As a deploy does; its exit code."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            return await self._process.wait()


@asynccontextmanager
async def worker_process(
    url: str, namespace: str, *options: str, agent: str = "tests.worker.agents:helper"
) -> AsyncIterator[WorkerProcess]:
    """`safepoint worker …`, until the block ends."""
    name = f"w-{uuid.uuid4().hex[:6]}"
    command = [sys.executable, "-m", "safepoint", "worker", agent, "--nats", url, "--namespace", namespace]
    process = await asyncio.create_subprocess_exec(
        *command, "--name", name, *options, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"}
    )
    assert process.stdout is not None
    made = WorkerProcess(process, name)
    try:
        async with asyncio.timeout(SECONDS):
            line = await process.stdout.readline()
        assert b"takes orders" in line, line
        yield made
    finally:
        await made.kill()
        await process.stdout.read()
