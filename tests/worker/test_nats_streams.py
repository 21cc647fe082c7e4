"""Owns the tests of names in JetStream: two keys never become one subject, and streams are made once."""

import asyncio
from pathlib import Path

import nats as nats_client

from safepoint.worker import NatsBroker
from tests.kit.nats import NatsCluster, NatsServer
from tests.kit.workers import linked, nats

SECONDS = 20.0
NO_PEERS = 10005  # the code of NATS for "no suitable peers for placement"


async def test_streams_that_are_there_stay_as_they_are():
    broker = nats()
    async with linked(broker) as connection:
        position = await connection.append("log", ("s",), b"kept")
        async with linked(broker) as other:
            found = await other.last("log", ("s",))
            assert found is not None
            assert found.position == position


async def test_ten_who_come_at_once_make_each_stream_once():
    broker = nats()
    links = await asyncio.gather(*(broker.connect(f"c{number}") for number in range(10)))
    assert [await connection.keys("log") for connection in links] == [[]] * 10
    for connection in links:
        await connection.close()


async def test_streams_are_made_as_soon_as_enough_servers_of_a_cluster_are_there(tmp_path: Path):
    cluster = NatsCluster(tmp_path, founders=2)
    *founders, last = cluster.servers.values()
    try:
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in founders))
        await until_refused(founders[0])
        connecting = asyncio.create_task(NatsBroker(founders[0].url, replicas=3).connect("test"))
        done, _ = await asyncio.wait([connecting], timeout=0.5)  # real time: it is refused meanwhile
        assert not done, "it gave up, although the third server is about to come"
        await asyncio.to_thread(last.start)
        async with asyncio.timeout(SECONDS):
            connection = await connecting
        assert await connection.append("log", ("s",), b"kept")
        await connection.close()
    finally:
        cluster.kill()


async def until_refused(server: NatsServer) -> None:
    """Until a cluster has a leader, which says that it cannot keep anything three times."""
    connection = await nats_client.connect(server.url)
    jetstream = connection.jetstream(timeout=1)
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await jetstream.add_stream(name="probe", subjects=["probe"], num_replicas=3)
                except (nats_client.js.errors.APIError, nats_client.errors.Error) as error:
                    if getattr(error, "err_code", None) == NO_PEERS:
                        return
                await asyncio.sleep(0.05)  # real time: they elect a leader
    finally:
        await connection.close()
