"""Owns the tests that look inside, beside those of `tests/worker/test_remote_host.py`.

A host over workers does what every host does, over every broker.
"""

import asyncio

import pytest

from safepoint.errors import UsageError
from safepoint.worker import MemoryBroker
from safepoint.worker.protocol import Placement, Reply, SendCall, to_json
from tests.kit.agents import talker
from tests.kit.workers import New, each_broker, hosting, linked, logged, until_kind, working


async def test_an_end_that_is_not_written_is_not_told_as_one() -> None:
    """The worker may die before it is written: then the turn is not over, and it is the stop that ends it."""

    async def answer(data: bytes) -> bytes:
        return to_json(Reply(status="already_finished", turn_id="t1", message="turn t1 has ended"))

    broker = MemoryBroker()
    async with linked(broker) as worker, hosting(broker, lookup_seconds=0.05) as host:
        await worker.append("sessions", ("s",), to_json(Placement("any")))
        await worker.append("inbox", ("s",), to_json(SendCall("t1", "hi")))
        await worker.serve(("ctl", "s"), answer)
        ack = await host.stop("s", "t1")
        assert (ack.status, ack.level) == ("accepted", "recorded")
        assert "not recorded yet" in ack.message


@each_broker
async def test_the_same_message_sent_again_under_its_id_is_answered_and_another_one_is_refused(new: New) -> None:
    broker = new()
    async with hosting(broker) as host, linked(broker) as connection:
        await connection.append("sessions", ("s",), to_json(Placement("talker")))
        first = await host.send("s", "hi", turn_id="t")
        assert await host.send("s", "hi", turn_id="t") == first
        with pytest.raises(UsageError, match="had a turn"):
            await host.send("s", "something else", turn_id="t")
        assert (await host.turn("s", "t")).text == "hi"
        assert len(await connection.read("inbox", ("s",))) == 1
        async with working(talker("hello"), broker):
            await until_kind(host, "s", "turn_ended")
            again = await host.send("s", "hi", turn_id="t")
            assert (again.status, again.outcome is None) == ("completed", False)
            with pytest.raises(UsageError, match="had a turn"):
                await host.send("s", "something else", turn_id="t")


@each_broker
async def test_of_two_messages_that_come_at_once_under_one_id_one_is_taken(new: New) -> None:
    broker = new()
    async with hosting(broker) as one, hosting(broker) as other, linked(broker) as connection:
        await connection.append("sessions", ("s",), to_json(Placement("talker")))
        sending = [host.send("s", text, turn_id="t") for host, text in ((one, "yes"), (other, "no"))]
        yes, no = await asyncio.gather(*sending, return_exceptions=True)
        refused = [answer for answer in (yes, no) if isinstance(answer, UsageError)]
        assert len(refused) == 1
        said = "no" if yes is refused[0] else "yes"
        assert (await one.turn("s", "t")).text == said
        async with working(talker("hello"), broker):
            ended = (await until_kind(one, "s", "turn_ended")).event
            assert ended.outcome.value.messages[0].text == said  # type: ignore[union-attr]
        assert [event.kind for event in await logged(connection, "s")].count("turn_queued") == 1


async def test_a_worker_that_does_not_say_that_a_change_is_recorded_is_not_believed_to_have_done_so() -> None:
    async def answer(data: bytes) -> bytes:
        return b'{"ok": true}'

    broker = MemoryBroker()
    async with linked(broker) as worker, hosting(broker) as host:
        await worker.append("sessions", ("s",), to_json(Placement("any")))
        await worker.serve(("ctl", "s"), answer)
        for ack in (await host.edit("s", "t", "ho"), await host.remove("s", "t")):
            assert (bool(ack), ack.level) == (True, "accepted")
            assert ack.message.endswith("(not recorded yet)")
