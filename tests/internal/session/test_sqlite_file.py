"""Owns the tests that look inside, beside those of `tests/session/test_sqlite_file.py`.

The file of a SQLite store: whose it is, and that nothing but ours is ever changed.
"""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from safepoint.session import SqliteStore
from safepoint.session.sqlite import SCHEMA
from safepoint.session.store import LogRecord
from tests.session.test_sqlite_file import FIRST


async def test_a_new_file_says_whose_it_is_also_without_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    store = SqliteStore(path)
    await store.append("s", [LogRecord(1, "line 1")], durable=True)
    header = path.read_bytes()[:100]  # as a killed program would leave it: the journal is not merged yet
    assert int.from_bytes(header[68:72], "big") == SCHEMA.application_id
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
        assert (await store.read("s"))[0] == LogRecord(1, "line 1")
        await store.append("s", [LogRecord(length + 1, "more")], durable=True)
        await store.close()


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    path.touch()
    db = SCHEMA.open(path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("SELECT count(*) FROM events").fetchone() == (0,)
    db.close()
