"""Owns the benchmark of the server: a stop from the request to its acknowledgement, idle and under load, and events."""

import asyncio
import http.client
import json
import multiprocessing
import selectors
import socket
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import count
from typing import Any

import uvicorn

from safepoint.abort import AbortSignal
from safepoint.agent import Agent, AnswerEnded, Chunk, ModelRequest, TextDelta
from safepoint.messages import UserMessage
from safepoint.server import create_app
from safepoint.session import LocalHost, SqliteStore

from .measure import AtMost, Contender, Limit, Line, Measure, wall
from .peers.web import bare

STOPS = 20
CHUNKS = 2_000
CHUNK_SECONDS = 0.05
CROWD = 200
INSTANTS = 5


def peers() -> dict[str, str]:
    return {name: version(name) for name in ("starlette", "uvicorn", "sse-starlette")}


def lines(measure: Measure) -> Iterator[Line]:
    with serving(safepoint) as ours, serving(bare) as theirs:
        yield from stopping(measure, ours, theirs)
        with serving(safepoint_on_disk) as on_disk:
            yield from recorded_stops(measure, on_disk, theirs)
        yield from streaming(measure, ours, theirs)
        yield from crowded(measure, ours)


def stopping(measure: Measure, ours: int, theirs: int) -> Iterator[Line]:
    samples = measure("POST stop, to its acknowledgement", stops(ours), {"a bare echo in Starlette": echoes(theirs)})
    why = (
        "four fifths of what it adds is the abort itself: the signal, the guards of the turn, and the wake-up of the"
        " timer thread, which is to warn of leaves that go on; the busier the machine, the more that costs"
    )
    return samples.lines({"a bare echo in Starlette": AtMost(2, why)})


def recorded_stops(measure: Measure, ours: int, theirs: int) -> Iterator[Line]:
    """The answer `recorded` is given when the stop is on the disk: beside an echo that commits one row first."""
    peer = "an echo in Starlette that commits a row (SQLite, FULL)"
    contenders = {peer: echoes(theirs, "/commit")}
    samples = measure("POST stop with SqliteStore, to `recorded`", stops(ours, "recorded"), contenders)
    why = "the stop is signalled first, and the disk is shared with the end of the turn that it stops"
    return samples.lines({peer: AtMost(2, why)})


def streaming(measure: Measure, ours: int, theirs: int) -> Iterator[Line]:
    """No target: between the model's chunk and the reader's stand the agent, the log and its numbers."""
    peer = {"events of the same size in Starlette": bare_events(theirs)}
    yield from measure(f"a chunk from the model to a reader, of {CHUNKS:,}", live_events(ours), peer).lines()
    yield from measure(f"a stored event to a reader, of {CHUNKS:,}", stored_events(ours), peer).lines()


def crowded(measure: Measure, port: int) -> Iterator[Line]:
    """What 200 turns that stream at once add to the acknowledgement of a stop."""
    what = f"stop of {CROWD} turns that stream at once"
    measure.tell(what)
    with connection(port) as line:
        idle = statistics.median(acknowledged(line, running(line, "wait")) for _ in range(STOPS))
        crowd = [running(line, "talk") for _ in range(CROWD)]
        busy = statistics.median(acknowledged(line, one) for one in crowd)
        for path in crowd:
            until(line, path, "aborted")
        at_once = statistics.median(together(line, port) for _ in range(INSTANTS))
    yield Line(
        what=f"{what}: median ack, beyond an idle one", ours=busy - idle, peer="50 ms", theirs=None, target=Limit(0.05)
    )
    why = (
        "one process acknowledges them one after the other, half a millisecond each, and in between ends the turns"
        " that are stopped already"
    )
    yield Line(
        what=f"the same, all {CROWD} requests in one instant",
        ours=at_once - idle,
        peer="50 ms",
        theirs=None,
        target=Limit(0.05, why),
    )


def together(line: http.client.HTTPConnection, port: int) -> float:
    """The median of so many acknowledgements that are asked for in one instant."""
    crowd = [running(line, "talk") for _ in range(CROWD)]
    took = statistics.median(all_at_once(port, crowd))
    for path in crowd:
        until(line, path, "aborted")
        call(line, "DELETE", path.partition("/turns/")[0])
    return took


def all_at_once(port: int, paths: list[str]) -> list[float]:
    """Stop these turns with as many requests, each on a line of its own, written before the first answer is read."""
    body = json.dumps({"at": "NOW", "reason": "enough"})
    head = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    took: list[float] = []
    began: dict[int, float] = {}
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in paths]
        for line, path in zip(lines, paths, strict=True):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(line, selectors.EVENT_READ, line)
            began[line.fileno()] = wall()
            line.sendall(f"POST {path}/stop HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        while len(took) < len(lines):
            for key, _ in selector.select():
                took.append(wall() - began[key.fd])
                answer = key.data.recv(4096)
                assert b" 202 " in answer, answer
                selector.unregister(key.fileobj)
    return took


class Talker:
    """A model that does what it is told: waits for ever, talks on and on, or says so many words at once."""

    name = "talker"

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        said = request.messages[-1]
        match said.text.split() if isinstance(said, UserMessage) else []:
            case ["wait"]:
                await signal.wait_async()
            case ["talk"]:
                for number in count():
                    yield TextDelta(f"word {number} ")
                    await signal.sleep(CHUNK_SECONDS)
            case _:
                for _ in range(CHUNKS):
                    yield TextDelta("word ")
        yield AnswerEnded("stop")


@contextmanager
def serving(make: Callable[[], Any]) -> Iterator[int]:
    """A server in a process of its own: what it does after the answer takes nothing from whoever reads it. Its port."""
    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    process = spawned.Process(target=serve, args=[make, theirs], daemon=True)
    process.start()
    try:
        yield int(ours.recv())
    finally:
        process.kill()
        process.join(10)


def serve(make: Callable[[], Any], pipe: Any) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    pipe.send(listener.getsockname()[1])
    config = uvicorn.Config(make(), log_level="error", lifespan="off")
    asyncio.run(uvicorn.Server(config).serve([listener]))


def safepoint() -> Any:
    return create_app(LocalHost(Agent(Talker())))


def safepoint_on_disk() -> Any:
    folder = tempfile.mkdtemp()  # of a process that is killed: the system's temporary folder is where it may stay
    return create_app(LocalHost(Agent(Talker()), SqliteStore(f"{folder}/sessions.db")))


@contextmanager
def connection(port: int) -> Iterator[http.client.HTTPConnection]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    line.connect()
    line.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield line
    finally:
        line.close()


def call(line: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body)
    line.request(method, path, data, {"content-type": "application/json"})
    answer = line.getresponse().read()
    return json.loads(answer) if answer else None


def running(line: http.client.HTTPConnection, text: str) -> str:
    """The address of a turn that runs, in a session of its own."""
    session = call(line, "POST", "/api/sessions", {})["id"]
    turn = call(line, "POST", f"/api/sessions/{session}/messages", {"text": text})["id"]
    path = f"/api/sessions/{session}/turns/{turn}"
    until(line, path, "running")
    return path


def until(line: http.client.HTTPConnection, path: str, *statuses: str) -> None:
    while call(line, "GET", path)["status"] not in statuses:
        pass


def acknowledged(line: http.client.HTTPConnection, path: str, level: str | None = None) -> float:
    began = wall()
    ack = call(line, "POST", f"{path}/stop", {"at": "NOW", "reason": "enough"})
    took = wall() - began
    assert ack["status"] == "accepted", ack
    assert level in (None, ack["level"]), ack
    return took


def stops(port: int, level: str | None = None) -> Contender:
    def contender() -> float:
        took = []
        with connection(port) as line:
            for _ in range(STOPS):
                path = running(line, "wait")
                took.append(acknowledged(line, path, level))
                until(line, path, "aborted")
                call(line, "DELETE", path.partition("/turns/")[0])
        return statistics.median(took)

    return contender


def echoes(port: int, path: str = "/echo") -> Contender:
    def contender() -> float:
        took = []
        with connection(port) as line:
            for _ in range(STOPS):
                began = wall()
                call(line, "POST", path, {"at": "NOW", "reason": "enough"})
                took.append(wall() - began)
        return statistics.median(took)

    return contender


def read_until(line: http.client.HTTPConnection, path: str, last: bytes) -> None:
    line.request("GET", path)
    response = line.getresponse()
    while last not in response.readline():
        pass


def live_events(port: int) -> Contender:
    def contender() -> float:
        with connection(port) as line, connection(port) as reader:
            session = call(line, "POST", "/api/sessions", {})["id"]
            began = wall()
            call(line, "POST", f"/api/sessions/{session}/messages", {"text": "count"})
            read_until(reader, f"/api/sessions/{session}/events", b'"turn_ended"')
            return (wall() - began) / CHUNKS

    return contender


def stored_events(port: int) -> Contender:
    def contender() -> float:
        with connection(port) as line, connection(port) as first, connection(port) as reader:
            session = call(line, "POST", "/api/sessions", {})["id"]
            call(line, "POST", f"/api/sessions/{session}/messages", {"text": "count"})
            read_until(first, f"/api/sessions/{session}/events", b'"turn_ended"')
            began = wall()
            read_until(reader, f"/api/sessions/{session}/events", b'"turn_ended"')
            return (wall() - began) / CHUNKS

    return contender


def bare_events(port: int) -> Contender:
    def contender() -> float:
        with connection(port) as reader:
            began = wall()
            read_until(reader, f"/stream?count={CHUNKS}&size=120", f"id: {CHUNKS - 1}".encode())
            return (wall() - began) / CHUNKS

    return contender
