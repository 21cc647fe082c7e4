"""Owns the tests that look inside, beside those of `tests/worker/test_executor_process.py`.

Owns the tests of the process in which work is done: it goes when its supervisor has gone, and all with it.
"""

import signal
import time

from safepoint.worker.executor_process import ORPHAN_SECONDS
from tests.kit.programs import gone
from tests.kit.waiting import eventually
from tests.kit.worker_process import worker_process
from tests.kit.workers import hosting, nats
from tests.worker.cast import TARGET
from tests.worker.test_executor_process import LEASE, QUICK, at_work


async def test_a_supervisor_that_is_killed_leaves_no_process_that_goes_on():
    broker = nats()
    async with (
        hosting(broker) as host,
        worker_process(str(broker.url), broker.namespace, *QUICK, agent=TARGET) as worker,
    ):
        children, _ = await at_work(host, worker, "talk", "text_streamed")
        killed = time.monotonic()
        await worker.kill()

        async def ended() -> bool:
            return gone(*children)

        await eventually(ended)
        assert time.monotonic() - killed < ORPHAN_SECONDS, "its work was not told to end, and was cut off at last"


async def test_a_child_whose_supervisor_is_silent_for_a_lease_ends_itself_and_all_it_has_started():
    broker = nats()
    async with (
        hosting(broker) as host,
        worker_process(str(broker.url), broker.namespace, *QUICK, agent=TARGET) as worker,
    ):
        children, grandchild = await at_work(host, worker, "spawn", "progress_made")
        frozen = time.monotonic()
        worker._process.send_signal(signal.SIGSTOP)
        try:

            async def ended() -> bool:
                return gone(*children, int(grandchild))

            await eventually(ended)
            assert time.monotonic() - frozen < LEASE + ORPHAN_SECONDS + 1.5
        finally:
            worker._process.send_signal(signal.SIGCONT)
