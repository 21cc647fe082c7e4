"""Owns the protocol of a store, and the store in memory. Knows nothing of what the records mean.

The log of a session is append-only text under (session, seq). The end of a turn is written once: the first one counts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import SafepointError, require_method

__all__ = [
    "LogRecord",
    "MemoryStore",
    "SessionInUse",
    "SessionInfo",
    "Store",
    "StoreError",
    "check_store",
    "number_taken",
]


class StoreError(SafepointError):
    """A store could not be read or written. The message says which, what happened, and what to do."""


class SessionInUse(StoreError):
    """The session is live elsewhere: one process at a time may have it."""


class LogRecord(NamedTuple):
    """One record in the log of a session.

    Attributes:
        seq: Its number in the log.
        text: The event as JSON.
        ends: The turn whose end it is, if it is one. A store accepts one end per turn.
    """

    seq: int
    text: str
    ends: str | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session in a list of sessions.

    Attributes:
        id: The id of the session.
        last_seq: The number of its newest record.
    """

    id: str
    last_seq: int


def number_taken(session: str, seq: int) -> StoreError:
    """Make the error for a record whose number another record has: it must not be dropped silently."""
    return StoreError(
        f"record {seq} of session {session!r} is in the store already, with other content: two owners write to this"
        " session. Nothing of the batch was written; close the session, and open it again"
    )


class Store(Protocol):
    """Where sessions are kept. Every method may raise StoreError."""

    async def acquire(self, session: str) -> int:
        """Take the session for this process.

        Returns:
            The last seq of its log; 0 if there is no such session yet.

        Raises:
            SessionInUse: The session is live already.
        """
        ...

    async def release(self, session: str) -> None:
        """Give it back."""
        ...

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        """Write records. Writing the same record again changes nothing.

        Args:
            session: The session.
            records: The records, in order.
            durable: Whether they must survive a power cut when this returns.

        Returns:
            The turns that have another end in the store already. That end counts, and the new one was not written.

        Raises:
            StoreError: A number is taken by another record (`number_taken`). Nothing was written.
        """
        ...

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        """Return the records after this seq, in order, at most `limit`."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """Return all sessions, the one with the newest record last."""
        ...

    async def close(self) -> None:
        """Write what is left to write, and release everything."""
        ...


class MemoryStore:
    """Sessions that live as long as this object."""

    def __init__(self) -> None:
        self._logs: dict[str, list[LogRecord]] = {}
        self._ends: dict[str, dict[str, int]] = {}  # session → turn → seq of its end
        self._live: set[str] = set()

    async def acquire(self, session: str) -> int:
        """Take the session for this object's users."""
        if session in self._live:
            raise SessionInUse(f"session {session!r} is live already in this store: use that one, or close it first")
        self._live.add(session)
        log = self._logs.get(session)
        return log[-1].seq if log else 0

    async def release(self, session: str) -> None:
        """Give it back."""
        self._live.discard(session)

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        """Keep the records."""
        if not records:
            return frozenset()
        log, ends = self._logs.get(session, []), self._ends.get(session, {})
        new: dict[int, LogRecord] = {}
        new_ends: dict[str, int] = {}
        present = []  # records whose number is taken, or whose turn has an end: the same record again, or a conflict
        for record in records:
            ended = record.ends is not None and (record.ends in ends or record.ends in new_ends)
            if ended or record.seq in new or _at(log, record.seq) is not None:
                present.append(record)
                continue
            new[record.seq] = record
            if record.ends is not None:
                new_ends[record.ends] = record.seq
        refused = set[str]()
        for record in present:
            stored = new.get(record.seq) or _at(log, record.seq)
            if stored == record:
                continue
            if record.ends is None or not (record.ends in ends or record.ends in new_ends):
                raise number_taken(session, record.seq)
            refused.add(record.ends)
        self._logs.pop(session, None)
        self._logs[session] = log  # removed and added again: the newest session is the last one
        self._ends.setdefault(session, ends).update(new_ends)
        for record in new.values():
            log.insert(_index(log, record.seq), record)
        return frozenset(refused)

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        """Return the records after this seq."""
        log = self._logs.get(session, [])
        start = bisect_right(log, after, key=_seq)
        return log[start : start + limit]

    async def sessions(self) -> list[SessionInfo]:
        """Return all sessions."""
        return [SessionInfo(name, log[-1].seq) for name, log in self._logs.items() if log]

    async def close(self) -> None:
        """Nothing to do."""


def _seq(record: LogRecord) -> int:
    return record.seq


def _index(log: list[LogRecord], seq: int) -> int:
    return len(log) if not log or seq > log[-1].seq else bisect_left(log, seq, key=_seq)


def _at(log: list[LogRecord], seq: int) -> LogRecord | None:
    index = _index(log, seq)
    return log[index] if index < len(log) and log[index].seq == seq else None


def check_store(store: Store | None) -> Store:
    """Return the store, or a new one in memory for `None`.

    Raises:
        UsageError: It is not a store.
    """
    if store is None:
        return MemoryStore()
    require_method(store, "append", 'store must be a store such as SqliteStore("chat.db")')
    return store
