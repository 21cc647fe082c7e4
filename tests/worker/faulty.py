"""Owns what the fault tests need: workers in processes that can be killed, a wire that can be cut, and busy clients."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from safepoint.process import group as process_group
from safepoint.session import LoggedEvent
from safepoint.worker import NatsBroker, RemoteHost
from tests.worker.laws import SLACK, Stopped, Story, Told, broken
from tests.worker.toiling import FOLDER, NAME

ROOT = Path(__file__).parents[2]
LEASE = 1.0
PATIENCE = 20.0
ORPHANS = 5.0  # so long what a killed worker had started may outlive it
OPEN = 3  # turns of one session, at most


class Member:
    """A worker in a process of its own."""

    def __init__(self, name: str, process: "asyncio.subprocess.Process", mark: str) -> None:
        self.name = name
        self.process = process
        self.mark = mark
        self.killed_at = 0.0

    @property
    def family(self) -> list[int]:
        """The worker and everything that came from it."""
        return process_group.marked(self.mark)

    async def kill(self) -> None:
        """As a power cut does; the processes of its turns are left."""
        self.killed_at = time.time()
        self.send(signal.SIGKILL)
        await asyncio.wait_for(self.process.wait(), PATIENCE)

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def gone(self) -> None:
        """Nothing of it is left. Raises: AssertionError if something is, after a while."""
        until = time.monotonic() + ORPHANS
        while (left := self.family) and time.monotonic() < until:
            await asyncio.sleep(0.05)  # real time: processes end
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"{len(left)} processes of {self.name} have outlived it by {ORPHANS:g} s"


class Lab:
    """A broker somewhere, workers in processes, a host, and what is known of each session."""

    def __init__(self, folder: Path, urls: Sequence[str], *, lease: float = LEASE, replicas: int = 1) -> None:
        self.folder = folder
        self.urls = list(urls)
        self.namespace = f"f{uuid.uuid4().hex[:10]}"
        self.lease = lease
        self.replicas = replicas
        self.members: list[Member] = []
        self.clients: list[Client] = []
        self.host = RemoteHost(self.broker)

    @property
    def broker(self) -> NatsBroker:
        return NatsBroker(self.urls, namespace=self.namespace, lease=self.lease, replicas=self.replicas)

    async def start(
        self, name: str, *options: str, url: str | None = None, agent: str = "tests.worker.toiling:agent"
    ) -> Member:
        """`safepoint worker …`, when it takes orders."""
        mark = uuid.uuid4().hex
        words = [sys.executable, "-m", "safepoint", "worker", agent, "--nats", url or ",".join(self.urls)]
        words += ["--namespace", self.namespace, "--name", name, "--lease", str(self.lease)]
        words += ["--replicas", str(self.replicas), "--attempts", "1000", "--grace", "2", *options]
        env = {**process_group.with_mark(os.environ, mark), FOLDER: str(self.folder), NAME: name, "NO_COLOR": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        member = Member(name, process, mark)
        self.members.append(member)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        assert b"takes orders" in line, (self.folder / f"{name}.log").read_text()[-2000:]
        return member

    async def start_all(self, *names: str) -> list[Member]:
        async with asyncio.TaskGroup() as group:  # if one fails, nothing waits for the others any more
            tasks = [group.create_task(self.start(name)) for name in names]
        return [task.result() for task in tasks]

    async def client(self, seed: int, **about: float) -> "Client":
        """A session, with somebody who keeps it busy."""
        client = Client(self, f"s{len(self.clients)}", random.Random(seed), **about)
        await self.host.create(client.story.session)
        self.clients.append(client)
        client.begin()
        return client

    def effects(self) -> list[list[str]]:
        """Each piece of work: turn, number, time, worker."""
        path = self.folder / "effects"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    async def worker_of(self, client: "Client", besides: str = "") -> Member:
        """The worker that runs a turn of this session, as soon as it has done something new in it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                turns = client.turns
                names = [name for turn_id, _, _, name in self.effects() if turn_id in turns]
                if names and names[-1] != besides:
                    return next(member for member in self.members if member.name == names[-1])
                await asyncio.sleep(0.02)  # real time: another process works

    async def check(self, *, same_clock: bool = True, settle: float = PATIENCE) -> None:
        """Let everything end, and hold all that is known against the logs, as another server reads them."""
        await asyncio.gather(*(client.settled(settle) for client in self.clients))
        effects = [(turn_id, float(at)) for turn_id, _, at, _ in self.effects()]
        other = RemoteHost(self.broker)
        try:
            for client in self.clients:
                followed = [one.seq for one in client.log]
                log = await _read(other, client.story.session, len(followed))
                assert followed == [one.seq for one in log][: len(followed)], "who followed it has read something else"
                client.story.effects = effects
                client.story.same_clock = same_clock
                assert not (wrong := broken(client.story, log)), self.said(client, log, wrong)
        finally:
            await other.close()

    def said(self, client: "Client", log: list[LoggedEvent], wrong: list[str]) -> str:
        """Everything that helps to see why."""
        events = [f"{one.seq} {one.event.at:.3f} {one.kind} {one.event.run_id} {_more(one)}" for one in log]
        stops = [f"{stop.at:.3f} {stop}" for stop in client.story.stops]
        return "\n".join([*wrong, "--", *events, "--", *stops, "--", *self.logs()])

    def logs(self) -> list[str]:
        """What the workers have said."""
        return [f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))]

    async def close(self) -> None:
        for member in self.members:  # before anything is waited for: whatever happens next, they are gone
            member.send(signal.SIGCONT)
            member.send(signal.SIGKILL)
        for client in self.clients:
            await client.end()
        await asyncio.wait_for(self.host.close(), PATIENCE)
        for member in self.members:
            assert member.process.stdout is not None
            await asyncio.wait_for(member.process.stdout.read(), PATIENCE)
            await asyncio.wait_for(member.process.wait(), PATIENCE)
        await asyncio.gather(*(member.gone() for member in self.members))


def _more(recorded: LoggedEvent) -> str:
    event = recorded.event
    outcome = getattr(event, "outcome", None)
    why = "" if outcome is None else f"{outcome.status} {getattr(outcome, 'reason', '')} at {outcome.finished_at:.3f}"
    return " ".join(filter(None, [why, str(getattr(event, "continues", None) or "")]))


@contextlib.asynccontextmanager
async def lab(folder: Path, *urls: str, lease: float = LEASE, replicas: int = 1) -> AsyncIterator[Lab]:
    """A lab that leaves nothing behind."""
    made = Lab(folder, urls, lease=lease, replicas=replicas)
    try:
        yield made
    finally:
        await made.close()


async def _read(host: RemoteHost, session: str, least: int) -> list[LoggedEvent]:
    """The log, up to what is there now."""
    found: list[LoggedEvent] = []
    async with asyncio.timeout(PATIENCE):
        seq = max((await host.session(session)).last_seq, least)
        async with contextlib.aclosing(host.events(session)) as events:
            async for recorded in events:
                found.append(recorded)
                if recorded.seq >= seq:
                    break
    return found


class Client:
    """Somebody who keeps a session busy, stops turns of it, follows it, and remembers everything."""

    def __init__(
        self, lab: Lab, session: str, chance: random.Random, *, stops: float = 0.35, pause: float = 0.15
    ) -> None:
        self.lab = lab
        self.story = Story(session)
        self.chance = chance
        self.log: list[LoggedEvent] = []
        self.limit = 2.0  # seconds, for the answer to a stop
        self.away = SLACK  # seconds for which what was asked for may be on its way, while the broker is not there
        self._stops = stops
        self._pause = pause
        self._sent = 0
        self._going = True
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks.append(asyncio.create_task(self._follow()))

    def talk(self) -> None:
        """Be busy, from now on."""
        self._tasks.append(asyncio.create_task(self._talk()))

    async def quiet(self) -> None:
        """Ask for nothing more."""
        self._going = False
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._tasks[1:])

    async def _follow(self) -> None:
        async with contextlib.aclosing(self.lab.host.events(self.story.session)) as events:
            async for recorded in events:
                self.log.append(recorded)
                self._news.set()
                self._news = asyncio.Event()

    async def _talk(self) -> None:
        while self._going:
            if len(self.open) < OPEN:
                await self.send(f"steps={self.chance.randrange(4)} pause={0.1 * self.chance.random():.3f}")
            if self.story.accepted and self.chance.random() < self._stops:
                await self.stop(self.chance.choice(self.story.accepted[-4:]))
            await asyncio.sleep(self._pause * self.chance.random())  # real time: there must be something to fail in

    @property
    def told(self) -> Told:
        return Told(self.log)

    @property
    def turns(self) -> set[str]:
        """All its turns so far, those that went on with another one included."""
        return self.told.queued

    @property
    def open(self) -> list[str]:
        """The turns that were accepted and are not over."""
        told, stopped = self.told, {stop.turn_id for stop in self.story.stops}
        return [turn_id for turn_id in self.story.accepted if not told.is_over(turn_id, stopped)]

    async def send(self, text: str) -> str:
        self._sent += 1
        turn_id = f"{self.story.session}-{self._sent}"
        view = await self.lab.host.send(self.story.session, text, turn_id=turn_id)
        # Whatever the view says: on a busy machine a turn may run, or be over, before the host has looked at it.
        self.story.accepted.append(view.id)
        return view.id

    async def stop(self, turn_id: str, slack: float = SLACK) -> Stopped:
        limit, begun = self.limit, time.monotonic()
        async with asyncio.timeout(PATIENCE):
            ack = await self.lab.host.stop(self.story.session, turn_id)
        seconds = time.monotonic() - begun
        slack = self.away if ack.level == "accepted" else slack
        stop = Stopped(turn_id, time.time(), seconds, ack.status, ack.level, ack.message, slack, limit)
        self.story.stops.append(stop)
        return stop

    async def settled(self, seconds: float = PATIENCE) -> None:
        """Until everything that was accepted is over, or for so long."""
        await self.quiet()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.open:
                    await self._news.wait()

    async def until(self, turn_id: str, *statuses: str) -> None:
        """Until a turn, or what goes on with it, has ended in one of these ways."""
        async with asyncio.timeout(PATIENCE):
            while True:
                outcome = self.told.outcome(self.told.chain(turn_id)[-1])
                if outcome is not None and outcome.status in statuses:
                    return
                await self._news.wait()

    async def carried_on(self, turn_id: str, times: int) -> None:
        """Until another owner has gone on with a turn, so many times in all."""
        async with asyncio.timeout(PATIENCE):
            while len(chain := self.told.chain(turn_id)) <= times or chain[-1] not in self.begun:
                await self._news.wait()

    @property
    def begun(self) -> set[str]:
        return {one.event.run_id for one in self.log if one.kind == "turn_started"}

    async def end(self) -> None:
        self._going = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Wire:
    """The way from workers to a broker, which can be cut: nothing passes, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        there, to = await asyncio.open_connection("127.0.0.1", self._to)
        both = [asyncio.create_task(self._pass_on(*way)) for way in ((reader, to), (there, writer))]
        try:
            await asyncio.wait(both)
        finally:
            for task in both:
                task.cancel()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(2**16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def _took(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connected(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._took, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.mend()
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
