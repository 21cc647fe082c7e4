"""How SQLite files are opened, recognised and changed. What is in their tables is known to the stores alone.

The file of another program is never changed. Therefore it is inspected first, without a lock and without its journal,
before anything is done that writes: switching to WAL changes a file, and so does recovering it.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BUSY_SECONDS", "DatabaseSchema", "connect", "is_busy", "is_damaged", "transaction"]

BUSY_SECONDS = 10.0  # how long to wait by default for the lock of another program
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def connect(path: Path, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open a connection that any thread may use, without implicit transactions. Raises: sqlite3.Error."""
    return sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Run the block in a transaction, which is committed at its end and rolled back if it fails."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process keeps the database locked."""
    return _code(error) in _BUSY


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether the file is damaged, or no database at all."""
    return _code(error) in _DAMAGED


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@dataclass(frozen=True, slots=True)
class DatabaseSchema:
    """The files of one kind of store.

    Attributes:
        application_id: The number in the header of every such file, whatever its version.
        version: The version that this program knows.
        tables: The statement that makes each table and index.
        error: The error for a file that cannot be used.
        advice: What to do when the file is that of another program.
    """

    application_id: int
    version: int
    tables: Mapping[str, str]
    error: type[Exception]
    advice: str

    def open(self, path: Path, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
        """Open the connection that writes, and make the file if there is none.

        Args:
            path: The file.
            busy_seconds: How long to wait for the lock of another program.

        Raises:
            Exception: `error`: It is the file of another program, or of a newer version.
            sqlite3.Error: It cannot be opened.
        """
        self._inspect(path)
        db = connect(path, busy_seconds)
        try:
            self._make(db, path)
            db.execute("PRAGMA journal_mode = WAL")
        except BaseException:
            db.close()
            raise
        return db

    def _inspect(self, path: Path) -> None:
        """Refuse a file that is not ours, without a change to it or a file beside it."""
        if not path.is_file() or not path.stat().st_size:
            return
        try:
            self._look(path, "mode=ro&immutable=1")
        except sqlite3.DatabaseError:
            # A process that was killed in a checkpoint has written the first page and not the last ones. Without its
            # journal the file looks damaged, and with it the file is whole. Reading both writes to neither of them.
            if not Path(f"{path}-wal").is_file():
                raise
            self._look(path, "mode=ro")

    def _look(self, path: Path, how: str) -> None:
        """Open the file in this way and check whose it is."""
        db = sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True, isolation_level=None, timeout=BUSY_SECONDS)
        try:
            self._is_ours(db, path)
        finally:
            db.close()

    def _make(self, db: sqlite3.Connection, path: Path) -> None:
        # After a crash the newest state may be in the journal alone, where `_inspect` does not look: check again.
        if self._is_ours(db, path):
            return
        with transaction(db):
            if not self._is_ours(db, path):
                for statement in self.tables.values():
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {self.application_id}")
                db.execute(f"PRAGMA user_version = {self.version}")

    def _is_ours(self, db: sqlite3.Connection, path: Path) -> bool:
        """Whether it is a file of ours; false if it is empty. Raises `error` if it is something else."""
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if application == self.application_id:
            if version != self.version:
                raise self.error(
                    f"{path} is of version {version}; this program knows {self.version}: use a newer program"
                )
            return True
        found = {name: _plain(sql or "") for name, sql in db.execute("SELECT name, sql FROM sqlite_master")}
        if not (application or version or found):
            return False
        # The first release that wrote version 1 set no application id: such a file has exactly these tables.
        ours = {name: _plain(sql) for name, sql in self.tables.items()}
        if not application and version == 1 and ours.items() <= found.items():
            return True
        raise self.error(f"{path} is a database of another program: {self.advice}")


def _plain(sql: str) -> str:
    return "".join(sql.split())
