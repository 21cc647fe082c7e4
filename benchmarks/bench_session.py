"""Owns the benchmark of sessions: what a turn costs beside the bare run, and what a store costs beside raw SQLite."""

import asyncio
import gc
import sqlite3
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from safepoint.agent import Agent, tool
from safepoint.events import CallRecorded, TextStreamed, event_to_json
from safepoint.messages import Message
from safepoint.models.scripted import Call, ScriptedModel, Stall
from safepoint.run import Completed
from safepoint.session import MemoryStore, Session, SqliteStore, Store
from safepoint.session.log import PAGE
from safepoint.session.store import LogRecord

from .measure import AtMost, Limit, Line, Measure, cpu, wall

SHORT = 2
TURNS = 40
EVENTS, BATCH = 5_000, 100
IDLE = 200
STOPS = 200
WORDS = "so this is what was found in the files that you have asked me to look at, word by word"


def peers() -> dict[str, str]:
    return {"SQLite": sqlite3.sqlite_version}


def lines(measure: Measure) -> Iterator[Line]:
    yield from turns_in_memory(measure)
    yield from turns_on_disk(measure)
    yield from stops(measure)
    yield from calls_on_record(measure)
    yield from appending(measure)
    yield from replaying(measure)
    yield from idle(measure)


@tool
async def look(place: str) -> str:
    """Look somewhere."""
    return f"seen {place}"


def agent() -> Agent:
    """Each turn: a tool call, then an answer of a sentence."""
    answers: list[Any] = [["let me see", Call("look", place="there")], WORDS]
    return Agent(ScriptedModel(*answers * TURNS), tools=[look])


def turns_in_memory(measure: Measure) -> Iterator[Line]:
    samples = measure(
        "a turn in a session (MemoryStore)",
        lambda: asyncio.run(in_session(MemoryStore, cpu)),
        {
            "the bare run, its events read": lambda: asyncio.run(bare(read_events)),
            "the bare run, nobody listens": lambda: asyncio.run(bare(only_wait)),
        },
        samples=SHORT,
    )
    why = "every event is written as JSON, which costs as much as making it"
    return samples.lines({"the bare run, its events read": AtMost(2, why)})


async def in_session(store: Callable[[], Store], clock: Callable[[], float]) -> float:
    kept = store()
    async with Session.open("s", agent=agent(), store=kept) as session:
        start = clock()
        for _ in range(TURNS):
            assert (await session.send("go")).status == "completed"
        cost = (clock() - start) / TURNS
    await kept.close()
    return cost


async def bare(run: Callable[[Agent, Sequence[Message]], Awaitable[Sequence[Message]]]) -> float:
    who, history = agent(), list[Message]()
    start = cpu()
    for _ in range(TURNS):
        history = list(await run(who, history))
    return (cpu() - start) / TURNS


async def read_events(who: Agent, history: Sequence[Message]) -> Sequence[Message]:
    async with who.run("go", history=history) as run:
        async for _ in run:
            pass
        return (await run).unwrap().messages


async def only_wait(who: Agent, history: Sequence[Message]) -> Sequence[Message]:
    outcome = await who.run("go", history=history)
    assert isinstance(outcome, Completed)
    return outcome.value.messages


def turns_on_disk(measure: Measure) -> Iterator[Line]:
    """No target: three times in a turn something must be on the disk before the next thing happens; a disk is slow."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))

        def path() -> Path:
            return Path(folder) / f"{next(numbers)}.db"

        batches = asyncio.run(written_batches(path()))
        samples = measure(
            "a turn in a session (SqliteStore)",
            lambda: asyncio.run(in_session(lambda: SqliteStore(path()), wall)),
            {"the same batches in raw sqlite3": lambda: raw_append(path(), batches) / TURNS},
        )
        return samples.lines()


def stops(measure: Measure) -> Iterator[Line]:
    """Turns that wait for their model are stopped all at once, until the caller of each has its result."""
    samples = measure(
        f"one of {STOPS} turns stopped at once, each of a session (MemoryStore)",
        lambda: asyncio.run(stopped_sessions()),
        {f"one of {STOPS} runs stopped at once": lambda: asyncio.run(stopped_runs())},
        samples=SHORT,
    )
    why = "a turn records its stop and its end, each as JSON, and its caller waits until both are in the store"
    return samples.lines({f"one of {STOPS} runs stopped at once": AtMost(1.5, why)})


def waiting_agent() -> Agent:
    answers: list[Any] = [["let me see", Stall()]]
    return Agent(ScriptedModel(*answers * STOPS), tools=[look])


async def stopped_sessions() -> float:
    store, who = MemoryStore(), waiting_agent()
    sessions = [await Session.open(f"s{number}", agent=who, store=store) for number in range(STOPS)]
    turns = [session.send("go") for session in sessions]
    for session in sessions:
        async for logged in session.events():
            if isinstance(logged.event, TextStreamed):
                break
    start = cpu()
    for turn in turns:
        turn.stop()
    for turn in turns:
        assert (await turn).status == "aborted"
    cost = (cpu() - start) / STOPS
    for session in sessions:
        await session.close()
    return cost


async def stopped_runs() -> float:
    who = waiting_agent()
    runs = [who.run("go") for _ in range(STOPS)]
    readers = [aiter(run) for run in runs]  # kept: a run whose events are no longer read is stopped
    for reader in readers:
        while not isinstance(await anext(reader), TextStreamed):
            pass
    start = cpu()
    for run in runs:
        run.stop()
    for run in runs:
        assert (await run).status == "aborted"
    return (cpu() - start) / STOPS


def calls_on_record(measure: Measure) -> Iterator[Line]:
    """What a tool call costs that must be on the disk before its body begins, beside the same row in raw sqlite3."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))

        def path() -> Path:
            return Path(folder) / f"{next(numbers)}.db"

        samples = measure(
            "a tool call, on record before its body begins (SqliteStore)",
            lambda: asyncio.run(recorded_calls(path())),
            {"the same row, raw sqlite3 (FULL) in a thread": lambda: asyncio.run(committed_rows(path()))},
        )
        why = (
            "the batch has nine rows, and its commit alone costs what the whole of theirs does; the rest is the agent's"
            " own way from the model's answer to the tool, its events, and the two hops to the store's thread and back"
        )
        return samples.lines({"the same row, raw sqlite3 (FULL) in a thread": AtMost(1.5, why)})


async def recorded_calls(path: Path) -> float:
    """The median time from the model's answer, a call, to the beginning of the tool's body, in one turn of many."""
    asked, waits = list[float](), list[float]()

    @tool
    async def pay() -> str:
        """Pay."""
        waits.append(wall() - asked[-1])
        return "paid"

    def answer(request: Any) -> Any:
        asked.append(wall())
        return [Call("pay")]

    who = Agent(ScriptedModel(*[answer] * TURNS, "done"), tools=[pay], max_steps=TURNS + 2)
    kept = SqliteStore(path)
    async with Session.open("s", agent=who, store=kept) as session:
        assert (await session.send("go")).status == "completed"
    await kept.close()
    assert len(waits) == TURNS
    return median(waits)


async def committed_rows(path: Path) -> float:
    """The median time of a commit of such a row, asked for from the event loop and done by one thread."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    columns = "session TEXT, seq INTEGER, text TEXT, ends TEXT, PRIMARY KEY (session, seq)"
    db.execute(f"CREATE TABLE events ({columns}) WITHOUT ROWID")
    place: Any = {"run_id": "0" * 32, "path": ("agent",), "at": 0.0}
    text = event_to_json(
        CallRecorded(**place, call_id="call-1", name="pay", effects="irreversible", idempotency_key="k" * 40)
    )

    def commit(number: int) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", ("s", number, text, None))
        db.execute("COMMIT")

    loop, taken = asyncio.get_running_loop(), list[float]()
    with ThreadPoolExecutor(1) as thread:
        for number in range(TURNS):
            start = wall()
            await loop.run_in_executor(thread, commit, number)
            taken.append(wall() - start)
    db.close()
    return median(taken)


class Noting(SqliteStore):
    """Notes what it is told to write."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.batches: list[tuple[list[LogRecord], bool]] = []

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        self.batches.append((list(records), durable))
        return await super().append(session, records, durable=durable)


async def written_batches(path: Path) -> list[tuple[list[LogRecord], bool]]:
    store = Noting(path)
    await in_session(lambda: store, wall)
    return store.batches


def raw_append(path: Path, batches: Sequence[tuple[Sequence[LogRecord], bool]]) -> float:
    """The least that can be done: one thread, no questions asked. The cost of all."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    columns = "session TEXT, seq INTEGER, text TEXT, ends TEXT, PRIMARY KEY (session, seq)"
    db.execute(f"CREATE TABLE events ({columns}) WITHOUT ROWID")
    start = wall()
    full = None
    for records, durable in batches:
        if durable is not full:
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            full = durable
        db.execute("BEGIN IMMEDIATE")
        rows = [("s", record.seq, record.text, record.ends) for record in records]
        db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        db.execute("COMMIT")
    cost = wall() - start
    db.close()
    return cost


def chunks() -> list[tuple[list[LogRecord], bool]]:
    text = event_to_json(TextStreamed(run_id="t" * 32, path=("agent",), at=1_700_000_000.0, text="a word"))
    records = [LogRecord(number, text) for number in range(1, EVENTS + 1)]
    return [(records[start : start + BATCH], False) for start in range(0, EVENTS, BATCH)]


def appending(measure: Measure) -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(1_000_000))
        batches = chunks()

        def path() -> Path:
            return Path(folder) / f"{next(numbers)}.db"

        async def ours() -> float:
            store = SqliteStore(path())
            await store.acquire("s")
            start = wall()
            for records, durable in batches:
                await store.append("s", records, durable=durable)
            cost = wall() - start
            await store.close()
            return cost / EVENTS

        samples = measure(
            f"an event appended, {BATCH} to a batch",
            lambda: asyncio.run(ours()),
            {"raw sqlite3": lambda: raw_append(path(), batches) / EVENTS},
            samples=SHORT,
        )
        why = "each batch goes to the store's thread and back"
        return samples.lines({"raw sqlite3": AtMost(2, why)})


def replaying(measure: Measure) -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.db"

        async def fill() -> None:
            store = SqliteStore(path)
            for records, _ in chunks():
                await store.append("s", records, durable=False)
            await store.close()

        asyncio.run(fill())
        samples = measure(
            f"an event replayed, {PAGE} to a page",
            lambda: asyncio.run(replayed(path)),
            {"raw sqlite3": lambda: raw_replay(path)},
            samples=SHORT,
        )
        why = "each page goes to the store's thread and back, and its rows become records"
        yield from samples.lines({"raw sqlite3": AtMost(2, why)})


async def replayed(path: Path) -> float:
    store = SqliteStore(path)
    await store.acquire("s")
    start, after = wall(), 0
    while page := await store.read("s", after, PAGE):
        after = page[-1].seq
    cost = (wall() - start) / EVENTS
    await store.close()
    return cost


def raw_replay(path: Path) -> float:
    db = sqlite3.connect(path)
    query = "SELECT seq, text, ends FROM events WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
    start, after = wall(), 0
    while page := db.execute(query, ("s", after, PAGE)).fetchall():
        after = page[-1][0]
    cost = (wall() - start) / EVENTS
    db.close()
    return cost


def idle(measure: Measure) -> Iterator[Line]:
    """Not a matter of time, hence not of rounds: what a session holds that has nothing to do."""
    what = "an idle session: memory"
    measure.tell(what)
    held = asyncio.run(idle_memory())
    yield Line(what=what, ours=held, peer="one of 100 kB", theirs=None, unit="B", target=Limit(100_000))


async def idle_memory() -> float:
    who, store = agent(), MemoryStore()
    sessions: list[Any] = [
        await Session.open("first", agent=who, store=store)
    ]  # what is cached on the way is not counted
    gc.collect()
    tracemalloc.start()
    try:
        sessions += [await Session.open(str(number), agent=who, store=store) for number in range(IDLE)]
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / IDLE
    finally:
        tracemalloc.stop()
        for session in sessions:
            await session.close()
