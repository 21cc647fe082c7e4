"""A broker that dies and comes back, alone or as one of three: everything goes on, and every stop is answered."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.conftest import TORTURE, counts
from tests.kit.nats import nats_cluster, nats_server
from tests.worker.faulty import PATIENCE, Lab, lab

AWAY = 5.0  # seconds for the answer to a stop while the broker is away
# Seconds in which three servers have a new leader for everything, and the workers have found it. A server waits 4 to
# 9 s for the old leader before it asks for votes, and again if they were split, which is not rare on a busy machine.
ELECTION = 30.0
KEPT = ("stops", "log", "orders", "inbox")
# Seconds until everybody has found back to a broker that is there again, besides the starts of processes: a worker
# kills the process of a turn whose lease is over, and the turn waits for a new one, once for each return of the broker.
BACK = 12.0
RETURNS = 2  # of the broker, in one story
RESTARTS = counts(1, 10)
LEADERS = counts(1, 5)


@pytest.mark.parametrize("seed", range(RESTARTS))
async def test_a_broker_that_is_killed_and_started_again_loses_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            starting = time.monotonic()
            await there.start_all("a", "b")
            starting = time.monotonic() - starting
            clients = [await there.client(seed + number, stops=0.6) for number in range(2)]
            for client in clients:
                client.limit, client.away = AWAY, AWAY + PATIENCE
                client.talk()
            for _ in range(RETURNS):
                await asyncio.sleep(0.5 + chance.random())  # real time: workers work meanwhile
                server.kill()
                await asyncio.sleep(chance.choice([0.0, 0.4, 1.5]))  # real time: nobody is there
                await asyncio.to_thread(server.start)
            await goes_on(there, BACK + RETURNS * starting)
            await there.check()


async def goes_on(there: Lab, seconds: float) -> None:
    """Every client has new turns, and turns of each of them end, within so many seconds."""
    before, begun = [len(client.told.ended) for client in there.clients], time.monotonic()
    while any(len(client.told.ended) < count + 3 for client, count in zip(there.clients, before, strict=True)):
        assert time.monotonic() - begun < seconds, f"nothing happens any more: {there.logs()}"
        await asyncio.sleep(0.05)  # real time: all find back
    if TORTURE:
        print(f"everything goes on {time.monotonic() - begun:.1f} s after the broker is back")


@pytest.mark.parametrize("seed", range(LEADERS))
async def test_the_leader_of_three_brokers_is_killed_while_turns_are_stopped(tmp_path: Path, seed: int) -> None:
    stream = ["stops", "log", "orders", "inbox", "stops"][seed % 5]
    async with nats_cluster(tmp_path) as cluster, lab(tmp_path, *cluster.urls, lease=2.0, replicas=3) as there:
        await there.start_all("a", "b")
        clients = [await there.client(seed + number, stops=0.8) for number in range(2)]
        for client in clients:
            client.limit, client.away = AWAY, AWAY + PATIENCE
            client.talk()
        await asyncio.sleep(1.0)  # real time: workers work meanwhile
        cluster.servers[await cluster.leader(f"{there.namespace}-{stream}")].kill()
        killed, stops = time.monotonic(), [len(client.story.stops) for client in clients]
        while [len(client.story.stops) for client in clients] <= [count + 2 for count in stops]:
            assert time.monotonic() - killed < ELECTION, "nobody can stop anything any more"
            await asyncio.sleep(0.05)  # real time: turns are stopped meanwhile
        # No turn can end while the record of stops, the log or the orders have no leader: that is up to the servers.
        for kept in KEPT:
            await cluster.leader(f"{there.namespace}-{kept}", ELECTION)
        await there.check()
