"""Owns the tests of reading a log by the numbers of its records: from anywhere, exactly the rest of it."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.session.store import LogRecord
from safepoint.worker import MemoryBroker
from safepoint.worker.broker import BrokerConnection
from safepoint.worker.store import BrokerStore, LogReader, RecordUnpacker, last_seq, pack_records
from tests.kit.workers import New, each_broker, linked

SMALL = 7  # characters of a message in these tests
texts = st.text(max_size=3 * SMALL)
batches = st.lists(st.lists(texts, min_size=1, max_size=6), min_size=1, max_size=6)


async def rest(connection: BrokerConnection, seq: int, log: LogReader | None = None) -> list[LogRecord]:
    """Everything after this number."""
    log, found = log or LogReader(connection, "s"), list[LogRecord]()
    while page := await log.after(seq):
        found += page
        seq = page[-1].seq
    return found


@given(batches, st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_from_any_number_exactly_the_rest_is_read(batches, page_size, random):
    async def check() -> None:
        async with linked(MemoryBroker()) as connection:
            owner, written = BrokerStore(connection, "w/1", message_chars=SMALL, part_chars=1), list[LogRecord]()
            await owner.acquire("s")
            for batch in batches:
                records = [
                    LogRecord(len(written) + number, text, f"t{number}" if number % 3 == 0 else None)
                    for number, text in enumerate(batch, 1)
                ]
                if random.random() < 0.5:
                    await connection.append("log", ("other",), b"in between")
                await owner.append("s", records, durable=True)
                written += records
                newest = await connection.last("log", ("s",))
                assert newest is not None
                assert last_seq(newest.data) == len(written)
            same = LogReader(connection, "s", page_messages=page_size)
            for seq in [*range(len(written) + 1), *random.sample(range(len(written)), len(written) // 2)]:
                assert await rest(connection, seq, LogReader(connection, "s", page_messages=page_size)) == written[seq:]
                assert await rest(connection, seq, same) == written[seq:]

    asyncio.run(check())


@given(st.lists(texts, min_size=1, max_size=8), st.lists(texts, min_size=1, max_size=8), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_what_one_owner_left_half_written_is_not_mixed_with_what_the_next_one_writes(first, second, cut):
    async def check() -> None:
        async with linked(MemoryBroker()) as connection:
            records = [LogRecord(number, text) for number, text in enumerate(first, 1)]
            messages = pack_records(records, "dead/1", message_chars=SMALL, part_chars=1)[: cut + 1]
            for data in messages:
                await connection.append("log", ("s",), data)
            owner = BrokerStore(connection, "heir/2", message_chars=SMALL, part_chars=1)
            last = await owner.acquire("s")
            whole = await rest(connection, 0)
            assert whole == [LogRecord(number, text) for number, text in enumerate(first[:last], 1)]
            added = [LogRecord(last + number, text) for number, text in enumerate(second, 1)]
            await owner.append("s", added, durable=True)
            for seq in range(last + len(added) + 1):
                assert await rest(connection, seq) == [*whole, *added][seq:]

    asyncio.run(check())


@each_broker
async def test_a_record_in_many_parts_is_one_record_again(new: New):
    async with linked(new()) as connection:
        owner = BrokerStore(connection, "w/1")
        await owner.acquire("s")
        records = [LogRecord(1, "a"), LogRecord(2, "🛑\x01" * 200_000, "t"), LogRecord(3, "b")]
        await owner.append("s", records, durable=True)
        kept = await connection.read("log", ("s",))
        assert len(kept) > 2
        assert max(len(entry.data) for entry in kept) < 2**20
        assert await rest(connection, 0) == records
        assert await rest(connection, 2) == records[2:]


def test_many_short_records_do_not_make_a_message_too_long():
    messages = pack_records([LogRecord(number, "", "turn") for number in range(1, 200_001)], "w/1")
    assert max(map(len, messages)) < 2**20
    unpacking = RecordUnpacker()
    assert sum(len(unpacking.feed(data)) for data in messages) == 200_000


@each_broker
async def test_who_reads_on_is_given_what_is_new(new: New):
    async with linked(new()) as connection:
        log, owner = LogReader(connection, "s"), BrokerStore(connection, "w/1")
        assert await log.after(0) == []
        await owner.acquire("s")
        await owner.append("s", [LogRecord(1, "a")], durable=True)
        assert await log.after(0) == [LogRecord(1, "a")]
        assert await log.after(1) == []
        await owner.append("s", [LogRecord(2, "b")], durable=True)
        assert await log.after(1) == [LogRecord(2, "b")]
        assert await log.after(0) == [LogRecord(1, "a"), LogRecord(2, "b")]
