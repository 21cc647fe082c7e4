"""Owns the agreement on one lease: all workers that take from a queue hold its orders for the same time.

The broker counts for all of them. A worker that renews every three seconds would lose healthy orders to a broker that
waits for two. So a worker that was started with another lease than the one in force is refused, unless nobody else is
there who uses it.
"""

import asyncio
import time
from collections.abc import Sequence

from .broker import KEPT, BrokerConnection, LeaseInForce, Queue, same_lease
from .protocol import Unreadable, WorkerInfo, from_json

__all__ = ["agree_on_lease"]

# How long to wait for another worker that was started at the same moment with another lease, and is to be refused.
OTHERS_SECONDS = 2.0
AGAIN_SECONDS = 0.1


async def agree_on_lease(connection: BrokerConnection, name: str, queues: Sequence[Queue]) -> None:
    """See to it that `connection.lease` is in force for these queues.

    Call it when this worker has announced itself, with its lease. Of two that start at the same moment at least one
    then sees the other, so two leases are never in use.

    Args:
        link: The connection of the worker.
        name: The worker. An earlier announcement of the same name is replaced by its own.
        queues: Where it takes orders from.

    Raises:
        LeaseInForce: other workers use another lease.
        BrokerError: the broker does not answer.
    """
    until = time.monotonic() + OTHERS_SECONDS
    while True:
        others = await _others(connection, name)
        refused = [error for queue in queues if (error := await _settled(connection, queue, others)) is not None]
        if not refused:
            return
        if time.monotonic() > until or not same_lease(refused[0].seconds, connection.lease):
            raise refused[0]
        await asyncio.sleep(AGAIN_SECONDS)  # real time: the other one is refused, and leaves


async def _others(connection: BrokerConnection, name: str) -> list[WorkerInfo]:
    found: list[WorkerInfo] = []
    for entry in await connection.lasts("workers"):
        try:
            found.append(from_json(WorkerInfo, entry.data))
        except Unreadable:
            continue  # of a version so different that nothing can be said about it
    return [other for other in found if other.name != name]


async def _settled(connection: BrokerConnection, queue: Queue, others: Sequence[WorkerInfo]) -> LeaseInForce | None:
    """Set the lease of a queue if that is possible. Returns why it is not."""
    users = [other for other in others if queue[0] != "at" and queue[1] in other.agents]
    seconds = await connection.lease_in_force(queue)
    if same_lease(seconds, connection.lease):
        foreign = [other.name for other in users if other.lease and not same_lease(other.lease, connection.lease)]
        return _refusal(queue, seconds, connection.lease, foreign) if foreign else None
    if users:
        return _refusal(queue, seconds, connection.lease, [other.name for other in users])
    await connection.change_lease(queue)
    return None


def _refusal(queue: Queue, seconds: float, wanted: float, users: Sequence[str]) -> LeaseInForce:
    there = f"; a worker that was killed counts as there for {KEPT['workers'].seconds:g} s" if users else ""
    return LeaseInForce(queue, seconds, wanted, f" (there: {', '.join(users)}{there})")
