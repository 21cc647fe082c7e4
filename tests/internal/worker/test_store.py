"""Owns the tests of a session's log in a broker: one owner writes, whoever was before it is fenced."""

import pytest

from safepoint.session import SessionInfo, SessionInUse, StoreError
from safepoint.session.store import LogRecord
from safepoint.worker.broker import StreamEntry
from safepoint.worker.store import BrokerStore, LogAppended, last_seq, pack_records
from tests.kit.waiting import eventually
from tests.kit.workers import New, each_broker, linked


@each_broker
async def test_of_two_owners_the_older_is_fenced(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other:
        old, successor = BrokerStore(connection, "w1/1"), BrokerStore(other, "w2/2")
        assert await old.acquire("s") == 0
        await old.append("s", [LogRecord(1, "one")], durable=True)
        assert await successor.acquire("s") == 1
        await old.append("s", [LogRecord(2, "not fenced yet: the heir has written nothing")], durable=True)
        with pytest.raises(SessionInUse):
            await successor.append("s", [LogRecord(2, "it has to look again")], durable=True)
        assert await successor.acquire("s") == 2
        await successor.append("s", [LogRecord(3, "three")], durable=True)
        for _ in range(2):
            with pytest.raises(SessionInUse, match="another owner"):
                await old.append("s", [LogRecord(3, "too late")], durable=True)
        assert (old.fenced, [one.text for one in await successor.read("s", 2)]) == (True, ["three"])


@each_broker
async def test_whoever_shares_no_session_does_not_disturb(new: New):
    async with linked(new()) as connection:
        owner = BrokerStore(connection, "w/1")
        for session in ("a", "b", "a.b", "a b"):
            assert await owner.acquire(session) == 0
            await owner.append(session, [LogRecord(1, session)], durable=True)
        for session in ("a", "b", "a.b", "a b"):
            assert await owner.read(session) == [LogRecord(1, session)]
        assert await owner.sessions() == [SessionInfo(name, 1) for name in ("a", "b", "a.b", "a b")]


@each_broker
async def test_a_half_written_record_is_as_if_it_had_never_been(new: New):
    async with linked(new()) as connection:
        owner = BrokerStore(connection, "w/1")
        await owner.acquire("s")
        await owner.append("s", [LogRecord(1, "whole")], durable=True)
        first, *_ = pack_records([LogRecord(2, "x" * 500_000)], "w/1")
        assert last_seq(first) == 1
        await connection.append("log", ("s",), first)
        successor = BrokerStore(connection, "w/2")
        assert await successor.acquire("s") == 1
        assert await successor.read("s", 1) == []
        await successor.append("s", [LogRecord(2, "y" * 500_000, "t")], durable=True)
        assert await BrokerStore(connection, "w/3").read("s") == [
            LogRecord(1, "whole"),
            LogRecord(2, "y" * 500_000, "t"),
        ]


@each_broker
async def test_a_store_that_was_shut_writes_nothing_and_says_why(new: New):
    async with linked(new()) as connection:
        owner = BrokerStore(connection, "w/1")
        await owner.acquire("s")
        owner.block_writes("it was given back")
        with pytest.raises(StoreError, match="it was given back"):
            await owner.append("s", [LogRecord(1, "late")], durable=True)
        assert await owner.append("s", [], durable=True) == frozenset()
        await owner.close()
        with pytest.raises(StoreError, match="closed"):
            await owner.append("s", [LogRecord(1, "late")], durable=True)
        assert await connection.last("log", ("s",)) is None
        assert not owner.fenced


@each_broker
async def test_a_broker_that_is_gone_is_an_error_of_the_store(new: New):
    connection = await new().connect("test")
    owner = BrokerStore(connection, "w/1")
    await owner.acquire("s")
    await connection.close()
    with pytest.raises(StoreError, match="'s' cannot be written"):
        await owner.append("s", [LogRecord(1, "late")], durable=True)
    with pytest.raises(StoreError, match="'s' cannot be read"):
        await owner.read("s")
    with pytest.raises(StoreError, match="'s' cannot be read"):
        await owner.acquire("s")


@each_broker
async def test_what_is_written_is_told_to_whoever_follows_with_its_place(new: New):
    async with linked(new()) as connection:
        heard: list[bytes] = []
        await connection.listen(("news", "s"), heard.append)
        owner = BrokerStore(connection, "w/1")
        await owner.acquire("s")
        await owner.append("s", [LogRecord(1, "one")], durable=True)
        await owner.append("s", [LogRecord(2, "two")], durable=True)

        async def both() -> bool:
            return len(heard) == 2

        await eventually(both)
        kept = await connection.read("log", ("s",))
        assert [LogAppended.from_bytes(said) for said in heard] == [
            (0, StreamEntry(kept[0].position, (), kept[0].data)),
            (kept[0].position, StreamEntry(kept[1].position, (), kept[1].data)),
        ]


async def test_news_with_spaces_in_them_are_read_as_they_were_meant():
    assert LogAppended.from_bytes(LogAppended.to_bytes(3, 17, b"a b  c")) == (3, StreamEntry(17, (), b"a b  c"))


@each_broker
async def test_a_session_that_is_released_can_be_taken_again(new: New):
    async with linked(new()) as connection:
        owner = BrokerStore(connection, "w/1")
        await owner.acquire("s")
        await owner.append("s", [LogRecord(1, "one")], durable=True)
        await owner.release("s")
        assert await owner.acquire("s") == 1
        await owner.append("s", [LogRecord(2, "two")], durable=True)
        assert [one.seq for one in await owner.read("s")] == [1, 2]
