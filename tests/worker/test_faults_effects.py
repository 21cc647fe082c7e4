"""Effects over a broker happen once: workers are killed at their tools, the broker stands still, and others go on."""

import asyncio
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from safepoint.agent import validate
from safepoint.errors import UsageError
from safepoint.events import CallRecorded, ToolEnded, TurnEnded
from safepoint.run import Aborted, Completed
from safepoint.session import LoggedEvent, SessionBusy
from safepoint.worker import BrokerError
from tests.conftest import counts
from tests.kit.nats import NatsServer, nats_server
from tests.worker.faulty import Lab, _read, lab
from tests.worker.paying import KILLS, NAMESPACE, NATS

STORIES = counts(1, 8)
ENDS = counts(4, 25)  # at most: of workers and of the processes of their turns, in one story
SESSIONS = 3
SECONDS = 30.0 + 4.0 * ENDS


def lines(there: Lab, what: str) -> list[list[str]]:
    file = there.folder / what
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


async def keep_workers(there: Lab, over: asyncio.Event, chance: random.Random) -> None:
    """Two of them, whatever happens; every now and then one is killed from outside too."""
    number = 0
    while not over.is_set():
        living = [member for member in there.members if member.process.returncode is None]
        if len(living) < 2:
            number += 1
            await there.start(f"w{number}", agent="tests.worker.paying:agent")
        elif chance.random() < 0.02 and len(lines(there, "kills")) < ENDS:
            await chance.choice(living).kill()
        await asyncio.sleep(0.1)  # real time: other processes work


async def pause_broker(server: NatsServer, over: asyncio.Event, chance: random.Random) -> None:
    assert server.process is not None
    while not over.is_set():
        await asyncio.sleep(0.5 + 2.0 * chance.random())  # real time: it works meanwhile
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.6 * chance.random())  # real time: nobody is answered for so long
        server.process.send_signal(signal.SIGCONT)


async def until_done(there: Lab, session: str) -> list[LoggedEvent]:
    """The log, when the turn, or what goes on with it, has completed."""
    while True:
        log = await _read(there.host, session, 0)
        outcome = next((one.event.outcome for one in reversed(log) if isinstance(one.event, TurnEnded)), None)
        if isinstance(outcome, Completed):
            return log
        if isinstance(outcome, Aborted) and "it is not resumed again" in outcome.reason.message:
            # It was cut off more often than it is resumed by itself: a person goes on with it. Refused if that has
            # begun already, and unanswered if the worker is killed meanwhile: then it is looked at again.
            with suppress(UsageError, SessionBusy, BrokerError):
                await there.host.continue_turn(session)
        await asyncio.sleep(0.3)  # real time: other processes work


@pytest.mark.parametrize("number", range(STORIES))
async def test_every_effect_is_recorded_before_it_happens_and_no_irreversible_one_happens_twice(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, over = random.Random(number), asyncio.Event()
    with nats_server() as server:
        async with lab(tmp_path, server.url) as there, asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for name, value in ((NATS, server.url), (NAMESPACE, there.namespace), (KILLS, str(ENDS))):
                monkeypatch.setenv(name, value)
            group.create_task(keep_workers(there, over, chance))
            try:
                sessions = [f"s{place}" for place in range(SESSIONS)]
                while not await there.host.workers():
                    await asyncio.sleep(0.1)  # real time: the first one starts
                for session in sessions:
                    await there.host.create(session)
                    await there.host.send(session, "go", turn_id="turn")  # keys name the session too
                group.create_task(pause_broker(server, over, chance))
                logs = [await until_done(there, session) for session in sessions]
            finally:
                over.set()
    _check_effects(there, logs)
    for log in logs:
        _check_log(log)
    assert lines(there, "kills"), "nobody was killed"


def _check_effects(there: Lab, logs: list[list[LoggedEvent]]) -> None:
    effects = lines(there, "effects")
    assert all(known == "recorded" for _, _, known in effects), effects
    once = Counter(key for tool, key, _ in effects if tool in ("pay", "mail"))
    assert set(once.values()) == {1}, once
    recorded = {one.event.idempotency_key for log in logs for one in log if isinstance(one.event, CallRecorded)}
    assert {key for _, key, _ in effects} <= recorded
    charged = {key for tool, key, _ in effects if tool == "charge"}
    assert len(charged) == 3 * SESSIONS, "one key per call, over all workers"
    done: set[str] = set()
    for what, key in lines(there, "parts"):
        assert not (what == "begun" and key in done), f"a part that was on record ran again: {key}"
        done |= {key} if what == "done" else set()


def _check_log(log: list[LoggedEvent]) -> None:
    last = [one.event for one in log if isinstance(one.event, TurnEnded)][-1]
    assert isinstance(last.outcome, Completed)
    validate(last.outcome.value.messages)
    assert last.outcome.value.text == "that is all"
    assert {one.event.status for one in log if isinstance(one.event, ToolEnded)} <= {"completed", "unknown"}
