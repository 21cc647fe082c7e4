"""The file of a SQLite store: whose it is, and that nothing but ours is ever changed."""

import os
import sqlite3
from pathlib import Path

import pytest

from safepoint.session import SessionInUse, SqliteStore, StoreError

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


async def test_a_symbolic_link_to_the_file_does_not_give_it_to_a_second_owner(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.db").symlink_to(tmp_path / "s.db")
    store, second = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "elsewhere" / "link.db")
    await store.acquire("s")
    with pytest.raises(SessionInUse):
        await second.acquire("s")
    await store.close()
    assert await second.acquire("s") == 0
    await second.close()
