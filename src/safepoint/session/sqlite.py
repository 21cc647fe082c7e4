"""Owns sessions in a SQLite file: one thread does all the work, so nothing waits for a lock or blocks the loop.

Knows nothing of what the records mean. Ends and stops are written with synchronous FULL, everything else with NORMAL:
a power cut may take the last chunks of a text, never the end of a turn.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from ..run.checkpoints_files import ENCODING, CheckpointError, CheckpointInUse, FileLease
from .store import Record, SessionInfo, SessionInUse, StoreError

__all__ = ["SqliteStore"]

T = TypeVar("T")
VERSION = 1
BUSY_SECONDS = 10.0
# A call for the thread, and how its result gets back to whoever waits for it.
Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE events (
    session TEXT NOT NULL, seq INTEGER NOT NULL, text TEXT NOT NULL, ends TEXT, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_end ON events (session, ends) WHERE ends IS NOT NULL;
CREATE TABLE sessions (session TEXT PRIMARY KEY, written INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX newest ON sessions (written);
PRAGMA user_version = %d;
COMMIT;
"""
# `written` counts the batches of all sessions: the session with the greatest number has the newest record.
TOUCH = """
INSERT INTO sessions VALUES (?, (SELECT coalesce(max(written), 0) + 1 FROM sessions))
ON CONFLICT (session) DO UPDATE SET written = excluded.written
"""
LAST = "SELECT coalesce(max(seq), 0) FROM events WHERE session = ?"
ALL = """
SELECT session, (SELECT coalesce(max(seq), 0) FROM events WHERE events.session = sessions.session)
FROM sessions ORDER BY written
"""


class SqliteStore:
    """Sessions in one file. One process at a time may have it: a second one is told so, by whom and since when."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
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
        self._closed = True
        if self._thread is not None:
            # Whoever is told to go meanwhile goes: the thread lets go of the file all the same.
            ended = self._post(self._let_go)
            self._calls.put(None)
            await ended

    async def _do(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError(f"the store {self.path} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"store {self.path.name}", daemon=True)
            self._thread.start()

        def opened() -> T:
            self._open()
            return call()

        return await self._post(opened)

    def _post(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """What is begun is done, whatever becomes of whoever waits."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._calls.put((call, loop, done))
        return done

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            call, loop, done = item
            result: Any = None
            failure: BaseException | None = None
            try:
                result = call()
            except sqlite3.Error as error:
                failure = StoreError(
                    f"the store {self.path} failed ({type(error).__name__}: {error}); the file was left as it is"
                )
                failure.__cause__ = error
            except BaseException as error:
                failure = error
            try:
                loop.call_soon_threadsafe(_tell, done, result, failure)
            except RuntimeError:
                pass  # that loop is closed: nobody is left who waits

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
            db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
        except BaseException:
            self._lease.release()
            raise
        self._db, self._full = db, None

    def _prepare(self, db: sqlite3.Connection) -> None:
        """A file that is not ours, or of a newer program, is not touched."""
        found = db.execute("PRAGMA user_version").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if found not in (0, VERSION):
            raise StoreError(f"{self.path} is of version {found}; this program knows {VERSION}: use a newer program")
        if found == 0 and tables:
            raise StoreError(f"{self.path} is a database of another program: give the sessions a file of their own")
        db.execute("PRAGMA journal_mode = WAL")
        if found == 0:
            db.executescript(SCHEMA % VERSION)

    @property
    def _file(self) -> sqlite3.Connection:
        assert self._db is not None  # for the type checker: whoever calls has opened it
        return self._db

    def _append(self, session: str, records: Sequence[Record], durable: bool) -> frozenset[str]:
        file, refused = self._file, set[str]()
        if self._full != durable:
            file.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._full = durable
        file.execute("BEGIN IMMEDIATE")
        try:
            rows = [(session, record.seq, _written(record.text), record.ends) for record in records]
            written = file.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)", rows).rowcount
            if written != len(rows):  # some were there already: an end that is not the same was refused
                refused |= {one.ends for one in records if one.ends is not None and not self._is_there(session, one)}
            if rows:
                file.execute(TOUCH, (session,))
            file.execute("COMMIT")
        except BaseException:
            if file.in_transaction:
                file.execute("ROLLBACK")
            raise
        return frozenset(refused)

    def _is_there(self, session: str, record: Record) -> bool:
        query = "SELECT 1 FROM events WHERE session = ? AND seq = ? AND ends = ?"
        return self._file.execute(query, (session, record.seq, record.ends)).fetchone() is not None

    def _read(self, session: str, after: int, limit: int) -> list[Record]:
        query = "SELECT seq, text, ends FROM events WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
        rows = self._file.execute(query, (session, after, limit)).fetchall()
        new = tuple.__new__  # as `Record._make` does it, which counts the columns of every row once more
        return [new(Record, row) if type(row[1]) is str else _read_back(row) for row in rows]

    def _last_seq(self, session: str) -> int:
        return int(self._file.execute(LAST, (session,)).fetchone()[0])

    def _sessions(self) -> list[SessionInfo]:
        return [SessionInfo(*row) for row in self._file.execute(ALL)]

    def _let_go(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._lease.release()


def _written(text: str) -> str | bytes:
    """Whatever a model has said can be saved: also half of a surrogate pair, which SQLite's text cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(*ENCODING)
    return text


def _read_back(row: tuple[int, bytes, str | None]) -> Record:
    return Record(row[0], row[1].decode(*ENCODING), row[2])


def _tell(done: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(result)
    else:
        done.set_exception(failure)
