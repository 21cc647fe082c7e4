"""The machine of a parent dies: its sub-agent on another one is found again, or stopped."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.nats import nats_server
from tests.worker.faulty import Client, Lab, Member, lab
from tests.worker.paying import NAMESPACE, NATS

CHIEF = "tests.worker.delegating:agent"


@asynccontextmanager
async def parted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> AsyncIterator[tuple[Lab, Client, str, Member]]:
    """A chief on one worker, whose sub-agent has begun to work on another one."""
    with nats_server() as server:
        async with lab(folder, server.url) as there:
            monkeypatch.setenv(NATS, server.url)
            monkeypatch.setenv(NAMESPACE, there.namespace)
            await there.start("far")
            delegating = await there.start("near", agent=CHIEF)
            client = Client(there, "p", random.Random(1))
            await there.host.create("p", "chief")
            there.clients.append(client)
            client.begin()
            turn_id = await client.send(f"steps={steps} pause=0.1")
            async with asyncio.timeout(20):
                while not there.effects():
                    await asyncio.sleep(0.02)  # real time: another process works
            yield there, client, turn_id, delegating


def kill_all(worker: Member) -> None:
    for pid in worker.family:
        os.kill(pid, signal.SIGKILL)


async def test_a_parent_whose_machine_died_is_done_by_the_sub_agent_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with parted(tmp_path, monkeypatch, 50) as (there, client, turn_id, delegating):
        kill_all(delegating)
        await there.start("next", agent=CHIEF)
        await client.until(turn_id, "completed")
        assert [n for _, n, _, _ in there.effects()] == [str(n) for n in range(50)], "it was begun twice"
        forwarded = [one.event for one in client.log if one.kind == "tool_called" and one.event.calls]
        keys = [event.idempotency_key for event in forwarded]  # type: ignore[union-attr]
        assert len(keys) == len(set(keys)) == 50, "each call is told once, under a key of its own"


@pytest.mark.parametrize("owned", [True, False], ids=["and was taken over", "and has no worker yet"])
async def test_a_stop_of_a_parent_whose_machine_died_ends_its_sub_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    async with parted(tmp_path, monkeypatch, 400) as (there, client, turn_id, delegating):
        kill_all(delegating)
        if owned:
            await there.start("next", agent=CHIEF)
            await client.carried_on(turn_id, 1)
            await client.stop(turn_id)
        else:
            await client.stop(turn_id)
            await there.start("next", agent=CHIEF)
        await client.until(turn_id, "aborted")
        done = len(there.effects())
        await asyncio.sleep(0.5)  # real time: it would go on meanwhile
        assert len(there.effects()) == done < 400
