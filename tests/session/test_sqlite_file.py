"""The file of a SQLite store: whose it is, and that nothing but ours is ever changed."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from safepoint.session import SqliteStore, StoreError
from safepoint.session.sqlite_file import APPLICATION_ID, open_file
from safepoint.session.store import Record

# As the first program wrote it, without an application_id.
FIRST = """
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
CREATE TABLE events (
    session TEXT NOT NULL, seq INTEGER NOT NULL, text TEXT NOT NULL, ends TEXT, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_end ON events (session, ends) WHERE ends IS NOT NULL;
CREATE TABLE sessions (session TEXT PRIMARY KEY, written INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX newest ON sessions (written);
PRAGMA user_version = 1;
COMMIT;
INSERT INTO events VALUES ('s', 1, 'line 1', NULL);
INSERT INTO sessions VALUES ('s', 1);
"""
FOREIGN = {
    "a version": "CREATE TABLE orders (id INTEGER); PRAGMA user_version = 1",
    "our names": "CREATE TABLE events (id INTEGER); CREATE TABLE sessions (id INTEGER); PRAGMA user_version = 1",
    "an id": "PRAGMA application_id = 42",
    "another version": "CREATE TABLE future (it TEXT); PRAGMA user_version = 99",
    "our tables, another version": FIRST.replace("WAL", "DELETE").replace("user_version = 1", "user_version = 3"),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_database_of_another_program_is_not_touched_whatever_it_has_in_common_with_ours(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a shop?.db"
    db = sqlite3.connect(path)
    db.executescript(FOREIGN[kind])
    db.close()
    before = path.read_bytes()
    store = SqliteStore(path)
    for _ in range(2):
        with pytest.raises(StoreError, match="a database of another program: give the sessions a file of their own"):
            await store.sessions()
    await store.close()
    assert path.read_bytes() == before, "not even switched to WAL"
    assert os.listdir(tmp_path) == [path.name]


async def test_a_new_file_says_whose_it_is_also_without_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    store = SqliteStore(path)
    await store.append("s", [Record(1, "line 1")], durable=True)
    header = path.read_bytes()[:100]  # as a killed program would leave it: the journal is not merged yet
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID
    assert int.from_bytes(header[60:64], "big") == 1
    await store.close()
    again = SqliteStore(path)
    assert await again.acquire("s") == 1
    await again.close()


@pytest.mark.parametrize("left", ["closed", "killed"])
async def test_a_file_of_the_first_program_stays_readable(tmp_path: Path, left: str) -> None:
    path = tmp_path / "chat.db"
    if left == "closed":
        db = sqlite3.connect(path, isolation_level=None)
        db.executescript(FIRST)
        db.close()
    else:  # then all it has written is in its journal
        script = "import os, sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2]); os._exit(0)"
        subprocess.run([sys.executable, "-c", script, str(path), FIRST], check=True, timeout=60)
        assert (tmp_path / "chat.db-wal").stat().st_size
    for length in (1, 2):
        store = SqliteStore(path)
        assert await store.acquire("s") == length
        assert (await store.read("s"))[0] == Record(1, "line 1")
        await store.append("s", [Record(length + 1, "more")], durable=True)
        await store.close()


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    path.touch()
    db = open_file(path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("SELECT count(*) FROM events").fetchone() == (0,)
    db.close()
