"""Owns reading a session's log out of a broker by the numbers of its records. Knows nothing of who writes it.

A message holds several records, or a part of one. Where a number is, a search over the positions tells: there is no
index that could be wrong.
"""

import json

from ..session.store import LogRecord
from .broker import BrokerConnection, StreamEntry

__all__ = ["LogReader", "RecordUnpacker", "last_owner", "last_seq"]

PAGE_MESSAGES = 200


class RecordUnpacker:
    """Messages become records again. What an owner left half written is dropped when the next one begins it anew."""

    def __init__(self) -> None:
        self._begun: tuple[int, str] | None = None

    def feed(self, data: bytes) -> list[LogRecord]:
        """One more message."""
        found = []
        for seq, text, ends, cut, more in json.loads(data)["records"]:
            before = self._begun[1] if cut and self._begun is not None and self._begun[0] == seq else ""
            if more:
                self._begun = (seq, before + text)
            else:
                self._begun = None
                found.append(LogRecord(seq, before + text, ends))
        return found


def first_seq(data: bytes) -> int:
    """The number of the first record in a message."""
    return int(json.loads(data)["records"][0][0])


def last_seq(data: bytes) -> int:
    """The number of the last record that is whole in a message. Of half a record nobody has heard."""
    seq, _, _, _, more = json.loads(data)["records"][-1]
    return int(seq) - bool(more)


def last_owner(data: bytes) -> str:
    """Who has written a message."""
    return str(json.loads(data)["by"])


class LogReader:
    """The log of one session, page by page. Whoever reads on from where it stopped needs no search."""

    def __init__(self, connection: BrokerConnection, session: str) -> None:
        self._connection = connection
        self._key = (session,)
        self._seq = 0
        self._unpacking = RecordUnpacker()
        self.position = 0  # of the last message that was read

    async def after(self, seq: int) -> list[LogRecord]:
        """The next records after this number; none if there are none yet. Raises: BrokerError."""
        if seq != self._seq:
            self.position = await self._search(seq)
            self._seq, self._unpacking = seq, RecordUnpacker()
        while entries := await self._connection.read("log", self._key, self.position, PAGE_MESSAGES):
            found = [record for entry in entries for record in self.feed(entry)]
            if found:
                return found
        return []

    def feed(self, entry: StreamEntry) -> list[LogRecord]:
        """The message that comes next: what is new in it."""
        self.position = entry.position
        found = [record for record in self._unpacking.feed(entry.data) if record.seq > self._seq]
        if found:
            self._seq = found[-1].seq
        return found

    async def _search(self, seq: int) -> int:
        """A position before which every record has at most this number, and not far before the next one."""
        newest = await self._connection.last("log", self._key) if seq else None
        low, high = 0, 0 if newest is None else newest.position
        # What comes after `low` begins at this number at most; what comes after `high` begins later, or is not there.
        while high - low > 1:
            middle = (low + high) // 2
            found = await self._connection.read("log", self._key, middle, 1)
            if found and first_seq(found[0].data) <= seq:
                low = middle
            else:
                high = middle
        return low
