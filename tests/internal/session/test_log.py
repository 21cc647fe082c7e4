"""A session's log: numbers, writing in the background, and many readers that follow."""

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from safepoint import Completed
from safepoint.agent import AgentResult
from safepoint.events import Event, TextStreamed, TurnEnded, event_to_json
from safepoint.session import MemoryStore, SessionInUse, SqliteStore, Store, StoreError
from safepoint.session.log import PAGE, RECENT, SessionLog
from safepoint.session.store import LogRecord
from safepoint.testing import drain_ready_tasks
from tests.conftest import counts
from tests.kit.stores import FailingStore, GatedStore


def text(words: str) -> Event:
    return TextStreamed(run_id="t", path=("a",), at=0.0, text=words)


def end(turn_id: str = "t") -> Event:
    return TurnEnded(run_id=turn_id, path=("a",), at=0.0, turn_id=turn_id, outcome=Completed(AgentResult("")))


@asynccontextmanager
async def opened(store: Store, **options: float) -> AsyncIterator[SessionLog]:
    log = SessionLog(store, "s", **options)
    await log.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(log.keep_writing())
        yield log
        if log.error is None:
            await log.close()
    await log.release()


def end_readers(log: SessionLog) -> None:
    log._closed = True
    log._urgent.set()
    log._work.set()
    log._visible_changed.notify()


async def numbers(log: SessionLog, after: int = 0) -> list[int]:
    async with aclosing(log.follow(after)) as events:
        return [recorded.seq async for recorded in events]


async def test_numbers_begin_at_one_and_go_on_after_a_reopening() -> None:
    store = MemoryStore()
    async with opened(store) as log:
        assert [log.add(text("a")), log.add(text("b"))] == [1, 2]
    async with opened(store) as log:
        assert (log.last_seq, log.written_seq) == (2, 2)
        assert log.add(text("c")) == 3
        found: list[Event] = []
        await log.flushed(3)
        await log.replay(found.append)
        assert found == [text("a"), text("b"), text("c")]


async def test_readers_that_come_at_any_time_miss_nothing_and_see_nothing_twice(tmp_path: Path) -> None:
    for seed in range(counts(3, 60)):
        chance = random.Random(seed)
        store = SqliteStore(tmp_path / f"{seed}.db") if seed % 2 else MemoryStore()
        total = chance.choice([5, RECENT - 1, RECENT + 1, 2 * PAGE + 7])
        async with opened(store) as log, asyncio.TaskGroup() as group:
            readers = []
            for number in range(total):
                log.add(text(str(number)), durable=chance.random() < 0.1)
                if chance.random() < 0.01 or number in (0, total - 1):
                    after = chance.randrange(0, log.last_seq + 1)
                    readers.append((after, group.create_task(numbers(log, after))))
                if chance.random() < 0.05:
                    await asyncio.sleep(0)
            end_readers(log)  # which close() would do, but this scope comes to it only when they have ended
        for after, reader in readers:
            assert reader.result() == list(range(after + 1, total + 1)), f"seed {seed}, after {after}"
        await store.close()


async def test_live_readers_see_what_is_only_said_before_it_is_written() -> None:
    store = GatedStore()
    async with opened(store) as log:
        store.shut()
        log.add(text("a"))
        async with aclosing(log.follow()) as events:
            assert (await anext(events)).seq == 1
        assert log.written_seq == 0
        store.gate.set()


async def test_what_must_survive_a_power_cut_is_shown_when_it_does() -> None:
    store = GatedStore()
    async with opened(store) as log, aclosing(log.follow()) as events:
        store.shut()
        log.add(text("before"))
        log.add(text("a stop"), durable=True)
        assert (await anext(events)).seq == 1
        await store.writing.wait()
        assert (log.visible_seq, log.written_seq) == (1, 0)
        store.gate.set()
        assert (await anext(events)).seq == 2
        assert log.written_seq == 2


async def test_the_end_of_a_turn_and_what_comes_after_it_is_shown_when_it_stands() -> None:
    store = GatedStore()
    async with opened(store) as log, asyncio.TaskGroup() as group:
        store.shut()
        seen: list[int] = []
        told: list[object] = []

        async def read() -> None:
            async with aclosing(log.follow()) as events:
                async for recorded in events:
                    seen.append(recorded.seq)
                    if recorded.seq == 3:
                        return

        reader = group.create_task(read())
        log.add(text("before"))
        log.add(end(), ends=("t", told.append))
        log.add(text("after"))
        await store.writing.wait()
        await drain_ready_tasks()
        assert (seen, told) == ([1], []), "the end is not there before it is written"
        store.gate.set()
        await reader
        assert (seen, told) == ([1, 2, 3], [None])


async def test_whoever_is_told_that_an_end_stands_is_told_before_the_readers() -> None:
    order: list[str] = []
    async with opened(MemoryStore()) as log, asyncio.TaskGroup() as group:

        async def read() -> None:
            async with aclosing(log.follow()) as events:
                await anext(events)
                order.append("a reader")

        group.create_task(read())
        await drain_ready_tasks()
        log.add(end(), ends=("t", lambda error: order.append("the caller")))
        group.create_task(read())
    assert order == ["the caller", "a reader", "a reader"]


async def test_while_one_batch_is_on_its_way_the_next_one_gathers() -> None:
    batches: list[tuple[int, bool]] = []

    class Counting(GatedStore):
        async def append(self, session, records, *, durable):
            batches.append((len(records), durable))
            return await super().append(session, records, durable=durable)

    store = Counting()
    async with opened(store) as log:
        store.shut()
        log.add(text("first"))
        await store.writing.wait()
        for _ in range(100):
            log.add(text("more"))
        log.add(text("kept"), durable=True)
        store.gate.set()
        await log.flushed(log.last_seq)
    assert batches == [(1, False), (101, True)]


async def test_words_that_nobody_waits_for_gather_and_are_written_soon_all_the_same() -> None:
    batches: list[int] = []

    class Counting(MemoryStore):
        async def append(self, session, records, *, durable):
            batches.append(len(records))
            return await super().append(session, records, durable=durable)

    async with opened(Counting(), linger_seconds=0.5) as log:
        for number in range(30):
            log.add(text(str(number)))
            await asyncio.sleep(0)
        assert batches == []
        async with asyncio.timeout(5):
            while log.written_seq < 30:
                await asyncio.sleep(0.001)  # real time: they are written when a moment has passed
        assert batches == [30]
        log.add(text("more"))
        await log.flushed(31)
        assert batches == [30, 1], "whoever waits for it does not wait longer than that"


async def test_a_slow_reader_holds_no_memory(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    async with opened(store) as log:
        async with aclosing(log.follow()) as slow:
            log.add(text("first"))
            await anext(slow)
            for _ in range(RECENT):
                log.add(text("x" * 1000))
            await log.flushed(log.last_seq)
            tracemalloc.start()
            for _ in range(8):
                for _ in range(RECENT):
                    log.add(text("x" * 1000))
                await log.flushed(log.last_seq)
            grown = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert grown < 2_500_000, "what the newest need, whoever reads: not the 4,096 that were written"
            assert (await anext(slow)).seq == 2, "and it goes on where it was"
            rest = [recorded.seq for recorded in [await anext(slow) for _ in range(9 * RECENT - 1)]]
            assert rest == list(range(3, 9 * RECENT + 2))
    await store.close()


async def test_a_reader_far_ahead_waits_for_what_is_new_to_it() -> None:
    async with opened(MemoryStore()) as log, asyncio.TaskGroup() as group:
        reader = group.create_task(numbers(log, 3))
        for number in range(5):
            log.add(text(str(number)))
            await drain_ready_tasks()
        end_readers(log)
        assert await reader == [4, 5]


async def test_a_store_that_fails_ends_the_log_for_writers_and_readers() -> None:
    store = FailingStore("bad")
    async with opened(store) as log, asyncio.TaskGroup() as group:
        log.add(text("good"))
        await log.flushed(1)

        async def read() -> list[int]:
            seen: list[int] = []
            with pytest.raises(StoreError, match="full"):
                async for recorded in log.follow():
                    seen += [recorded.seq]
            return seen

        reader = group.create_task(read())
        await drain_ready_tasks()
        told: list[object] = []
        log.add(end(), ends=("t", told.append))
        log.add(text("bad"))
        with pytest.raises(StoreError, match="full"):
            await log.flushed(2)
        assert told == [log.error]
        log.add(end("u"), ends=("u", told.append))
        assert told == [log.error, log.error], "also of an end that comes later"
        assert await reader == [1], "what may not stand is not shown"
        await log.flushed(1)
        assert log.add(text("more")) == 5
        with pytest.raises(StoreError, match="full"):
            await log.flushed(5)
        assert await read() == [1], "also to readers that come later"


async def test_an_end_that_somebody_else_wrote_first_ends_the_log() -> None:
    store = MemoryStore()
    async with opened(store) as log:
        await store.append("s", [LogRecord(1, event_to_json(end()), "t")], durable=True)
        log.last_seq = 1
        told: list[object] = []
        seq = log.add(end(), ends=("t", told.append))
        with pytest.raises(SessionInUse, match="the end of turn t was written before"):
            await log.flushed(seq)
        assert isinstance(told[0], SessionInUse)
    assert len(await store.read("s")) == 1


async def test_a_log_that_ends_before_its_last_number_is_refused() -> None:
    log = SessionLog(MemoryStore(), "s")
    await log.open()
    log.last_seq = 3
    with pytest.raises(StoreError, match="ends at 0, and not at 3"):
        await log.replay(lambda event: None)


async def test_an_event_that_cannot_be_written_changes_nothing() -> None:
    async with opened(MemoryStore()) as log:
        with pytest.raises(TypeError):
            log.add("no event")  # type: ignore[arg-type]
        assert log.add(text("a")) == 1
        await log.flushed(1)


async def test_a_store_that_has_lost_records_is_an_error_for_the_reader_and_not_a_loop_without_end() -> None:
    class Lossy(MemoryStore):
        async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
            return [record for record in await super().read(session, after, limit) if record.seq < 3]

    store = Lossy()
    async with opened(store) as log:
        for number in range(RECENT + 10):
            log.add(text(str(number)))
        await log.flushed(log.last_seq)
        with pytest.raises(StoreError, match="has lost what came after 2"):
            await numbers(log)
