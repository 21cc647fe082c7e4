"""Owns the tests that look inside, beside those of `tests/worker/test_faults_owners.py`.

Two who take themselves for the owner of a session: cut off, stalled, or given one order twice. One is fenced.
"""

from pathlib import Path

from safepoint.worker.protocol import Reply, StopCall, from_json, to_json
from tests.kit.nats import nats_server
from tests.worker.faulty import lab
from tests.worker.test_faults_owners import LONG


async def test_a_stop_that_comes_both_ways_is_answered_as_one(tmp_path: Path) -> None:
    """The record of it may be read before the bell is heard: that is not another stop."""
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            await there.start("a")
            client = await there.client(1)
            turn_id = await client.send(LONG)
            await there.worker_of(client)
            connection = await there.broker.connect("test")
            try:
                calls = [StopCall(turn_id, "NOW", id=name) for name in ("one", "one", "two")]
                answers = [
                    await connection.request(("ctl", client.story.session), to_json(call), 2.0) for call in calls
                ]
            finally:
                await connection.close()
            one, again, other = (from_json(Reply, answer) for answer in answers)
            assert (one.status, again.status) == ("accepted", "accepted")
            assert other.status in ("already_stopping", "already_finished")
            await client.until(turn_id, "aborted")
