"""Owns the tests that look inside, beside those of `tests/worker/test_broker.py`.

Owns the tests of what every broker does, over each of them: kept messages, leased orders, words that fly by.
"""

import asyncio
import time

import pytest

from safepoint.worker import BrokerError
from safepoint.worker.broker import Fenced, Key, NoResponders, Order, Queue, RequestTimeout, StreamEntry
from tests.kit.waiting import eventually
from tests.kit.workers import LEASE, New, each_broker, linked

ANY: Queue = ("any", "helper")


ODD = ["a.b", "two words", "*", ">", "🛑", "", "=YQ", "-NAK", "a/b", "ä" * 40, "\n", "$JS.API"]


pytestmark = each_broker


def texts(entries: list[StreamEntry]) -> list[bytes]:
    return [entry.data for entry in entries]


async def test_what_is_kept_is_read_in_order_and_page_by_page(new: New):
    async with linked(new()) as connection:
        positions = [await connection.append("log", ("s",), b"%d" % number) for number in range(5)]
        await connection.append("log", ("other",), b"not mine")
        assert positions == sorted(set(positions))
        found = await connection.read("log", ("s",))
        assert [(one.position, one.key, one.data) for one in found] == [
            (position, ("s",), b"%d" % number) for number, position in enumerate(positions)
        ]
        first = await connection.read("log", ("s",), limit=2)
        assert texts(first) == [b"0", b"1"]
        assert texts(await connection.read("log", ("s",), first[-1].position, limit=2)) == [b"2", b"3"]
        assert texts(await connection.read("log", ("s",), positions[-1])) == []
        assert await connection.read("log", ("nobody",)) == []


@pytest.mark.parametrize("stream", ["log", "inbox", "stops"])
async def test_every_stream_says_what_is_its_newest(new: New, stream: str):
    async with linked(new()) as connection:
        assert await connection.last(stream, ("s",)) is None  # type: ignore[arg-type]
        await connection.append(stream, ("s",), b"old")  # type: ignore[arg-type]
        position = await connection.append(stream, ("s",), b"new")  # type: ignore[arg-type]
        assert await connection.last(stream, ("s",)) == StreamEntry(position, ("s",), b"new")  # type: ignore[arg-type]


async def test_only_who_knows_the_newest_may_write_after_it(new: New):
    broker = new()
    async with linked(broker) as first, linked(broker) as second:
        one = await first.append("log", ("s",), b"1", expected_last=0)
        two = await first.append("log", ("s",), b"2", expected_last=one)
        for stale in (0, one, two + 100):
            with pytest.raises(Fenced):
                await second.append("log", ("s",), b"late", expected_last=stale)
        await second.append("log", ("other",), b"its own line", expected_last=0)
        await second.append("log", ("s",), b"3", expected_last=two)
        with pytest.raises(Fenced):
            await first.append("log", ("s",), b"too late", expected_last=two)
        assert texts(await first.read("log", ("s",))) == [b"1", b"2", b"3"]


async def test_of_two_who_write_at_once_one_is_fenced(new: New):
    async with linked(new()) as connection:
        write = [connection.append("log", ("s",), b"%d" % number, expected_last=0) for number in range(8)]
        ended = await asyncio.gather(*write, return_exceptions=True)
        assert sum(isinstance(one, Fenced) for one in ended) == 7
        assert len(await connection.read("log", ("s",))) == 1


async def test_a_stream_that_keeps_the_newest_has_one_message_of_each_key(new: New):
    async with linked(new()) as connection:
        await connection.append("stops", ("s", "t1"), b"old")
        await connection.append("stops", ("s", "t2"), b"two")
        await connection.append("stops", ("s", "t1"), b"new")
        await connection.append("stops", ("other", "t1"), b"not mine")
        found = await connection.last_per_key("stops", ("s",))
        assert [(one.key, one.data) for one in found] == [(("s", "t2"), b"two"), (("s", "t1"), b"new")]
        assert await connection.last_per_key("stops", ("nobody",)) == []
        await connection.append("sessions", ("a",), b"A")
        await connection.append("sessions", ("b",), b"B")
        assert texts(await connection.last_per_key("sessions")) == [b"A", b"B"]


async def test_what_is_trimmed_is_gone_and_what_came_later_is_not(new: New):
    async with linked(new()) as connection:
        positions = [await connection.append("inbox", ("s",), b"%d" % number) for number in range(3)]
        await connection.append("inbox", ("other",), b"not mine")
        await connection.purge("inbox", ("s",), positions[1])
        assert texts(await connection.read("inbox", ("s",))) == [b"2"]
        assert set(await connection.keys("inbox")) == {("s",), ("other",)}
        await connection.purge("inbox", ("s",), 2**62)
        assert await connection.read("inbox", ("s",)) == []
        assert await connection.keys("inbox") == [("other",)]
        await connection.purge("inbox", ("s",), 2**62)  # again, for nothing
        assert await connection.append("inbox", ("s",), b"new", expected_last=0) > positions[-1]


async def test_odd_names_are_names_like_any_other(new: New):
    async with linked(new()) as connection:
        keys: list[Key] = [(name, other) for name in ODD for other in (ODD[0], "plain")]
        for key in keys:
            await connection.append("stops", key, "/".join(key).encode())
        assert sorted(await connection.keys("stops")) == sorted(keys)
        for key in keys:
            found = await connection.last("stops", key)
            assert found is not None
            assert (found.key, found.data) == (key, "/".join(key).encode())
            assert len(await connection.last_per_key("stops", key[:1])) == 2


async def test_orders_of_odd_names_are_taken_and_answered(new: New):
    async with linked(new()) as connection:
        for name in ODD:
            queue: Queue = ("at", name)
            assert await connection.enqueue(queue, name, b"work")
            (held,) = await connection.take([queue], 5, 5)
            assert (held.session, held.data, held.attempt) == (name, b"work", 1)
            await held.complete()
            answered = await connection.serve(("ctl", name), _echo)
            assert await connection.request(("ctl", name), name.encode(), 5) == name.encode()
            await answered()


async def _echo(data: bytes) -> bytes:
    return data


async def test_a_session_has_one_order_until_that_is_done(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other:
        assert await connection.enqueue(ANY, "s", b"first")
        assert not await other.enqueue(ANY, "s", b"second")
        assert await connection.enqueue(ANY, "t", b"of another session")
        assert await connection.pending_sessions() == {"s", "t"}
        held = {one.session: one for one in await connection.take([ANY], 5, 5)}
        assert held["s"].data == b"first"
        assert not await connection.enqueue(ANY, "s", b"while it is held")
        await held["s"].complete()
        assert await connection.pending_sessions() == {"t"}
        assert await connection.enqueue(ANY, "s", b"third")


async def test_nobody_gets_an_order_that_somebody_holds(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other:
        for number in range(3):
            await connection.enqueue(ANY, f"s{number}", b"")
        first = await connection.take([ANY], 2, 5)
        second = await other.take([ANY], 2, 5)
        assert [len(first), len(second)] == [2, 1]
        assert {one.session for one in [*first, *second]} == {"s0", "s1", "s2"}
        assert await other.take([ANY], 2, 0) == []


async def test_a_worker_gets_the_orders_of_its_queues_and_no_others(new: New):
    async with linked(new()) as connection:
        await connection.enqueue(("at", "w2"), "pinned", b"")
        await connection.enqueue(("any", "painter"), "pictures", b"")
        assert await connection.take([("at", "w1"), ANY], 5, 0) == []
        (found,) = await connection.take([("at", "w2"), ANY], 5, 5)
        assert found.session == "pinned"


async def test_an_order_comes_again_when_its_lease_is_over_unless_it_is_renewed(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other:
        await connection.enqueue(ANY, "s", b"")
        began = time.monotonic()
        (held,) = await connection.take([ANY], 1, 5)
        while time.monotonic() - began < 1.3 * LEASE:
            await held.renew()
            assert await other.take([ANY], 1, 0.2) == []
        (again,) = await other.take([ANY], 1, 2 * LEASE + 2)
        assert (again.session, again.attempt) == ("s", 2)
        await again.complete()
        assert await connection.pending_sessions() == set()


async def test_an_order_given_back_is_free_at_once_or_after_its_pause(new: New):
    broker = new(lease=30.0)
    async with linked(broker) as connection, linked(broker) as other:
        await connection.enqueue(ANY, "s", b"")
        (held,) = await connection.take([ANY], 1, 5)
        await held.give_back()
        (held,) = await other.take([ANY], 1, 5)
        assert held.attempt == 2
        began = time.monotonic()
        await held.give_back(0.5)
        (held,) = await connection.take([ANY], 1, 5)
        assert held.attempt == 3
        assert time.monotonic() - began >= 0.45


async def test_who_waits_for_an_order_is_woken_by_it(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other, asyncio.TaskGroup() as group:
        taking: asyncio.Task[list[Order]] = group.create_task(connection.take([ANY], 1, 10))
        assert await other.enqueue(ANY, "s", b"")
        (held,) = await taking
        assert held.session == "s"


async def test_a_word_to_the_queue_ends_the_waiting_for_orders(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other, asyncio.TaskGroup() as group:
        began = time.monotonic()
        taking: asyncio.Task[list[Order]] = group.create_task(connection.take([("at", "w"), ANY], 1, 30))

        async def told() -> bool:
            await other.publish(("orders", "at", "w"), b"")
            return taking.done()

        await eventually(told)
        assert await taking == []
        assert time.monotonic() - began < 20


async def test_a_question_is_answered_by_who_serves_there(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other:

        async def answer(data: bytes) -> bytes:
            return b"heard " + data

        end = await other.serve(("ctl", "s"), answer)
        assert await connection.request(("ctl", "s"), b"this", 5) == b"heard this"
        await end()
        with pytest.raises(NoResponders):
            await connection.request(("ctl", "s"), b"that", 5)


async def test_where_nobody_serves_that_is_said_at_once(new: New):
    async with linked(new()) as connection:
        began = time.monotonic()
        with pytest.raises(NoResponders):
            await connection.request(("ctl", "nobody"), b"", 30)
        assert time.monotonic() - began < 5


async def test_who_does_not_answer_in_time_is_too_late_and_goes_on_with_it(new: New):
    broker = new()
    async with linked(broker) as connection, linked(broker) as other:
        asked, gate, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def answer(data: bytes) -> bytes:
            asked.set()
            await gate.wait()
            done.set()
            return b""

        end = await other.serve(("ctl", "s"), answer)
        with pytest.raises(RequestTimeout):
            await connection.request(("ctl", "s"), b"", 0.2)
        assert asked.is_set()
        gate.set()
        async with asyncio.timeout(5):
            await done.wait()
        await end()


async def test_a_closed_link_says_so_at_once(new: New):
    connection = await new().connect("test")
    await connection.close()
    began = time.monotonic()
    asks = [
        connection.append("log", ("s",), b""),
        connection.read("log", ("s",)),
        connection.last("log", ("s",)),
        connection.last_per_key("stops"),
        connection.purge("log", ("s",), 1),
        connection.keys("log"),
        connection.enqueue(ANY, "s", b""),
        connection.take([ANY], 1, 0),
        connection.pending_sessions(),
        connection.request(("ctl", "s"), b"", 5),
        connection.serve(("ctl", "s"), _echo),
        connection.listen(("news", "s"), print),
    ]
    for ask in asks:
        with pytest.raises(BrokerError):
            await ask
    assert time.monotonic() - began < 5


async def test_a_long_queue_does_not_starve_another_one(new: New):
    other: Queue = ("any", "other")
    async with linked(new()) as connection:
        for number in range(12):
            await connection.enqueue(ANY, f"long-{number}", b"")
        for number in range(3):
            await connection.enqueue(other, f"short-{number}", b"")
        taken = [order.session for _ in range(6) for order in await connection.take([ANY, other], 1, 5)]
        assert [name.split("-")[0] for name in taken] == ["long", "short"] * 3
        many = [order.session.split("-")[0] for order in await connection.take([ANY, other], 4, 5)]
        assert many == ["long"] * 4, "a place that the short queue does not need is not left empty"


async def test_each_queue_gets_its_share_of_many_places(new: New):
    other: Queue = ("any", "other")
    async with linked(new()) as connection:
        for number in range(6):
            await connection.enqueue(ANY, f"a-{number}", b"")
            await connection.enqueue(other, f"b-{number}", b"")
        taken = [order.session[0] for order in await connection.take([ANY, other], 4, 5)]
        assert sorted(taken) == ["a", "a", "b", "b"]
