"""Owns the store of checkpoints in an SQLite database. Knows nothing of what the text means.

Each call has a connection of its own, in the thread that serves the call. That costs a few milliseconds, and saving is
rare; for it there is nothing to close, to share between threads, or to carry through a fork.
"""

import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeAlias, TypeVar

from ..abort.threads import start_in_thread
from ..errors import UsageError
from .checkpoints import check_text, nothing_there
from .checkpoints_files import (
    ENCODING,
    CheckpointError,
    FileLease,
    check_key,
    date,
    failed,
    finish,
    make_folder,
    unreadable,
)

__all__ = ["SqliteCheckpoints"]

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], T]

SCHEMA = 1
# The version has a table of its own, because the file's `user_version` may be somebody else's.
TABLES = (
    "CREATE TABLE IF NOT EXISTS safepoint_checkpoints"
    " (key TEXT PRIMARY KEY, text BLOB NOT NULL, saved_at TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS safepoint_checkpoints_aside"
    " (id INTEGER PRIMARY KEY, key TEXT NOT NULL, text BLOB NOT NULL, why TEXT NOT NULL, set_aside_at TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS safepoint_checkpoints_schema"
    " (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
    f"INSERT OR IGNORE INTO safepoint_checkpoints_schema VALUES (1, {SCHEMA})",
)

# Who finds the database locked tries again for this long. Each attempt is short: between two of them he can be stopped.
BUSY_SECONDS = 30.0
ATTEMPT_SECONDS = 0.2
PAUSE_SECONDS = 0.01
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteCheckpoints:
    """Checkpoints in tables of an SQLite database, which may have others too. It is made when the first is saved."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if str(path) in ("", ":memory:"):
            raise UsageError(f"SqliteCheckpoints needs a file, not {str(path)!r}: in memory use MemoryCheckpoints()")
        self._path = Path(path).absolute()  # the working directory may change

    def __repr__(self) -> str:
        return f"SqliteCheckpoints({str(self._path)!r})"

    async def save(self, key: str, text: str) -> None:
        """Keep the text: one transaction."""
        check_key(key)
        check_text(key, text)

        def job(db: sqlite3.Connection) -> None:
            row = (key, text.encode(*ENCODING), date())
            db.execute("INSERT OR REPLACE INTO safepoint_checkpoints VALUES (?, ?, ?)", row)

        await self._change(f"save checkpoint {key!r}", job, creates=True)

    async def load(self, key: str) -> str | None:
        """The text, or None."""
        check_key(key)

        def job(db: sqlite3.Connection) -> str | None:
            row = db.execute("SELECT CAST(text AS BLOB) FROM safepoint_checkpoints WHERE key = ?", (key,)).fetchone()
            try:
                return None if row is None else str(row[0], *ENCODING)
            except UnicodeDecodeError as error:
                raise unreadable(f"What {self._path} has under the key {key!r}", error) from error

        left = threading.Event()
        try:
            return await start_in_thread(self._run, f"load checkpoint {key!r}", job, left, "BEGIN", False)
        finally:
            left.set()

    async def delete(self, key: str) -> bool:
        """Forget it. False: there was none."""
        check_key(key)

        def job(db: sqlite3.Connection) -> bool:
            return db.execute("DELETE FROM safepoint_checkpoints WHERE key = ?", (key,)).rowcount > 0

        return bool(await self._change(f"delete checkpoint {key!r}", job))

    async def set_aside(self, key: str, why: str) -> str:
        """Move it to the table `safepoint_checkpoints_aside`, with the reason."""
        check_key(key)

        def job(db: sqlite3.Connection) -> int | None:
            moved = db.execute(
                "INSERT INTO safepoint_checkpoints_aside (key, text, why, set_aside_at)"
                " SELECT key, text, ?, ? FROM safepoint_checkpoints WHERE key = ?",
                (why, date(), key),
            )
            db.execute("DELETE FROM safepoint_checkpoints WHERE key = ?", (key,))
            return moved.lastrowid if moved.rowcount else None

        row = await self._change(f"set checkpoint {key!r} aside", job)
        if row is None:
            raise nothing_there(key, str(self._path))
        return f"row {row} of the table safepoint_checkpoints_aside in {self._path}"

    @asynccontextmanager
    async def lease(self, key: str) -> AsyncIterator[None]:
        """Exclusive use of the key among all processes on this machine: a lock on a file next to the database.

        A row would need a heartbeat, and a guess at when a silent holder is dead; the kernel knows.
        """
        check_key(key)
        real = await start_in_thread(self._path.resolve)  # one database, one lease, whatever its names
        lease = FileLease(key, real.with_name(f"{real.name}-leases"), str(self._path))
        try:
            await finish(lease.take)
            yield
        finally:
            await finish(lease.release)

    async def _change(self, doing: str, job: Job[T], *, creates: bool = False) -> T | None:
        left = threading.Event()
        return await finish(self._run, doing, job, left, "BEGIN IMMEDIATE", creates, on_leave=left.set)

    def _run(self, doing: str, job: Job[T], left: threading.Event, begin: str, creates: bool) -> T | None:
        """Do the job, as soon as nobody else keeps the database locked."""
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return self._attempt(job, begin, creates)
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in BUSY:
                    raise self._explained(doing, code, error) from error
                if time.monotonic() >= until or left.wait(PAUSE_SECONDS):
                    raise CheckpointError(
                        f"Could not {doing} in {self._path}: another process keeps the database locked. Nothing was"
                        " changed. Try again when it is done, or find out why it takes so long."
                    ) from error
            except OSError as error:
                raise failed(f"{doing} in {self._path}", error) from error

    def _attempt(self, job: Job[T], begin: str, creates: bool) -> T | None:
        """One transaction: all of it or nothing. None, if there is no such database and it is not to be made."""
        if creates:
            make_folder(self._path.parent)
        elif not self._path.exists():
            return None
        with closing(sqlite3.connect(self._path, timeout=ATTEMPT_SECONDS, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = FULL")  # a commit returns when it is on disk
            version = _version(db)
            if version is None and not creates:
                return None
            if version not in (None, SCHEMA):
                raise CheckpointError(
                    f"The checkpoints in {self._path} have the schema {version}, and this Safepoint knows {SCHEMA}."
                    " Nothing was changed. Use the Safepoint that wrote them, or another file."
                )
            if version is None:
                db.execute("PRAGMA journal_mode = WAL")  # the file remembers it
            with db:  # commits, or rolls back
                db.execute(begin)
                if version is None:
                    for statement in TABLES:
                        db.execute(statement)
                return job(db)

    def _explained(self, doing: str, code: int, error: sqlite3.Error) -> CheckpointError:
        if code in DAMAGED:
            return CheckpointError(
                f"Could not {doing}: {self._path} is damaged, or no SQLite database ({error}). It was left as it is."
                " Move it away to begin with an empty one; `sqlite3 FILE .recover` shows what is left in it."
            )
        return failed(f"{doing} in {self._path}", error, left="Nothing was changed.")


def _version(db: sqlite3.Connection) -> int | None:
    """The schema of our tables; None: there are none."""
    table = "safepoint_checkpoints_schema"
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone() is None:
        return None
    row = db.execute(f"SELECT version FROM {table}").fetchone()
    return int(row[0]) if row else 0
