"""Owns the tests of the process in which work is done: it goes when its supervisor has gone, and all with it."""

import asyncio
import os
import signal
from pathlib import Path

from safepoint.worker import RemoteHost
from tests.kit.programs import gone
from tests.kit.waiting import eventually
from tests.kit.worker_process import WorkerProcess, worker_process
from tests.kit.workers import hosting, nats, until_kind
from tests.worker.cast import TARGET

LEASE = 1.5


QUICK = ("--lease", str(LEASE), "--grace", "1", "--within", "0.1")


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


async def at_work(host: RemoteHost, worker: WorkerProcess, text: str, told: str) -> tuple[list[int], str]:
    """A turn runs in a child of this worker: the children, and what the event says that was waited for."""

    async def there() -> bool:
        return worker.name in [one.name for one in await host.workers()]

    await eventually(there)
    await host.create("s")
    await host.send("s", text, turn_id="t1")
    recorded = await until_kind(host, "s", told)
    found = children_of(worker._process.pid)
    assert found
    return found, getattr(recorded.event, "message", "")


async def test_a_supervisor_that_is_killed_leaves_nothing_of_a_child_whose_loop_is_blocked():
    broker = nats()
    async with (
        hosting(broker) as host,
        worker_process(str(broker.url), broker.namespace, *QUICK, agent=TARGET) as worker,
    ):
        children, grandchild = await at_work(host, worker, "spawn", "progress_made")
        assert not gone(int(grandchild))
        await asyncio.sleep(0.5)  # real time: from then on the loop of the child is blocked
        await worker.kill()

        async def ended() -> bool:
            return gone(*children, int(grandchild))

        await eventually(ended)


async def test_a_child_that_was_frozen_itself_hears_what_its_supervisor_has_said_meanwhile():
    broker = nats()
    async with (
        hosting(broker) as host,
        worker_process(str(broker.url), broker.namespace, *QUICK, agent=TARGET) as worker,
    ):
        (child,), _ = await at_work(host, worker, "talk", "text_streamed")
        os.kill(child, signal.SIGSTOP)
        await asyncio.sleep(2 * LEASE)  # real time: its supervisor renews the lease meanwhile
        os.kill(child, signal.SIGCONT)
        await asyncio.sleep(0.3)  # real time: it would end itself now
        ack = await host.stop("s", "t1")
        assert (ack.status, ack.level) == ("accepted", "delivered")
        ended = await until_kind(host, "s", "turn_ended", turn_id="t1")
        assert ended.event.outcome.reason.kind == "user"  # type: ignore[union-attr]


async def test_a_child_does_not_hear_the_signals_meant_for_its_supervisor():
    broker = nats()
    async with (
        hosting(broker) as host,
        worker_process(str(broker.url), broker.namespace, *QUICK, agent=TARGET) as worker,
    ):
        children, _ = await at_work(host, worker, "talk", "text_streamed")
        worker._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await worker._process.wait() == 0
        assert gone(*children)
        ended = await until_kind(host, "s", "turn_ended", turn_id="t1")
        assert ended.event.outcome.reason.kind == "lease_lost"  # type: ignore[union-attr]
