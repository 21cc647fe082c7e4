"""Brokers, hosts and workers that end with the test, and ways to read what the broker has on record."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from safepoint.events import Event
from safepoint.session import Host, LoggedEvent
from safepoint.worker import Broker, MemoryBroker, NatsBroker, RemoteHost, Worker
from safepoint.worker.broker import BrokerConnection
from tests.kit.nats import shared_url

SECONDS = 15.0
LEASE = 1.5


def memory(lease: float = LEASE) -> Broker:
    return MemoryBroker(lease)


def nats(lease: float = LEASE, **options: Any) -> NatsBroker:
    return NatsBroker(shared_url(), namespace=f"t{uuid.uuid4().hex[:10]}", lease=lease, **options)


New = Callable[..., Broker]
each_broker = pytest.mark.parametrize("new", [memory, nats], ids=["memory", "nats"])


@asynccontextmanager
async def linked(broker: Broker, name: str = "test") -> AsyncIterator[BrokerConnection]:
    connection = await broker.connect(name)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def hosting(broker: Broker, **options: Any) -> AsyncIterator[RemoteHost]:
    host = RemoteHost(broker, **options)
    try:
        yield host
    finally:
        await host.close()


@asynccontextmanager
async def working(agents: Any, broker: Broker, **options: Any) -> AsyncIterator[Worker]:
    """A worker that is quick to let go."""
    worker = Worker(agents, broker, **{"idle_for": 0.05, "grace": 0.5, **options})
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close()


async def until(host: Host, session: str, wanted: Callable[[Event], bool], after: int = 0) -> LoggedEvent:
    """The first event that fits."""
    async with asyncio.timeout(SECONDS), aclosing(host.events(session, after)) as events:
        async for recorded in events:
            if wanted(recorded.event):
                return recorded
    raise AssertionError("the host was closed before that")


async def until_kind(host: Host, session: str, kind: str, after: int = 0, **about: Any) -> LoggedEvent:
    """The first event of this kind, with these fields."""

    def fits(event: Event) -> bool:
        return event.kind == kind and all(getattr(event, name) == value for name, value in about.items())

    return await until(host, session, fits, after)


async def logged(connection: BrokerConnection, session: str) -> list[Event]:
    """Everything that the broker has of a session."""
    from safepoint.session.log import decode_record
    from safepoint.worker.store import LogReader

    pages, seq, found = LogReader(connection, session), 0, []
    while records := await pages.after(seq):
        found += [decode_record(record).event for record in records]
        seq = records[-1].seq
    return found


def ends(events: list[Event]) -> dict[str, Any]:
    """How each turn ended: there is one end of each."""
    found: dict[str, Any] = {}
    for event in events:
        if event.kind == "turn_ended":
            turn_id, outcome = event.turn_id, event.outcome
            assert turn_id not in found, f"turn {turn_id} has two ends"
            found[turn_id] = outcome
    return found
