"""Owns the SQLite file of a store: how it is recognised, made and opened. Knows nothing of what the records mean.

The file of another program is never changed. Therefore it is inspected first, without a lock and without its journal,
before anything is done that writes: switching to WAL changes a file, and so does recovering it.
"""

import sqlite3
from pathlib import Path

from .store import StoreError

__all__ = ["BUSY_SECONDS", "VERSION", "connect", "open_file"]

APPLICATION_ID = 0x53616665  # "Safe", in the header of every file of ours, whatever its version
VERSION = 1
BUSY_SECONDS = 10.0  # how long to wait by default for the lock of another program
TABLES = {
    "events": """CREATE TABLE events (
        session TEXT NOT NULL, seq INTEGER NOT NULL, text TEXT NOT NULL, ends TEXT, PRIMARY KEY (session, seq)
    ) WITHOUT ROWID""",
    "one_end": "CREATE UNIQUE INDEX one_end ON events (session, ends) WHERE ends IS NOT NULL",
    "sessions": "CREATE TABLE sessions (session TEXT PRIMARY KEY, written INTEGER NOT NULL) WITHOUT ROWID",
    "newest": "CREATE INDEX newest ON sessions (written)",
}


def open_file(path: Path, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open the connection that writes, and make the file if there is none.

    Args:
        path: The file.
        busy_seconds: How long to wait for the lock of another program.

    Raises:
        StoreError: It is the file of another program, or of a newer version.
        sqlite3.Error: It cannot be opened.
    """
    _inspect(path)
    db = connect(path, busy_seconds)
    try:
        _make(db, path)
        db.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        db.close()
        raise
    return db


def connect(path: Path, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open one more connection. Raises: sqlite3.Error."""
    return sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)


def _inspect(path: Path) -> None:
    """Refuse a file that is not ours, without a change to it or a file beside it. Raises: StoreError; sqlite3.Error."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        _look(path, "mode=ro&immutable=1")
    except sqlite3.DatabaseError:
        # A process that was killed in a checkpoint has written the first page and not the last ones. Without its
        # journal the file looks damaged, and with it the file is whole. Reading both writes to neither of them.
        if not Path(f"{path}-wal").is_file():
            raise
        _look(path, "mode=ro")


def _look(path: Path, how: str) -> None:
    """Open the file in this way and check whose it is. Raises: StoreError; sqlite3.Error."""
    db = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        _is_ours(db, path)
    finally:
        db.close()


def _make(db: sqlite3.Connection, path: Path) -> None:
    # After a crash the newest state may be in the journal alone, where `_inspect` does not look: check again.
    if _is_ours(db, path):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _is_ours(db, path):
            for statement in TABLES.values():
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _is_ours(db: sqlite3.Connection, path: Path) -> bool:
    """Whether it is a file of ours; false if it is empty.

    Raises:
        StoreError: It is the file of another program, or of a newer version.
    """
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION_ID:
        if version != VERSION:
            raise StoreError(f"{path} is of version {version}; this program knows {VERSION}: use a newer program")
        return True
    found = {name: _plain(sql or "") for name, sql in db.execute("SELECT name, sql FROM sqlite_master")}
    if not (application or version or found):
        return False
    # The first release that wrote version 1 set no application id: such a file has exactly these tables.
    if not application and version == 1 and all(found.get(name) == _plain(sql) for name, sql in TABLES.items()):
        return True
    raise StoreError(f"{path} is a database of another program: give the sessions a file of their own")


def _plain(sql: str) -> str:
    return "".join(sql.split())
