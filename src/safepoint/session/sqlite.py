"""Owns sessions in a SQLite file: one thread does all the work, so nothing waits for a lock or blocks the loop.

Knows nothing of what the records mean. Ends and stops are written with synchronous FULL, everything else with NORMAL:
a power cut may take the last chunks of a text, never the end of a turn.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from ..run.checkpoints_files import CheckpointInUse, FileLease
from .store import Record, SessionInfo, SessionInUse, StoreError

__all__ = ["SqliteStore"]

T = TypeVar("T")
VERSION = 1
BUSY_SECONDS = 10.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    session TEXT NOT NULL, seq INTEGER NOT NULL, text TEXT NOT NULL, ends TEXT, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_end ON events (session, ends) WHERE ends IS NOT NULL;
"""


class SqliteStore:
    """Sessions in one file. One process at a time may have it: a second one is told so, by whom and since when."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._live: set[str] = set()
        self._lease = FileLease(self.path.name, self.path.resolve().parent, str(self.path))
        self._db: sqlite3.Connection | None = None
        self._full: bool | None = None
        self._closed = False

    async def acquire(self, session: str) -> int:
        """Take the session. Raises: SessionInUse for a second taker; StoreError."""
        if session in self._live:
            raise SessionInUse(f"session {session!r} is live already: use that one, or close it first")
        self._live.add(session)
        try:
            return await self._do(lambda: self._last_seq(session))
        except BaseException:
            self._live.discard(session)
            raise

    async def release(self, session: str) -> None:
        """Give it back."""
        self._live.discard(session)

    async def append(self, session: str, records: Sequence[Record], *, durable: bool) -> frozenset[str]:
        """Write the records in one transaction."""
        return await self._do(lambda: self._append(session, records, durable))

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[Record]:
        """The records after this seq."""
        return await self._do(lambda: self._read(session, after, limit))

    async def sessions(self) -> list[SessionInfo]:
        """All sessions, the one with the newest record last."""
        return await self._do(self._sessions)

    async def close(self) -> None:
        """Write what is left, and give the file to others."""
        if self._closed:
            return
        await self._do(self._let_go)
        self._closed = True
        self._calls.put(None)

    async def _do(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError(f"the store {self.path} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"store {self.path.name}", daemon=True)
            self._thread.start()
        done: Future[T] = Future()
        self._calls.put((call, done))
        # The shield: what is begun is done, whatever becomes of whoever waits.
        return await asyncio.shield(asyncio.wrap_future(done))

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            call, done = item
            try:
                self._open()
                result = call()
            except sqlite3.Error as error:
                done.set_exception(self._failed(error))
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

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
        self._db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, VERSION):
            self._db.close()
            self._db = None
            raise StoreError(f"{self.path} is of version {found}; this program knows {VERSION}: use a newer program")
        self._db.executescript(SCHEMA)
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _failed(self, error: sqlite3.Error) -> StoreError:
        return StoreError(f"the store {self.path} failed ({type(error).__name__}: {error}); the file was left as it is")

    @property
    def _file(self) -> sqlite3.Connection:
        assert self._db is not None  # for the type checker: _serve has opened it
        return self._db

    def _append(self, session: str, records: Sequence[Record], durable: bool) -> frozenset[str]:
        file, refused = self._file, set()
        if self._full != durable:
            file.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._full = durable
        file.execute("BEGIN IMMEDIATE")
        try:
            for record in records:
                row = (session, record.seq, record.text, record.ends)
                written = file.execute("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)", row).rowcount
                if not written and record.ends is not None and not self._is_there(session, record):
                    refused.add(record.ends)
            file.execute("COMMIT")
        except BaseException:
            file.execute("ROLLBACK")
            raise
        return frozenset(refused)

    def _is_there(self, session: str, record: Record) -> bool:
        query = "SELECT 1 FROM events WHERE session = ? AND seq = ? AND ends = ?"
        return self._file.execute(query, (session, record.seq, record.ends)).fetchone() is not None

    def _read(self, session: str, after: int, limit: int) -> list[Record]:
        query = "SELECT seq, text, ends FROM events WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
        return [Record(*row) for row in self._file.execute(query, (session, after, limit))]

    def _last_seq(self, session: str) -> int:
        query = "SELECT coalesce(max(seq), 0) FROM events WHERE session = ?"
        return int(self._file.execute(query, (session,)).fetchone()[0])

    def _sessions(self) -> list[SessionInfo]:
        query = "SELECT session, max(seq) FROM events GROUP BY session ORDER BY session"
        return [SessionInfo(*row) for row in self._file.execute(query)]

    def _let_go(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._lease.release()
