"""Owns sessions in a SQLite file. Knows nothing of what the records mean.

One thread writes and another one reads, so that nothing blocks the event loop, and readers do not wait while the writer
waits for the lock of another program. Ends and stops are written with synchronous FULL, everything else with NORMAL: a
power cut may take the last chunks of a text, but never the end of a turn.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..abort.clock import check_seconds
from ..storage.database_thread import DatabaseThread
from ..storage.files import ENCODING, CheckpointError, CheckpointInUse
from ..storage.lease import FileLease
from ..storage.sqlite import BUSY_SECONDS, DatabaseSchema, connect, transaction
from .store import LogRecord, SessionInfo, SessionInUse, StoreError, number_taken

__all__ = ["SqliteStore"]

T = TypeVar("T")
SCHEMA = DatabaseSchema(
    application_id=0x53616665,  # "Safe"
    version=1,
    tables={
        "events": """CREATE TABLE events (
        session TEXT NOT NULL, seq INTEGER NOT NULL, text TEXT NOT NULL, ends TEXT, PRIMARY KEY (session, seq)
    ) WITHOUT ROWID""",
        "one_end": "CREATE UNIQUE INDEX one_end ON events (session, ends) WHERE ends IS NOT NULL",
        "sessions": "CREATE TABLE sessions (session TEXT PRIMARY KEY, written INTEGER NOT NULL) WITHOUT ROWID",
        "newest": "CREATE INDEX newest ON sessions (written)",
    },
    error=StoreError,
    advice="give the sessions a file of their own",
)
# `written` counts the batches of all sessions: the session with the highest number has the newest record.
TOUCH = """
INSERT INTO sessions VALUES (?, (SELECT coalesce(max(written), 0) + 1 FROM sessions))
ON CONFLICT (session) DO UPDATE SET written = excluded.written
"""
LAST = "SELECT coalesce(max(seq), 0) FROM events WHERE session = ?"
ENDED = "SELECT 1 FROM events WHERE session = ? AND ends = ?"
ALL = """
SELECT session, (SELECT coalesce(max(seq), 0) FROM events WHERE events.session = sessions.session)
FROM sessions ORDER BY written
"""


class SqliteStore:
    """Sessions in one file.

    One process at a time may have the file. A second one gets `SessionInUse`, which names the first one.

    Args:
        path: The file. It is made when it is first used.
        busy_seconds: How long to wait for the lock of another program that writes to the file, before StoreError.

    Attributes:
        path: The file.
    """

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = Path(path)
        self._busy_seconds = check_seconds("busy_seconds", busy_seconds)
        self._live: set[str] = set()
        real = self.path.resolve()  # one lease for one file, also where its path is a symbolic link
        self._lease = FileLease(real.name, real.parent, str(self.path))
        self._writer = DatabaseThread(f"store {self.path.name}")
        self._reader = DatabaseThread(f"reader of store {self.path.name}")
        self._db: sqlite3.Connection | None = None  # used in the writer's thread
        self._reader_db: sqlite3.Connection | None = None  # used in the reader's thread
        self._synchronous_full: bool | None = None  # how the connection is set; None if that is not known
        self._newest: str | None = None  # the session that was written last; None if that is not known
        self._closed = False

    async def acquire(self, session: str) -> int:
        """Take the session for this object's users.

        Raises:
            SessionInUse: It is live already, or another process has the file.
            StoreError: The file cannot be used.
        """
        if session in self._live:
            raise SessionInUse(f"session {session!r} is live already: use that one, or close it first")
        self._live.add(session)
        try:
            # Read in the writer's thread: the batches of an earlier owner may still be queued there.
            return await self._write(lambda: self._last_seq(session))
        except BaseException:
            self._live.discard(session)
            raise

    async def release(self, session: str) -> None:
        """Give it back."""
        self._live.discard(session)

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        """Write records in one transaction."""
        return await self._write(lambda: self._append(session, records, durable))

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        """Return the records after this seq."""
        return await self._read(lambda db: _records(db, session, after, limit))

    async def sessions(self) -> list[SessionInfo]:
        """Return all sessions, the one with the newest record last."""
        return await self._read(lambda db: [SessionInfo(*row) for row in db.execute(ALL)])

    async def close(self) -> None:
        """Write what is left, and release the file."""
        if self._closed:
            return
        self._closed = True
        if not self._writer.begun or self._writer.left_by_fork:
            return
        # If the caller is cancelled while it waits, the threads release the file all the same.
        self._reader.end()
        ended = self._writer.do(self._release_file)
        self._writer.end()
        await ended

    def _check(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.path} is closed")
        if parent := self._writer.left_by_fork:
            raise StoreError(
                f"the store {self.path} was opened in process {parent}, and this one is a fork of it: its threads"
                " and its lease belong to that process. Make a new store in each process, after the fork"
            )

    def _write(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        self._check()

        def opened() -> T:
            self._open()
            return call()

        return self._writer.do(lambda: self._translate_errors(opened))

    async def _read(self, call: Callable[[sqlite3.Connection], T]) -> T:
        self._check()
        if self._db is None:
            await self._write(lambda: None)  # the writer opens the file
            self._check()

        def connected() -> T:
            if self._reader_db is None:
                self._reader_db = connect(self.path, self._busy_seconds)
            return call(self._reader_db)

        return await self._reader.do(lambda: self._translate_errors(connected))

    def _translate_errors(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except sqlite3.Error as error:
            raise StoreError(
                f"the store {self.path} failed ({type(error).__name__}: {error}); the file was left as it is"
            ) from error

    def _open(self) -> None:
        if self._db is not None:
            return
        try:
            self._lease.take()
        except CheckpointInUse as error:
            raise SessionInUse(
                f"{self.path} is in use by {error.holder}: one process at a time may have it. Stop that one, or give"
                " this one another file"
            ) from error
        except CheckpointError as error:
            raise StoreError(f"the store {self.path} cannot be used: {error}") from error
        try:
            self._db, self._synchronous_full = SCHEMA.open(self.path, self._busy_seconds), None
        except BaseException:
            self._lease.release()
            raise

    @property
    def _file(self) -> sqlite3.Connection:
        assert self._db is not None  # every caller has opened the file
        return self._db

    def _append(self, session: str, records: Sequence[LogRecord], durable: bool) -> frozenset[str]:
        file, refused = self._file, frozenset[str]()
        if self._synchronous_full != durable:
            file.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._synchronous_full = durable
        with transaction(file):
            rows = [(session, record.seq, _storable(record.text), record.ends) for record in records]
            written = file.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)", rows).rowcount
            if written != len(rows):  # a number or an end was taken, by the same record or by another one
                refused = self._refused(session, records)
            # The session that was written last has the highest number already, because no other process has the file.
            if rows and session != self._newest:
                file.execute(TOUCH, (session,))
        if rows:
            self._newest = session  # only now, after the commit
        return refused

    def _refused(self, session: str, records: Sequence[LogRecord]) -> frozenset[str]:
        """Return the turns that have another end already.

        Raises:
            StoreError: The number of a record is taken by another one.
        """
        refused = set[str]()
        for record in records:
            if _records(self._file, session, record.seq - 1, 1)[:1] == [record]:
                continue
            if record.ends is None or not self._file.execute(ENDED, (session, record.ends)).fetchone():
                raise number_taken(session, record.seq)
            refused.add(record.ends)
        return frozenset(refused)

    def _last_seq(self, session: str) -> int:
        return int(self._file.execute(LAST, (session,)).fetchone()[0])

    def _release_file(self) -> None:
        self._reader.join()
        for db in (self._reader_db, self._db):
            if db is not None:
                db.close()
        self._db = self._reader_db = None
        self._lease.release()


def _records(db: sqlite3.Connection, session: str, after: int, limit: int) -> list[LogRecord]:
    query = "SELECT seq, text, ends FROM events WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
    rows = db.execute(query, (session, after, limit)).fetchall()
    new = tuple.__new__  # faster than `LogRecord._make`, which counts the columns of every row again
    return [new(LogRecord, row) if type(row[1]) is str else _read_back(row) for row in rows]


def _storable(text: str) -> str | bytes:
    """Encode what SQLite's text cannot hold: a model may write half of a surrogate pair, which must be saved too."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(*ENCODING)
    return text


def _read_back(row: tuple[int, bytes, str | None]) -> LogRecord:
    return LogRecord(row[0], row[1].decode(*ENCODING), row[2])
