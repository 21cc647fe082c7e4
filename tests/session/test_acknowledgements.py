"""How far the answer to a stop or a change has come: what says "recorded" survives any crash."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from safepoint import Aborted
from safepoint.events import TurnEnded, TurnQueued, TurnStarted
from safepoint.messages import UserMessage
from safepoint.models.scripted import Stall
from safepoint.session import LocalHost, SqliteStore, StoreError
from tests.conftest import counts
from tests.kit.agents import talker
from tests.kit.hosts import end_of
from tests.kit.sessions import first_text, stored
from tests.kit.stores import FailingStore, GatedStore
from tests.session import promising

TIMES = range(counts(2, 12))


async def killed(path: Path, way: str, turn_id: str) -> str:
    """What the program was told before it killed itself."""
    command = [sys.executable, "-m", promising.__name__, str(path), way, turn_id]
    program = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await program.communicate()
    assert program.returncode == -signal.SIGKILL
    return told.decode()


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("turn_id", ["running", "queued"])
async def test_a_stop_that_is_answered_as_recorded_survives_kill_9(tmp_path: Path, turn_id: str, time: int) -> None:
    assert await killed(tmp_path / "s.db", "stop", turn_id) == "recorded"
    store = SqliteStore(tmp_path / "s.db")
    host = LocalHost(promising.agent(*["whole"] * 3), store, resume=True)
    await host.recover()
    outcome = await end_of(host, "s", turn_id)
    assert isinstance(outcome, Aborted)
    assert outcome.reason.message == "enough"
    await end_of(host, "s", "queued")
    events = await stored(store)
    assert not [one for one in events if isinstance(one, TurnQueued) and one.continues == turn_id], "it was resumed"
    assert [one.turn_id for one in events if isinstance(one, TurnStarted)].count("queued") == (turn_id == "running")
    await host.close()


@pytest.mark.parametrize("time", TIMES)
async def test_a_turn_that_was_removed_does_not_come_back_after_kill_9(tmp_path: Path, time: int) -> None:
    assert await killed(tmp_path / "s.db", "remove", "queued") == "recorded"
    store = SqliteStore(tmp_path / "s.db")
    host = LocalHost(promising.agent("whole"), store, resume=True)
    await host.recover()
    assert (await end_of(host, "s", "queued")).status == "aborted"
    assert (await end_of(host, "s", "running")).status == "completed"
    await host.close()


@pytest.mark.parametrize("time", TIMES)
async def test_an_edit_that_is_answered_as_recorded_survives_kill_9(tmp_path: Path, time: int) -> None:
    assert await killed(tmp_path / "s.db", "edit", "queued") == "recorded"
    host = LocalHost(promising.agent("whole", "edited"), SqliteStore(tmp_path / "s.db"), resume=True)
    await host.recover()
    await end_of(host, "s", "queued")
    said = [one.text for one in (await host.live("s")).messages if isinstance(one, UserMessage)]
    assert said == ["first", "another"]
    await host.close()


async def test_an_answer_does_not_wait_for_a_slow_store_and_says_so() -> None:
    store = GatedStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await host.send("s", "hi", turn_id="queued")
    await host.send("s", "hi", turn_id="edited")
    session = await host.live("s")
    await first_text(session)
    store.shut()
    async with asyncio.timeout(5):
        ack = await host.stop("s", "t")
        removed, edited = await host.remove("s", "queued"), await host.edit("s", "edited", "ho")
    assert session.turns["t"].signal.aborted, "it was signalled at once"
    assert (ack.status, ack.level) == ("accepted", "accepted")
    assert (bool(removed), removed.level, bool(edited), edited.level) == (True, "accepted", True, "accepted")
    for answer in (ack, removed, edited):
        assert answer.message.endswith("(not recorded yet)")
    store.gate.set()
    await session.saved()
    again = await host.stop("s", "t")
    assert (again.status, again.level) == ("already_finished", "settled")
    await host.close()


async def test_a_stop_that_came_too_late_says_when_the_end_is_not_recorded_yet() -> None:
    store = GatedStore()
    host = LocalHost(talker("hello"), store)
    await host.create("s")
    session = await host.live("s")
    turn = session.send("hi", turn_id="t")
    await session.saved()
    store.shut()
    await store.writing.wait()
    async with asyncio.timeout(5):
        while turn.outcome is None:
            await asyncio.sleep(0)
    ack = await host.stop("s", "t")
    assert (ack.status, ack.level) == ("already_finished", "accepted")
    assert ack.message.endswith("(not recorded yet)")
    store.gate.set()
    await turn
    assert (await host.stop("s", "t")).level == "settled"
    await host.close()


async def test_a_change_that_was_not_made_is_not_told_as_one() -> None:
    host = LocalHost(talker("hello"))
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await end_of(host, "s", "t")
    assert not await host.remove("s", "t")
    assert not await host.edit("s", "t", "ho")
    assert (await host.stop("s", "nobody")).status == "unknown"
    await host.close()


async def test_a_stop_that_cannot_be_written_says_so() -> None:
    store = FailingStore("stop_requested")
    host = LocalHost(talker(["half", Stall()]), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await first_text(await host.live("s"))
    ack = await host.stop("s", "t")
    assert (ack.status, ack.level) == ("accepted", "accepted")
    assert "(not recorded: StoreError: the disk is full)" in ack.message
    assert not [one for one in await stored(store) if isinstance(one, TurnEnded)]
    with pytest.raises(StoreError, match="full"):
        await host.close()
