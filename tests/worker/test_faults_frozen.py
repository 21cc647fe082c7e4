"""Workers that are frozen while a turn is stopped: what was acknowledged holds when they move again."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import counts
from tests.kit.nats import nats_server
from tests.worker.faulty import LEASE, Lab, Member, lab
from tests.worker.faulty import Client as Talker

TURNS = counts(2, 10)
# The tool that runs is over when they move again: its turn has one more thing to do at once, or completes.
WORK = ("steps=1 pause=0 tool=0.3", "steps=2 pause=0 tool=0.3")


def supervisor(worker: Member) -> list[int]:
    return [worker.process.pid]


def child(worker: Member) -> list[int]:
    return [pid for pid in worker.family if pid != worker.process.pid]


def machine(worker: Member) -> list[int]:
    return worker.family


def send_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # a supervisor has ended its child, or a child itself
            continue


async def works(there: Lab, turn_id: str) -> None:
    async with asyncio.timeout(20):
        while all(effect[0] != turn_id for effect in there.effects()):
            await asyncio.sleep(0.005)  # real time: another process works


async def stopped_while_frozen(
    there: Lab, talker: Talker, work: str, frozen: list[int], seconds: float, delay: float
) -> str:
    """Freeze these processes, stop the turn that runs, and let them go on."""
    turn_id = await talker.send(work)
    await works(there, turn_id)
    await asyncio.sleep(delay)  # real time: at another moment of the turn
    send_all(frozen, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        # What is frozen may ask the model once more when it moves again, before it has seen the record.
        stop = await talker.stop(turn_id, seconds + 0.5)
        # Where only the supervisor is frozen, the process that works reads the record, and is done before the answer.
        assert stop.status in ("accepted", "already_finished"), stop
        await asyncio.sleep(max(0.0, seconds - (time.monotonic() - begun)))  # real time: they are frozen for so long
    finally:
        send_all(frozen, signal.SIGCONT)
    return turn_id


@pytest.mark.parametrize("seconds", [0.6 * LEASE, 1.7 * LEASE], ids=["shorter than the lease", "longer"])
@pytest.mark.parametrize("whom", [supervisor, child, machine])
async def test_no_turn_completes_and_no_tool_begins_after_an_acknowledged_stop_of_a_frozen_worker(
    tmp_path: Path, whom: Callable[[Member], list[int]], seconds: float
) -> None:
    chance = random.Random(f"{whom.__name__} {seconds}")
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there:
            worker = await there.start("slow")
            talker = await there.client(1)
            await talker.until(await talker.send("steps=1"), "completed")
            for number in range(TURNS):
                work, delay = WORK[number % 2], 0.25 * chance.random()
                turn_id = await stopped_while_frozen(there, talker, work, whom(worker), seconds, delay)
                stop = talker.story.stops[-1]
                # On a busy machine a process that is not frozen itself may be done before the stop is asked for.
                over = ("aborted", "completed") if stop.status == "already_finished" else ("aborted",)
                await talker.until(turn_id, *over)
                chain = talker.told.chain(turn_id)
                late = [
                    float(at) - stop.at for run, _, at, _ in there.effects() if run in chain and float(at) > stop.at
                ]
                assert len(late) <= (0 if stop.level == "delivered" else 1), (stop, late)
            await there.check()
