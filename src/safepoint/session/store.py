"""Owns what a session needs of a store, and the store in memory. Knows nothing of what the records mean.

A session's log is append-only text under (session, seq). The end of a turn is written once: the first one counts.
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
    """A store could not be read or written: the message says which, what happened, and what to do."""


class SessionInUse(StoreError):
    """The session is live elsewhere. One process at a time may have it."""


class LogRecord(NamedTuple):
    """One line of a session's log. `ends`: it is the end of this turn, of which there can be only one."""

    seq: int
    text: str
    ends: str | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a list of sessions shows."""

    id: str
    last_seq: int


def number_taken(session: str, seq: int) -> StoreError:
    """What a store says to a record whose number has another record: it must not be dropped without a word."""
    return StoreError(
        f"record {seq} of session {session!r} is there already, and is another one: two write to this session."
        " Nothing of the batch was written; close the session, and open it again"
    )


class Store(Protocol):
    """Where sessions are kept. Raises: StoreError."""

    async def acquire(self, session: str) -> int:
        """Take the session for this process; the last seq of its log. Raises: SessionInUse."""
        ...

    async def release(self, session: str) -> None:
        """Give it back."""
        ...

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        """Write these records; `durable`: when it returns they survive a power cut. Appending again changes nothing.

        Returns the turns of which another end was there before: that end stands, and the new one was not written.
        Raises: StoreError, with nothing written, if a number is taken by another record (`number_taken`).
        """
        ...

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        """The records after this seq, in order, so many at most."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """All sessions there are, the one with the newest record last."""
        ...

    async def close(self) -> None:
        """Write what is left to write, and let go of everything."""
        ...


class MemoryStore:
    """Sessions that live as long as this object."""

    def __init__(self) -> None:
        self._logs: dict[str, list[LogRecord]] = {}
        self._ends: dict[str, dict[str, int]] = {}  # of each session: the turns that have ended, and where
        self._live: set[str] = set()

    async def acquire(self, session: str) -> int:
        """Take the session."""
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
        odd = []  # not as it should be: it is there already, or something else is
        for record in records:
            ended = record.ends is not None and (record.ends in ends or record.ends in new_ends)
            if ended or record.seq in new or _at(log, record.seq) is not None:
                odd.append(record)
                continue
            new[record.seq] = record
            if record.ends is not None:
                new_ends[record.ends] = record.seq
        refused = set[str]()
        for record in odd:
            there = new.get(record.seq) or _at(log, record.seq)
            if there == record:
                continue
            if record.ends is None or not (record.ends in ends or record.ends in new_ends):
                raise number_taken(session, record.seq)
            refused.add(record.ends)
        self._logs.pop(session, None)
        self._logs[session] = log  # the newest last
        self._ends.setdefault(session, ends).update(new_ends)
        for record in new.values():
            log.insert(_place(log, record.seq), record)
        return frozenset(refused)

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        """The records after this seq."""
        log = self._logs.get(session, [])
        start = bisect_right(log, after, key=_seq)
        return log[start : start + limit]

    async def sessions(self) -> list[SessionInfo]:
        """All sessions."""
        return [SessionInfo(name, log[-1].seq) for name, log in self._logs.items() if log]

    async def close(self) -> None:
        """Nothing to do."""


def _seq(record: LogRecord) -> int:
    return record.seq


def _place(log: list[LogRecord], seq: int) -> int:
    return len(log) if not log or seq > log[-1].seq else bisect_left(log, seq, key=_seq)


def _at(log: list[LogRecord], seq: int) -> LogRecord | None:
    place = _place(log, seq)
    return log[place] if place < len(log) and log[place].seq == seq else None


def check_store(store: Store | None) -> Store:
    """The store, or a new one in memory for None.

    Raises:
        UsageError: It is no store.
    """
    if store is None:
        return MemoryStore()
    require_method(store, "append", 'store must be a store such as SqliteStore("chat.db")')
    return store
