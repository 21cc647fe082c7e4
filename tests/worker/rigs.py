"""Owns the remote host as the conformance suite takes it: over a broker, with a worker in this process."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from safepoint.session import Host
from safepoint.testing.conformance import Cast, Rig
from safepoint.worker import Broker, MemoryBroker, NatsBroker, RemoteHost, Worker
from tests.rigs.nats import shared_url

PACE = 0.25


class Whole(RemoteHost):
    """Server and workers, which are shut down together."""

    worker: Worker

    async def close(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        await self.worker.close(within=within, reason=reason)
        await super().close(within=within, reason=reason)


async def whole(broker: Broker, cast: Cast, on_disconnect: float | None = None) -> Whole:
    host = Whole(broker, on_disconnect="continue" if on_disconnect is None else on_disconnect * PACE)
    host.worker = Worker(cast.agents, broker, idle_for=0.05)
    await host.worker.start()
    return host


def memory_broker() -> Broker:
    return MemoryBroker(lease=3.0)


def nats_broker() -> Broker:
    return NatsBroker(shared_url(), namespace=f"t{uuid.uuid4().hex[:10]}", lease=3.0)


def remote(new: Callable[[], Broker]) -> Callable[[Cast, float | None], AbstractAsyncContextManager[Rig]]:
    @asynccontextmanager
    async def make(cast: Cast, on_disconnect: float | None) -> AsyncIterator[Rig]:
        broker = new()
        hosts = [await whole(broker, cast, on_disconnect)]

        async def again() -> Host:
            hosts.append(await whole(broker, cast))
            return hosts[-1]

        async def elapse(seconds: float) -> None:
            await asyncio.sleep(seconds + 0.2)  # real time: over there it takes a moment until something has happened

        yield Rig(host=hosts[0], cast=cast, elapse=elapse, again=again, pace=PACE)
        for host in hosts:
            await host.close()

    return make
