"""Workers that die, stall, or lose their broker: nothing accepted is lost, nothing stopped goes on."""

import asyncio
import random
import statistics
from pathlib import Path

import pytest

from tests.conftest import TORTURE, counts
from tests.kit.nats import nats_server
from tests.worker.faulty import PATIENCE, lab

KILLS = counts(4, 50)
ROUND = counts(4, 5)  # kills of one set of workers


@pytest.mark.parametrize("first", range(0, KILLS, ROUND))
async def test_a_killed_worker_loses_nothing_accepted_and_nothing_stopped_runs_again(
    tmp_path: Path, first: int
) -> None:
    chance = random.Random(first)
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            workers = await there.start_all("a", "b", "c")
            clients = [await there.client(first + number) for number in range(2)]
            for client in clients:
                client.talk()
            dead = []
            for number in range(ROUND):
                await asyncio.sleep(0.1 + 1.2 * chance.random())  # real time: workers work meanwhile
                victim = workers.pop(chance.randrange(len(workers)))
                await victim.kill()
                dead.append(victim)
                workers.append(await there.start(f"{victim.name[0]}{number}"))
            await there.check()
            await asyncio.gather(*(member.gone() for member in dead))
            assert sum(len(client.story.accepted) for client in clients) > ROUND


async def test_a_turn_that_began_before_its_sender_was_answered_is_waited_for(tmp_path: Path) -> None:
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            await there.start("a")
            client = await there.client(1)
            text, turn_id = "steps=5 pause=0.2", f"{client.story.session}-1"
            # Sent by another one first, so that it runs for certain when this client sends it and is answered.
            await there.host.send(client.story.session, text, turn_id=turn_id)
            async with asyncio.timeout(PATIENCE):
                while turn_id not in client.begun:
                    await asyncio.sleep(0.01)  # real time: another process works
            assert await client.send(text) == turn_id
            await there.check()
            assert client.told.ended[turn_id].outcome.status == "completed"


async def test_the_turn_of_a_killed_worker_is_taken_up_soon_after_its_lease(tmp_path: Path) -> None:
    lease, found = 2.0, list[float]()
    with nats_server() as server:
        async with lab(tmp_path, server.url, lease=lease) as there:
            await there.start_all("a", "b")
            client = await there.client(1)
            turn_id, name = await client.send("steps=900 pause=0.05"), ""
            for number in range(counts(1, 3)):  # a turn is resumed three times at most
                victim = await there.worker_of(client, besides=name)
                name = victim.name
                await victim.kill()
                await client.carried_on(turn_id, number + 1)
                opened = [one.event.at for one in client.log if one.kind == "session_opened"]
                found.append((opened[-1] - victim.killed_at) / lease)
                await there.start(f"{name[0]}{number}")
            await client.stop(turn_id)
            await there.check()
    assert max(found) < 2.5, found
    if TORTURE:
        print(f"from kill -9 to the next owner, in leases: median {statistics.median(found):.2f}, max {max(found):.2f}")
