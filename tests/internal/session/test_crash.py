"""A process that is killed at any moment: nothing accepted is lost, nothing stopped is run again, all can go on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from safepoint.agent import validate
from safepoint.events import (
    AnswerStarted,
    SessionOpened,
    StopRequested,
    ToolCalled,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)
from safepoint.session import Session, SqliteStore
from safepoint.session.log import decode_record
from tests.conftest import counts
from tests.kit.sessions import lines
from tests.session import crashing

KILLS = counts(10, 200)
ROUND = 5  # kills of one file


class Lives:
    """The program, which is told to live and then killed."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, crashing.__file__, str(folder)]
        self.program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def kill(self, seed: int, resume: bool, seconds: float) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        print(seed, int(resume), file=self.program.stdin, flush=True)
        pid = int(self.program.stdout.readline())
        time.sleep(seconds)  # real time: another process lives meanwhile
        os.kill(pid, signal.SIGKILL)
        assert self.program.stdout.readline() == "gone\n"

    def end(self) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.close()
        self.program.wait(20)
        self.program.stdout.close()


@pytest.mark.parametrize("first", range(0, KILLS, ROUND))
async def test_a_killed_process_loses_nothing_accepted_and_runs_nothing_stopped(tmp_path: Path, first: int) -> None:
    folder = tmp_path
    lives = Lives(folder)
    try:
        for seed in range(first, first + ROUND):
            chance = random.Random(seed)
            lives.kill(seed + 1, chance.random() < 0.5, 0.02 + 0.35 * chance.random())
            await look(folder)
            if chance.random() < 0.4:
                await go_on(folder, seed, resume=chance.random() < 0.5)
                await look(folder)
        assert lines(folder / "accepted"), "it was killed before it had begun"
        await go_on(folder, 999_999, resume=True)
        await look(folder)
    finally:
        lives.end()


async def go_on(folder: Path, seed: int, *, resume: bool) -> None:
    """Open what a crash left behind, let all of it end, and talk on."""
    store = SqliteStore(folder / "s.db")
    agent = crashing.worker(folder, random.Random(seed))
    async with Session.open("s", agent=agent, store=store, resume=resume) as session:
        validate(session.messages)
        for turn in list(session.turns.values()):
            await turn
        assert (await session.send("and now?", turn_id=f"go-on-{seed}-{time.time_ns()}")).status == "completed"
        validate(session.messages)
    await store.close()


async def look(folder: Path) -> None:
    """What the log and the notes say, held against each other."""
    store = SqliteStore(folder / "s.db")
    records = await store.read("s", 0, 10_000_000)
    await store.close()
    events = [decode_record(record).event for record in records]
    queued = {event.turn_id for event in events if isinstance(event, TurnQueued)}
    ended = Counter(event.turn_id for event in events if isinstance(event, TurnEnded))
    stops = {event.turn_id for event in events if isinstance(event, StopRequested)}
    for (turn_id,) in lines(folder / "accepted"):
        assert turn_id in queued, f"{turn_id} was accepted, and is lost"
    for (turn_id,) in lines(folder / "stopped"):
        assert turn_id in stops or ended[turn_id], f"the stop of {turn_id} is lost"
    assert all(count == 1 for count in ended.values()), ended
    begun_again(events)
    done_again(folder, events)


def begun_again(events: list[Any]) -> None:
    """No turn with a recorded stop is run again, and none is begun twice."""
    stopped, life = dict[str, int](), 0
    begun: Counter[str] = Counter()
    for event in events:
        match event:
            case SessionOpened():
                life += 1
            case StopRequested(turn_id=turn_id):
                stopped.setdefault(turn_id, life)
            case TurnStarted(turn_id=turn_id):
                begun[turn_id] += 1
                assert begun[turn_id] == 1, f"{turn_id} was begun twice"
                assert stopped.get(turn_id, life) == life, f"{turn_id} was stopped, and begun after the crash"
            case AnswerStarted(run_id=run_id):
                assert stopped.get(run_id, life) == life, f"{run_id} was stopped, and asked a model after the crash"
            case _:
                pass


def done_again(folder: Path, events: list[Any]) -> None:
    """What the log knows to have been called is not called again; a stopped turn has no effects in a later life."""
    opened = [event.at for event in events if isinstance(event, SessionOpened)]

    def next_life(at: float) -> float:
        return next((life for life in opened if life > at), float("inf"))

    limits = {event.turn_id: next_life(event.at) for event in events if isinstance(event, StopRequested)}
    done = lines(folder / "effects")
    for turn_id, _, at in done:
        assert float(at) < limits.get(turn_id, float("inf")), f"{turn_id} was stopped, and worked after the crash"
    called = {event.call_id: next_life(event.at) for event in events if isinstance(event, ToolCalled)}
    for turn_id, call_id, at in done:
        assert float(at) < called.get(call_id, float("inf")), f"{call_id} of {turn_id} was done again after the crash"
