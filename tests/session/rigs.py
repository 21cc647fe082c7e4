"""Owns the local host as the conformance suite takes it: over a store with a gate, on the fake clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from safepoint.abort import use_clock
from safepoint.session import Host, LocalHost
from safepoint.testing import FakeClock
from safepoint.testing.conformance import Cast, Rig
from tests.session.lab import GatedStore


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
            hold=(store.shut, store.writing.wait, store.gate.set),
        )
        for host in hosts:
            await host.close()
        assert clock.pending == 0, "a timer is left"
