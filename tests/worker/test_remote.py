"""A host over workers does what every host does, over every broker."""

from collections.abc import Callable

import pytest

from safepoint.testing.conformance import CASES, Case
from safepoint.worker import Broker
from tests.worker.rigs import memory_broker, nats_broker, remote

BROKERS = {"memory": memory_broker, "nats": nats_broker}
NEEDS_THE_SESSION = ("caller's signal", "parent tool", "closing the stream")
STORING = ("while it is stored", "while its end is saved")
TRIED = [case for case in CASES if case.source not in NEEDS_THE_SESSION and case.phase not in STORING]


@pytest.mark.parametrize("broker", BROKERS.values(), ids=BROKERS)
@pytest.mark.parametrize("case", TRIED, ids=str)
async def test_a_remote_host_conforms(case: Case, broker: Callable[[], Broker]) -> None:
    assert await case.check(remote(broker)), "this rig can try it"
