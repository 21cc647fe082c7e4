"""Hosts as the conformance suite takes them, local and remote, and ways to wait for the events of a host."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

from safepoint.abort import use_clock
from safepoint.agent import AgentResult
from safepoint.events import Event, TurnEnded
from safepoint.run import Outcome
from safepoint.session import Host, LocalHost
from safepoint.testing import FakeClock
from safepoint.testing.conformance import Cast, Rig, StoreGate
from safepoint.worker import Broker, MemoryBroker, NatsBroker, RemoteHost, Worker
from tests.kit.nats import shared_url
from tests.kit.stores import GatedStore

PACE = 0.25
SECONDS = 20.0


@asynccontextmanager
async def local(cast: Cast, on_disconnect: float | None) -> AsyncIterator[Rig]:
    with use_clock(FakeClock()) as clock:
        store = GatedStore()
        policy = "continue" if on_disconnect is None else on_disconnect
        hosts = [LocalHost(cast.agents, store, on_disconnect=policy)]  # type: ignore[arg-type]

        async def again() -> Host:
            hosts.append(LocalHost(cast.agents, store, resume=True))
            await hosts[-1].recover()
            return hosts[-1]

        yield Rig(
            host=hosts[0],
            cast=cast,
            elapse=clock.elapse,
            again=again,
            session=hosts[0].live,
            store_gate=StoreGate(store.shut, store.writing.wait, store.gate.set),
        )
        for host in hosts:
            await host.close()
        assert clock.pending == 0, "a timer is left"


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

        @asynccontextmanager
        async def elsewhere() -> AsyncIterator[Host]:
            host = RemoteHost(broker)
            yield host
            await host.close()

        yield Rig(host=hosts[0], cast=cast, elapse=elapse, again=again, elsewhere=elsewhere, pace=PACE)
        for host in hosts:
            await host.close()

    return make


async def seen(host: Host, session_id: str, kind: type[Any], after: int = 0, **about: Any) -> Any:
    """The first event of this kind, with these fields."""

    def fits(event: Event) -> bool:
        return isinstance(event, kind) and all(getattr(event, name) == value for name, value in about.items())

    async with asyncio.timeout(SECONDS), aclosing(host.events(session_id, after)) as events:
        async for recorded in events:
            if fits(recorded.event):
                return recorded.event
    raise AssertionError(f"the host was closed before {kind.__name__}")


async def end_of(host: Host, session_id: str, turn_id: str) -> Outcome[AgentResult]:
    """How a turn ended, or the one that goes on with it, as its first id tells it."""
    after = 0
    async with asyncio.timeout(SECONDS), aclosing(host.events(session_id, after)) as events:
        async for recorded in events:
            if isinstance(recorded.event, TurnEnded):
                view = await host.turn(session_id, turn_id)
                if view.outcome is not None:
                    return view.outcome
    raise AssertionError(f"the host was closed before the end of {turn_id}")
