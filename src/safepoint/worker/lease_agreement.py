"""The agreement on one lease: all workers that take from a queue hold its orders for the same time.

The broker applies one lease to the whole queue. A worker that renews every three seconds would lose healthy orders if
another one set the lease to two. So a worker that was started with another lease than the one in force is refused,
unless no other worker uses that one.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from .broker import RETENTION, LeaseInForce, Queue, QueueLease, ReadableStreams, same_lease
from .protocol import Unreadable, WorkerInfo, from_json

__all__ = ["LeaseConnection", "agree_on_lease"]

# How long to wait for a worker that was started at the same moment with another lease, and that will be refused.
OTHERS_SECONDS = 2.0
RETRY_SECONDS = 0.1


class LeaseConnection(QueueLease, ReadableStreams, Protocol):
    """What the agreement uses of a connection: it reads the announcements of workers, and sets the lease."""


async def agree_on_lease(connection: LeaseConnection, name: str, queues: Sequence[Queue]) -> None:
    """Ensure that `connection.lease` is in force for these queues.

    Call it after this worker has announced itself with its lease, not before: of two workers that start at the same
    moment, at least one then sees the announcement of the other, so two leases are never in use.

    Args:
        connection: The connection of the worker.
        name: The name of the worker. An announcement under the same name is an earlier one of its own.
        queues: The queues that it takes orders from.

    Raises:
        LeaseInForce: Other workers use another lease.
        BrokerError: The broker does not answer.
    """
    until = time.monotonic() + OTHERS_SECONDS
    while True:
        others = await _other_workers(connection, name)
        refused = [error for queue in queues if (error := await _apply_lease(connection, queue, others)) is not None]
        if not refused:
            return
        if time.monotonic() > until or not same_lease(refused[0].seconds, connection.lease):
            raise refused[0]
        await asyncio.sleep(RETRY_SECONDS)  # real time: the other worker is refused, and withdraws its announcement


async def _other_workers(streams: ReadableStreams, name: str) -> list[WorkerInfo]:
    found: list[WorkerInfo] = []
    for entry in await streams.last_per_key("workers"):
        try:
            found.append(from_json(WorkerInfo, entry.data))
        except Unreadable:
            continue  # from a version so different that nothing is known about its lease
    return [other for other in found if other.name != name]


async def _apply_lease(connection: QueueLease, queue: Queue, others: Sequence[WorkerInfo]) -> LeaseInForce | None:
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
    listed = f"; a worker that was killed is listed for another {RETENTION['workers'].seconds:g} s" if users else ""
    return LeaseInForce(queue, seconds, wanted, f" (used by {', '.join(users)}{listed})")
