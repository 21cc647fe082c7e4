"""Workers that die, stall, or lose their broker: nothing accepted is lost, nothing stopped goes on."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.conftest import counts
from tests.rigs.nats import nats_server
from tests.worker.faulty import lab

KILLS = counts(5, 50)
ROUND = 5  # kills of one set of workers


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
