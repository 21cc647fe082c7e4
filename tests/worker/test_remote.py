"""A host over workers does what every host does, over every broker."""

from collections.abc import Callable

import pytest

from safepoint.testing.conformance import CASES, Case
from safepoint.worker import Broker, MemoryBroker
from safepoint.worker.orders import Place, Reply, Send, to_json
from tests.worker.lab import hosting, linked
from tests.worker.rigs import memory_broker, nats_broker, remote

BROKERS = {"memory": memory_broker, "nats": nats_broker}
NEEDS_THE_SESSION = ("caller's signal", "parent tool", "closing the stream")
STORING = ("while it is stored", "while its end is saved")
TRIED = [case for case in CASES if case.source not in NEEDS_THE_SESSION and case.phase not in STORING]


@pytest.mark.parametrize("broker", BROKERS.values(), ids=BROKERS)
@pytest.mark.parametrize("case", TRIED, ids=str)
async def test_a_remote_host_conforms(case: Case, broker: Callable[[], Broker]) -> None:
    assert await case.check(remote(broker)), "this rig can try it"


async def test_an_end_that_is_not_written_is_not_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may die before it is written: then the turn is not over, and it is the stop that ends it."""
    monkeypatch.setattr("safepoint.worker.remote.LOOK_SECONDS", 0.05)

    async def answer(data: bytes) -> bytes:
        return to_json(Reply(status="already_finished", turn_id="t1", message="turn t1 has ended"))

    broker = MemoryBroker()
    async with linked(broker) as worker, hosting(broker) as host:
        await worker.append("sessions", ("s",), to_json(Place("any")))
        await worker.append("inbox", ("s",), to_json(Send("t1", "hi")))
        await worker.serve(("ctl", "s"), answer)
        ack = await host.stop("s", "t1")
        assert (ack.status, ack.level) == ("accepted", "recorded")
        assert "not written yet" in ack.message
