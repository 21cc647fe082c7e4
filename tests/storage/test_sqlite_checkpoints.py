"""The store in an SQLite database: locked, damaged, shared, and from another version. See also test_checkpoints.py."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from safepoint.errors import UsageError
from safepoint.run import CheckpointError, CheckpointInUse, CheckpointUnreadable, SqliteCheckpoints


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


@pytest.fixture
def store(path) -> SqliteCheckpoints:
    return SqliteCheckpoints(path)


def ask(path: Path, query: str, *values: object) -> list[tuple[object, ...]]:
    """Speak to the database as somebody else would."""
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(query, values).fetchall()


async def test_a_commit_returns_when_it_is_on_disk(store, monkeypatch):
    real, said = sqlite3.connect, []

    def connect(*args: object, **options: object) -> sqlite3.Connection:
        db = real(*args, **options)  # type: ignore[call-overload]
        db.set_trace_callback(said.append)
        return db  # type: ignore[no-any-return]

    monkeypatch.setattr(sqlite3, "connect", connect)
    for _ in range(2):
        await store.save("k", "text")
        assert said.index("PRAGMA synchronous = FULL") < said.index("BEGIN IMMEDIATE") < said.index("COMMIT")
        said.clear()


async def test_it_shares_a_database_with_others(store, path):
    ask(path, "CREATE TABLE theirs (x)")
    ask(path, "PRAGMA user_version = 77")
    assert await store.load("k") is None
    assert await store.delete("k") is False
    assert ask(path, "SELECT name FROM sqlite_master") == [("theirs",)], "asking makes nothing"
    await store.save("k", "text")
    assert await store.load("k") == "text"
    assert ask(path, "PRAGMA user_version") == [(77,)]


async def test_what_is_set_aside_is_a_row_with_its_reason(store, path):
    await store.save("k", "text")
    place = await store.set_aside("k", "it cannot be parsed")
    assert place == f"row 1 of the table safepoint_checkpoints_aside in {path}"
    kept = ask(path, "SELECT id, key, CAST(text AS TEXT), why FROM safepoint_checkpoints_aside")
    assert kept == [(1, "k", "text", "it cannot be parsed")]


async def test_what_somebody_wrote_by_hand_is_loaded_or_named(store, path):
    await store.save("k", "text")
    ask(path, "UPDATE safepoint_checkpoints SET text = 'by hand ☃'")
    assert await store.load("k") == "by hand ☃"
    ask(path, "UPDATE safepoint_checkpoints SET text = x'fffe'")
    with pytest.raises(CheckpointUnreadable, match=r"chat\.db has under the key 'k' is not a checkpoint's text"):
        await store.load("k")
    await store.set_aside("k", "not text")
    assert await store.load("k") is None
    assert ask(path, "SELECT text FROM safepoint_checkpoints_aside") == [(b"\xff\xfe",)]


@pytest.mark.parametrize("call", ["save", "load", "delete", "set_aside"])
@pytest.mark.parametrize("damage", ["no database", "torn"])
async def test_a_damaged_database_is_named_and_left_as_it_is(store, path, damage, call):
    if damage == "no database":
        path.write_bytes(b"this was never a database, whoever named it so" * 100)
    else:
        await store.save("k", "text" * 5000)
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\xaa" * (len(whole) - 100))
    before = path.read_bytes()
    arguments = {"save": ("k", "new"), "set_aside": ("k", "why")}.get(call, ("k",))
    with pytest.raises(
        CheckpointError, match=r"checkpoint 'k'.*: .*chat\.db is damaged, or no SQLite database .* Move it"
    ):
        await getattr(store, call)(*arguments)
    assert path.read_bytes() == before


async def test_a_place_that_is_no_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=rf"Could not load checkpoint 'k' in {tmp_path}: unable to open"):
        await SqliteCheckpoints(tmp_path).load("k")


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_database_in_memory_would_forget_everything_so_it_is_refused(path):
    with pytest.raises(UsageError, match=r"use MemoryCheckpoints\(\)"):
        SqliteCheckpoints(path)


async def test_the_database_is_made_once_by_many_at_the_same_time(path):
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(SqliteCheckpoints(path).save(str(number), "text"))
    assert [await SqliteCheckpoints(path).load(str(number)) for number in range(8)] == ["text"] * 8


async def test_a_lease_is_on_the_database_whatever_name_it_is_called_by(store, path, tmp_path):
    await store.save("k", "text")
    (tmp_path / "link.db").symlink_to(path)
    async with store.lease("k"):
        with pytest.raises(CheckpointInUse, match=r"link\.db"):
            async with SqliteCheckpoints(tmp_path / "link.db").lease("k"):
                pytest.fail("leased twice")
    assert list((tmp_path / "chat.db-leases").iterdir()) == []
