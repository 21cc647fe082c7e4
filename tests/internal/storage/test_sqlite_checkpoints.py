"""Owns the tests that look inside, beside those of `tests/storage/test_sqlite_checkpoints.py`.

The store in an SQLite database: locked, damaged, shared, and from another version. See also test_checkpoints.py.
"""

import asyncio
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from safepoint.abort import AbortController, AbortError
from safepoint.run import CheckpointError, SqliteCheckpoints
from safepoint.storage import sqlite_checkpoints
from safepoint.storage.sqlite_checkpoints import BUSY_SECONDS, SCHEMA
from tests.storage.test_sqlite_checkpoints import ask


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
def store(path) -> SqliteCheckpoints:
    return SqliteCheckpoints(path)


@contextmanager
def locked(path: Path):
    """Somebody else is writing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


async def test_it_is_written_ahead_and_has_its_own_tables(store, path):
    await store.save("k", "text")
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]
    assert ask(path, "SELECT version FROM safepoint_checkpoints_schema") == [(SCHEMA,)]
    ((key, text, saved_at),) = ask(path, "SELECT key, CAST(text AS TEXT), saved_at FROM safepoint_checkpoints")
    assert (key, text) == ("k", "text")
    assert str(saved_at).startswith("20")


async def test_a_database_of_another_version_is_refused_and_left_as_it_is(store, path):
    await store.save("k", "text")
    ask(path, "UPDATE safepoint_checkpoints_schema SET version = 99")
    for wrong in (store.load("k"), store.save("k", "new"), store.delete("k"), store.set_aside("k", "why")):
        with pytest.raises(CheckpointError, match=rf"chat\.db have the schema 99, and this Safepoint knows {SCHEMA}"):
            await wrong
    assert ask(path, "SELECT CAST(text AS TEXT) FROM safepoint_checkpoints") == [("text",)]
    ask(path, "DELETE FROM safepoint_checkpoints_schema")
    with pytest.raises(CheckpointError, match="the schema 0"):
        await store.load("k")


async def test_a_save_waits_for_another_writer_and_the_loop_does_not(store, path):
    await store.save("k", "old")
    with locked(path):
        task = asyncio.create_task(store.save("k", "new"))
        await asyncio.sleep(2 * sqlite_checkpoints.ATTEMPT_SECONDS)  # real time: longer than one attempt
        # All of this runs on the loop while the save waits; readers do not wait for writers.
        assert await store.load("k") == "old"
        assert not task.done()
    await task
    assert await store.load("k") == "new"


async def test_a_save_that_only_waits_can_be_stopped(store, path):
    await store.save("k", "old")
    controller = AbortController()
    with locked(path):
        task = asyncio.create_task(controller.signal.run(store.save("k", "new")))
        await asyncio.sleep(0.01)  # real time: it has to get to the lock; where it does not, it is stopped earlier
        controller.abort()
        await asyncio.wait([task], timeout=BUSY_SECONDS / 3)
        assert task.done(), "long before it would have given up by itself"
    with pytest.raises(AbortError):
        await task
    assert await store.load("k") == "old"


async def test_a_database_that_stays_locked_gives_an_error_that_names_it(path):
    store = SqliteCheckpoints(path, busy_seconds=0)
    await store.save("k", "old")
    with locked(path):
        with pytest.raises(
            CheckpointError, match=r"save checkpoint 'k' in .*chat\.db: another process keeps .* locked"
        ):
            await store.save("k", "new")
    assert await store.load("k") == "old"
