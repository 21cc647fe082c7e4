"""Owns the tests that look inside, beside those of `tests/worker/test_press.py`.

The second press, over workers: it reaches the turn, is kept with the stop, and follows a sub-agent elsewhere.
"""

from typing import Any

import pytest

from safepoint.errors import UsageError
from safepoint.models.scripted import Call
from safepoint.worker.protocol import StopCall, Unreadable, from_json, to_json
from safepoint.worker.stop_reader import recorded_stops
from tests.kit.agents import talker
from tests.kit.workers import SECONDS, New, each_broker, hosting, linked, until_kind, working
from tests.worker.test_press import Deaf


@each_broker
async def test_a_turn_on_a_worker_is_left_by_the_second_press(new: New):
    deaf, broker = Deaf(), new()
    agent = talker([Call("deaf")], "fine", name="agent", tools=[deaf.tool])
    async with working(agent, broker, grace=60), hosting(broker) as host, linked(broker) as connection:
        await host.create("s", "agent")
        await host.send("s", "go", turn_id="t")
        await deaf.begun()
        assert (await host.stop("s", "t", reason="enough")).status == "accepted"
        assert (await host.turn("s", "t")).outcome is None
        ack = await host.stop("s", "t", abandon=0, reason="enough")
        assert (ack.status, ack.level) == ("already_stopping", "delivered")
        assert "what has not ended by then is left behind" in ack.message
        receipt = await ack.settled(SECONDS)
        assert [entry.name for entry in receipt.still_running] == ["agent/deaf"]
        ((_, call),) = await recorded_stops(connection, "s")
        assert (call.abandon, call.abort_reason.message) == (0.0, "enough")
        view = await host.send("s", "next")
        ended = await until_kind(host, "s", "turn_ended", turn_id=view.id)
        assert ended.event.outcome.status == "completed"  # type: ignore[union-attr]
        deaf.let_go.set()


@each_broker
async def test_a_wrong_time_is_refused_before_anything_is_sent(new: New):
    broker = new()
    async with working(talker(name="agent"), broker), hosting(broker) as host, linked(broker) as connection:
        await host.create("s", "agent")
        with pytest.raises(UsageError, match="abandon"):
            await host.stop("s", "t", abandon=-1)
        with pytest.raises(TypeError, match="abandon"):
            await host.stop("s", "t", abandon=True)
        assert await recorded_stops(connection, "s") == []


def test_a_record_without_the_field_is_read_and_one_with_nonsense_is_refused():
    old: Any = from_json(StopCall, b'{"turn_id": "t", "at": "NOW", "reason": {}, "id": "1", "kind": "stop"}')
    assert old == StopCall("t", "NOW", id="1")
    newer: Any = from_json(StopCall, b'{"turn_id": "t", "at": "NOW", "abandon": 2, "from_the_future": 1}')
    assert newer.abandon == 2
    assert from_json(StopCall, to_json(newer)) == newer
    with pytest.raises(Unreadable):
        from_json(StopCall, b'{"turn_id": "t", "abandon": -1}')
