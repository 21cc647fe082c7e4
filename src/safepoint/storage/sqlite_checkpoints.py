"""The store of checkpoints in an SQLite database.

Each call opens a connection of its own, in the thread that runs the call. That costs a few milliseconds, but saving is
rare, and so there is nothing to close, to share between threads, or to keep valid after a fork.
"""

import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeAlias, TypeVar

from ..abort.clock import check_seconds
from ..abort.threads import start_in_thread
from ..errors import UsageError
from .checkpoints import check_text, missing_error
from .files import (
    ENCODING,
    CheckpointError,
    check_key,
    disk_error,
    make_folder,
    run_to_end,
    timestamp,
    unreadable_error,
)
from .lease import FileLease
from .sqlite import connect, is_busy, is_damaged, transaction

__all__ = ["SqliteCheckpoints"]

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], T]

SCHEMA = 1
# The version of the schema has a table of its own, because `user_version` of the file may belong to the application.
TABLES = (
    "CREATE TABLE IF NOT EXISTS safepoint_checkpoints"
    " (key TEXT PRIMARY KEY, text BLOB NOT NULL, saved_at TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS safepoint_checkpoints_aside"
    " (id INTEGER PRIMARY KEY, key TEXT NOT NULL, text BLOB NOT NULL, why TEXT NOT NULL, set_aside_at TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS safepoint_checkpoints_schema"
    " (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
    f"INSERT OR IGNORE INTO safepoint_checkpoints_schema VALUES (1, {SCHEMA})",
)

# How long a locked database is tried again by default. Each attempt is short, because the caller can be stopped only in
# between.
BUSY_SECONDS = 30.0
ATTEMPT_SECONDS = 0.2
PAUSE_SECONDS = 0.01


class SqliteCheckpoints:
    """Checkpoints in tables of an SQLite database, which may have other tables. It is created by the first save.

    Args:
        path: The file of the database.
        busy_seconds: How long to wait for another process that keeps the database locked, before CheckpointError.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_seconds: float = BUSY_SECONDS) -> None:
        if str(path) in ("", ":memory:"):
            raise UsageError(f"SqliteCheckpoints needs a file, not {str(path)!r}: in memory use MemoryCheckpoints()")
        self._busy_seconds = check_seconds("busy_seconds", busy_seconds)
        self._path = Path(path).absolute()  # the working directory may change

    def __repr__(self) -> str:
        return f"SqliteCheckpoints({str(self._path)!r})"

    async def save(self, key: str, text: str) -> None:
        """Store the text, in one transaction."""
        check_key(key)
        check_text(key, text)

        def job(db: sqlite3.Connection) -> None:
            row = (key, text.encode(*ENCODING), timestamp())
            db.execute("INSERT OR REPLACE INTO safepoint_checkpoints VALUES (?, ?, ?)", row)

        await self._change(f"save checkpoint {key!r}", job, creates=True)

    async def load(self, key: str) -> str | None:
        """Return the text, or None."""
        check_key(key)

        def job(db: sqlite3.Connection) -> str | None:
            row = db.execute("SELECT CAST(text AS BLOB) FROM safepoint_checkpoints WHERE key = ?", (key,)).fetchone()
            try:
                return None if row is None else str(row[0], *ENCODING)
            except UnicodeDecodeError as error:
                raise unreadable_error(f"What {self._path} has under the key {key!r}", error) from error

        interrupted = threading.Event()
        try:
            return await start_in_thread(self._run, f"load checkpoint {key!r}", job, interrupted, "BEGIN", False)
        finally:
            interrupted.set()

    async def delete(self, key: str) -> bool:
        """Delete the checkpoint. False if there was none."""
        check_key(key)

        def job(db: sqlite3.Connection) -> bool:
            return db.execute("DELETE FROM safepoint_checkpoints WHERE key = ?", (key,)).rowcount > 0

        return bool(await self._change(f"delete checkpoint {key!r}", job))

    async def set_aside(self, key: str, why: str) -> str:
        """Move the checkpoint to the table `safepoint_checkpoints_aside`, with the reason."""
        check_key(key)

        def job(db: sqlite3.Connection) -> int | None:
            moved = db.execute(
                "INSERT INTO safepoint_checkpoints_aside (key, text, why, set_aside_at)"
                " SELECT key, text, ?, ? FROM safepoint_checkpoints WHERE key = ?",
                (why, timestamp(), key),
            )
            db.execute("DELETE FROM safepoint_checkpoints WHERE key = ?", (key,))
            return moved.lastrowid if moved.rowcount else None

        row = await self._change(f"set checkpoint {key!r} aside", job)
        if row is None:
            raise missing_error(key, str(self._path))
        return f"row {row} of the table safepoint_checkpoints_aside in {self._path}"

    @asynccontextmanager
    async def lease(self, key: str) -> AsyncIterator[None]:
        """Lease the key among all processes on this machine, by a lock on a file next to the database.

        A row in the database would need a heartbeat, and a guess when a silent owner is dead. The kernel knows that.
        """
        check_key(key)
        real = await start_in_thread(self._path.resolve)  # one database, one lease, whatever its names
        lease = FileLease(key, real.with_name(f"{real.name}-leases"), str(self._path))
        try:
            await run_to_end(lease.take)
            yield
        finally:
            await run_to_end(lease.release)

    async def _change(self, doing: str, job: Job[T], *, creates: bool = False) -> T | None:
        interrupted = threading.Event()
        return await run_to_end(
            self._run, doing, job, interrupted, "BEGIN IMMEDIATE", creates, on_interrupt=interrupted.set
        )

    def _run(self, doing: str, job: Job[T], interrupted: threading.Event, begin: str, creates: bool) -> T | None:
        """Run the job as soon as the database is not locked by another process."""
        until = time.monotonic() + self._busy_seconds
        while True:
            try:
                return self._attempt(job, begin, creates)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise self._explain(doing, error) from error
                if time.monotonic() >= until or interrupted.wait(PAUSE_SECONDS):
                    raise CheckpointError(
                        f"Could not {doing} in {self._path}: another process keeps the database locked. Nothing was"
                        " changed. Try again when it is done, or find out why it takes so long."
                    ) from error
            except OSError as error:
                raise disk_error(f"{doing} in {self._path}", error) from error

    def _attempt(self, job: Job[T], begin: str, creates: bool) -> T | None:
        """Run the job in one transaction. None if the database does not exist and is not to be created."""
        if creates:
            make_folder(self._path.parent)
        elif not self._path.exists():
            return None
        with closing(connect(self._path, ATTEMPT_SECONDS)) as db:
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
            with transaction(db, begin):
                if version is None:
                    for statement in TABLES:
                        db.execute(statement)
                return job(db)

    def _explain(self, doing: str, error: sqlite3.Error) -> CheckpointError:
        if is_damaged(error):
            return CheckpointError(
                f"Could not {doing}: {self._path} is damaged, or no SQLite database ({error}). It was left as it is."
                " Move it away to begin with an empty one; `sqlite3 FILE .recover` shows what can be read of it."
            )
        return disk_error(f"{doing} in {self._path}", error, state="Nothing was changed.")


def _version(db: sqlite3.Connection) -> int | None:
    """Return the version of our tables; None if there are none."""
    table = "safepoint_checkpoints_schema"
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone() is None:
        return None
    row = db.execute(f"SELECT version FROM {table}").fetchone()
    return int(row[0]) if row else 0
