"""Owns what a session needs of a store, and the store in memory. Knows nothing of what the records mean.

A session's log is append-only text under (session, seq). The end of a turn is written once: the first one counts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import SafepointError

__all__ = ["MemoryStore", "Record", "SessionInUse", "SessionInfo", "Store", "StoreError"]


class StoreError(SafepointError):
    """A store could not be read or written: the message says which, what happened, and what to do."""


class SessionInUse(StoreError):
    """The session is live elsewhere. One process at a time may have it."""


class Record(NamedTuple):
    """One line of a session's log. `ends`: it is the end of this turn, of which there can be only one."""

    seq: int
    text: str
    ends: str | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a list of sessions shows."""

    id: str
    last_seq: int


class Store(Protocol):
    """Where sessions are kept. Raises: StoreError."""

    async def acquire(self, session: str) -> int:
        """Take the session for this process; the last seq of its log. Raises: SessionInUse."""
        ...

    async def release(self, session: str) -> None:
        """Give it back."""
        ...

    async def append(self, session: str, records: Sequence[Record], *, durable: bool) -> frozenset[str]:
        """Write these records; `durable`: when it returns they survive a power cut. Appending again changes nothing.

        Returns the turns of which an end was there before: that end stands, and the new one was not written.
        """
        ...

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[Record]:
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
        self._logs: dict[str, list[Record]] = {}
        self._ends: dict[tuple[str, str], int] = {}
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

    async def append(self, session: str, records: Sequence[Record], *, durable: bool) -> frozenset[str]:
        """Keep the records."""
        if not records:
            return frozenset()
        log = self._logs[session] = self._logs.pop(session, [])  # the newest last
        return frozenset(record.ends for record in records if not self._keep(session, log, record) and record.ends)

    def _keep(self, session: str, log: list[Record], record: Record) -> bool:
        """False: it is an end that cannot stand."""
        place = len(log) if not log or record.seq > log[-1].seq else bisect_left(log, record.seq, key=_seq)
        if place < len(log) and log[place].seq == record.seq:
            return log[place].ends == record.ends  # it is there already
        if record.ends is not None and self._ends.setdefault((session, record.ends), record.seq) != record.seq:
            return False
        log.insert(place, record)
        return True

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[Record]:
        """The records after this seq."""
        log = self._logs.get(session, [])
        start = bisect_right(log, after, key=_seq)
        return log[start : start + limit]

    async def sessions(self) -> list[SessionInfo]:
        """All sessions."""
        return [SessionInfo(name, log[-1].seq) for name, log in self._logs.items() if log]

    async def close(self) -> None:
        """Nothing to do."""


def _seq(record: Record) -> int:
    return record.seq
