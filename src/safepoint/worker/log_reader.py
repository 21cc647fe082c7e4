"""Reads the log of a session from a broker, by the numbers of its records. Knows nothing of who writes it.

A message holds several records, or a part of one. The position of a record is found by a binary search over the
messages; there is no index that would have to be kept right.
"""

import json

from ..session.store import LogRecord
from .broker import ReadableStreams, StreamEntry

__all__ = ["LogReader", "RecordUnpacker", "last_owner", "last_seq"]

# How many messages are requested at a time.
PAGE_MESSAGES = 200


class RecordUnpacker:
    """Turns messages back into records.

    A record that an owner left half written is dropped when the next owner writes it again from its beginning.
    """

    def __init__(self) -> None:
        self._partial: tuple[int, str] | None = None  # the number of an incomplete record, and its text so far

    def feed(self, data: bytes) -> list[LogRecord]:
        """The records that the next message completes."""
        found = []
        for seq, text, ends, cut, more in json.loads(data)["records"]:
            before = self._partial[1] if cut and self._partial is not None and self._partial[0] == seq else ""
            if more:
                self._partial = (seq, before + text)
            else:
                self._partial = None
                found.append(LogRecord(seq, before + text, ends))
        return found


def first_seq(data: bytes) -> int:
    """The number of the first record in a message."""
    return int(json.loads(data)["records"][0][0])


def last_seq(data: bytes) -> int:
    """The number of the last record that a message completes. An incomplete record was never reported as written."""
    seq, _, _, _, more = json.loads(data)["records"][-1]
    return int(seq) - bool(more)


def last_owner(data: bytes) -> str:
    """The owner that wrote a message."""
    return str(json.loads(data)["by"])


class LogReader:
    """Reads the log of one session page by page. Reading on from where the last page ended needs no search.

    Args:
        connection: The connection to the broker.
        session: The id of the session.
        page_messages: How many messages are requested at a time.

    Attributes:
        position: The position of the last message that was read.
    """

    def __init__(self, streams: ReadableStreams, session: str, *, page_messages: int = PAGE_MESSAGES) -> None:
        self._streams = streams
        self._key = (session,)
        self._page_messages = page_messages
        self._seq = 0
        self._unpacker = RecordUnpacker()
        self.position = 0

    async def after(self, seq: int) -> list[LogRecord]:
        """The next records after a number; empty if there are none yet. Raises: BrokerError."""
        if seq != self._seq:
            self.position = await self._search(seq)
            self._seq, self._unpacker = seq, RecordUnpacker()
        while entries := await self._streams.read("log", self._key, self.position, self._page_messages):
            found = [record for entry in entries for record in self.feed(entry)]
            if found:
                return found
        return []

    def feed(self, entry: StreamEntry) -> list[LogRecord]:
        """The new records of the next message."""
        self.position = entry.position
        found = [record for record in self._unpacker.feed(entry.data) if record.seq > self._seq]
        if found:
            self._seq = found[-1].seq
        return found

    async def _search(self, seq: int) -> int:
        """A position before which no record has a higher number than `seq`, close to the first one that does."""
        newest = await self._streams.last("log", self._key) if seq else None
        low, high = 0, 0 if newest is None else newest.position
        # The message after `low` begins with record `seq` or an earlier one. The message after `high` begins with a
        # later record, or does not exist.
        while high - low > 1:
            middle = (low + high) // 2
            found = await self._streams.read("log", self._key, middle, 1)
            if found and first_seq(found[0].data) <= seq:
                low = middle
            else:
                high = middle
        return low
