"""Owns bare NATS as a peer: a server of its own, a responder, and plain publishing into JetStream."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats

__all__ = ["answering", "echoes", "free_port", "publishing", "server"]

SUBJECT = "bare.echo"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A NATS server with JetStream, on loopback; its address."""
    beside = Path(sys.executable).with_name("nats-server")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(beside), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(500):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
                    if probe.recv(8):
                        break
                time.sleep(0.02)
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait(10)


@contextlib.contextmanager
def answering(url: str) -> Iterator[None]:
    """Somebody in a process of his own who answers at once, as a worker does."""
    command = [sys.executable, "-m", "benchmarks.peers.broker", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


async def echoes(connection: Any, count: int) -> list[float]:
    """How long each of so many questions takes to be answered."""
    data = json.dumps({"turn_id": "t" * 32, "at": "NOW", "within": None, "reason": {"kind": "user"}}).encode()
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await connection.request(SUBJECT, data, timeout=5)
        took.append(time.perf_counter() - began)
    return took


async def publishing(connection: Any, stream: str, count: int, data: bytes) -> float:
    """Publish so many messages into a stream, each acknowledged, many on their way at once; seconds for one."""
    jetstream = connection.jetstream()
    with contextlib.suppress(Exception):
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"])
    began = time.perf_counter()
    waiting = [await jetstream.publish_async(f"{stream}.chunk", data) for _ in range(count)]
    await asyncio.gather(*waiting)
    return (time.perf_counter() - began) / count


async def _answer(url: str) -> None:
    connection = await nats.connect(url)

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await connection.subscribe(SUBJECT, cb=answer)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_answer(sys.argv[1]))
