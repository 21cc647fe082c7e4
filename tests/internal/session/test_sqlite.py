"""Owns the tests that look inside, beside those of `tests/session/test_sqlite.py`.

Sessions in a SQLite file: who may have it, what is refused and left alone, and what survives.
"""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from safepoint.session import SessionInUse, SqliteStore, StoreError
from safepoint.session.sqlite import SCHEMA
from safepoint.session.store import LogRecord
from safepoint.testing import drain_ready_tasks

LINE = [LogRecord(1, "line 1")]


async def test_what_was_written_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    store = SqliteStore(path)
    await store.append("s", [*LINE, LogRecord(2, "end", "t")], durable=True)
    await store.close()
    again = SqliteStore(str(path))
    assert await again.acquire("s") == 2
    assert await again.read("s") == [*LINE, LogRecord(2, "end", "t")]
    assert await again.append("s", [LogRecord(3, "another", "t")], durable=True) == {"t"}
    await again.close()


async def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a" / "b" / "chat.db")
    await store.append("s", LINE, durable=False)
    await store.close()
    assert (tmp_path / "a" / "b" / "chat.db").exists()


async def test_two_stores_on_one_file_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    first, second = SqliteStore(path), SqliteStore(path)
    await first.acquire("s")
    with pytest.raises(SessionInUse, match=rf"this process \(pid {os.getpid()}\)"):
        await second.acquire("s")
    with pytest.raises(SessionInUse, match="one process at a time"):
        await second.sessions()
    await second.close()
    await first.append("s", LINE, durable=True)
    await first.close()
    third = SqliteStore(path)
    assert await third.acquire("s") == 1
    await third.close()


async def test_a_damaged_file_is_refused_where_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    store = SqliteStore(path)
    await store.append("s", [LogRecord(number, "x" * 4000) for number in range(1, 50)], durable=True)
    await store.close()
    damaged = bytearray(path.read_bytes())
    damaged[3 * 4096 :] = b"\xff" * (len(damaged) - 3 * 4096)
    path.write_bytes(damaged)
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="malformed"):
        await store.read("s")
    await store.close()
    assert path.read_bytes() == damaged


async def test_a_file_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE future (it TEXT)")
        db.execute(f"PRAGMA application_id = {SCHEMA.application_id}")
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(StoreError, match=r"is of version 99; this program knows 1"):
        await store.acquire("s")
    await store.close()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["chat.db"]


async def test_a_batch_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db")
    await store.append("s", LINE, durable=False)
    bad: list[LogRecord] = [LogRecord(2, "good"), LogRecord(3, None)]  # type: ignore[arg-type]
    with pytest.raises((StoreError, AttributeError)):
        await store.append("s", bad, durable=False)
    assert await store.read("s") == LINE
    await store.append("s", [LogRecord(2, "good")], durable=True)
    assert len(await store.read("s")) == 2
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db")
    await store.append("s", LINE, durable=False)
    async with asyncio.TaskGroup() as group:
        group.create_task(store.close())
        group.create_task(store.close())
    for call in (store.acquire("s"), store.read("s"), store.sessions(), store.append("s", LINE, durable=False)):
        with pytest.raises(StoreError, match="is closed"):
            await call
    assert sorted(os.listdir(tmp_path)) == ["chat.db"], "no journal, no lease"


async def test_what_is_on_its_way_when_it_is_closed_is_still_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db")
    async with asyncio.TaskGroup() as group:
        for number in range(1, 20):
            group.create_task(store.append("s", [LogRecord(number, "x")], durable=False))
        await asyncio.sleep(0)
        group.create_task(store.close())
    again = SqliteStore(tmp_path / "chat.db")
    assert await again.acquire("s") == 19
    await again.close()


async def test_a_write_that_nobody_waits_for_any_more_is_done(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db")
    await store.sessions()
    writing = asyncio.create_task(store.append("s", LINE, durable=True))
    await drain_ready_tasks()
    writing.cancel()
    await asyncio.wait([writing])
    assert await store.acquire("s") == 1, "whoever takes the session waits for what its last owner had to say"
    assert await store.read("s") == LINE
    await store.close()


def test_a_loop_that_is_closed_in_the_middle_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SqliteStore(tmp_path / "chat.db")

    async def leave() -> None:
        for number in range(1, 50):
            asyncio.ensure_future(store.append("s", [LogRecord(number, "x" * 1000)], durable=True))
        await asyncio.sleep(0)

    async def close() -> int:
        found = await store.acquire("s")
        await store.close()
        return found

    asyncio.run(leave())
    assert asyncio.run(close()) == 49
    assert not caplog.records


async def test_reads_and_lists_go_on_while_a_write_waits_for_the_lock_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    store = SqliteStore(path)
    await store.append("s", LINE, durable=True)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(store.append("s", [LogRecord(2, "line 2")], durable=True))
    await drain_ready_tasks()
    async with asyncio.timeout(5):
        assert await store.read("s") == LINE
        assert [info.last_seq for info in await store.sessions()] == [1]
    assert not writing.done(), "it waits for the other program"
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(20):
        await writing
    assert len(await store.read("s")) == 2
    await store.close()


def in_a_fork(work: Callable[[], Coroutine[Any, Any, str]]) -> str:
    """What this says in a forked process, within 20 seconds."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            os.write(writer, asyncio.run(work()).encode())
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_that_was_used_before_a_fork_fails_at_once_in_the_child_and_works_on_in_the_parent(
    tmp_path: Path,
) -> None:
    async def uses() -> SqliteStore:
        store = SqliteStore(tmp_path / "chat.db")
        await store.append("s", LINE, durable=True)
        await store.sessions()
        return store

    async def in_the_child() -> str:
        failures = []
        for call in (store.acquire("s"), store.read("s"), store.sessions(), store.append("s", LINE, durable=False)):
            try:
                await call
            except StoreError as error:
                failures.append(f"opened in process {os.getppid()}, and this one is a fork of it" in str(error))
        await store.close()
        await store.close()
        own = SqliteStore(tmp_path / "own.db")
        await own.append("s", LINE, durable=True)
        await own.close()
        return str(failures)

    async def goes_on() -> None:
        assert await store.acquire("s") == 1
        await store.append("s", [LogRecord(2, "line 2")], durable=True)
        assert len(await store.read("s")) == 2
        await store.close()

    store = asyncio.run(uses())
    assert in_a_fork(in_the_child) == str([True] * 4)
    asyncio.run(goes_on())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_store_that_is_used_first_after_a_fork_works_in_the_child(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "chat.db")

    async def in_the_child() -> str:
        await store.append("s", LINE, durable=True)
        found = await store.read("s")
        await store.close()
        return str(len(found))

    assert in_a_fork(in_the_child) == "1"
