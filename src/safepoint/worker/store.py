"""The log of a session in a broker: how records become messages, and how its owner and everybody else read it.

A message holds several records, or a part of one. The position of a record is found by a binary search over the
messages; there is no index that would have to be kept right. Knows nothing of what the records mean.
"""

import asyncio
import json
import uuid
from collections.abc import Sequence
from functools import partial

from ..session.store import LogRecord, SessionInfo, SessionInUse, StoreError
from .broker import BrokerError, Fenced, ReadableStreams, SessionConnection, StreamEntry
from .protocol import Assignment, OwnerEnded, to_json

__all__ = ["BrokerStore", "LogAppended", "LogReader", "RecordUnpacker", "last_owner", "last_seq", "pack_records"]

# By default NATS accepts messages of up to a megabyte. A text of this length fits even if every character takes six
# bytes as JSON.
MESSAGE_CHARS = 150_000
# The JSON around the text of a record.
PART_CHARS = 50
STALE_TRIES = 40
STALE_SECONDS = 0.05
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
    """Reads the log of one session by the numbers of its records, page by page, whoever writes it.

    Reading on from where the last page ended needs no search.

    Args:
        streams: The streams of the broker.
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


def pack_records(
    records: Sequence[LogRecord], owner: str, *, message_chars: int = MESSAGE_CHARS, part_chars: int = PART_CHARS
) -> list[bytes]:
    """Encode records as messages: several records in one, or a long record in several parts.

    Args:
        records: The records, in order.
        owner: Who writes them.
        message_chars: The longest text of a message, with what its records need in addition.
        part_chars: What each record needs in addition to its text.
    """
    messages: list[bytes] = []
    parts: list[list[object]] = []
    size = 0
    for record in records:
        cuts = range(0, max(len(record.text), 1), message_chars)
        for cut in cuts:
            text = record.text[cut : cut + message_chars]
            length = len(text) + len(record.ends or "") + part_chars
            if parts and size + length > message_chars:
                messages.append(_message(parts, owner))
                parts, size = [], 0
            parts.append([record.seq, text, record.ends, cut, cut != cuts[-1]])
            size += length
    return [*messages, _message(parts, owner)]


def _message(parts: list[list[object]], owner: str) -> bytes:
    # The id makes every message unique: a connection that lost the reply to its append finds out whether the newest
    # message is its own, written before the reply was lost, or one with the same records by another writer.
    return json.dumps({"id": uuid.uuid4().hex, "by": owner, "records": parts}, ensure_ascii=False).encode()


class LogAppended:
    """The notice that an owner publishes after each append: the message, its position and that of the one before."""

    @staticmethod
    def to_bytes(before: int, position: int, data: bytes) -> bytes:
        """Encode a notice."""
        return b"%d %d " % (before, position) + data

    @staticmethod
    def from_bytes(notice: bytes) -> tuple[int, StreamEntry]:
        """Decode a notice: the position of the message before, and the message."""
        before, position, data = notice.split(b" ", 2)
        return int(before), StreamEntry(int(position), (), data)


class BrokerStore:
    """The logs in a broker, as the `Store` of one owner.

    At most one owner can write a log, and no lock or clock is needed for that. Every append is a compare-and-set: it
    names the position of the newest message that the writer knows, and the broker refuses it if there is a newer one.
    `acquire()` reads that position, and the first append of the new owner changes it. From then on the former owner is
    fenced: its next append names an old position, however late it comes, because it was frozen or cut off. Until the
    new owner's first append both could write, so whoever is first wins, and the other one starts again or ends.

    After `acquire()` the position is taken from the reply to each append. Reading it again before an append would adopt
    the messages of another owner as one's own, and write after them.

    Args:
        connection: The connection to the broker.
        owner: The name under which this owner writes: its worker and the attempt.
        message_chars: The longest text of a message, as for `pack_records`.
        part_chars: What each record needs in addition to its text.

    Attributes:
        owner: The name under which this owner writes: its worker and the attempt.
        fenced: True once an append was refused because of another owner.
    """

    def __init__(
        self,
        connection: SessionConnection,
        owner: str,
        *,
        message_chars: int = MESSAGE_CHARS,
        part_chars: int = PART_CHARS,
    ) -> None:
        self._connection = connection
        self._pack = partial(pack_records, owner=owner, message_chars=message_chars, part_chars=part_chars)
        self._positions: dict[str, int] = {}  # of the newest message of each session, as far as this owner knows
        self._last_seqs: dict[str, int] = {}
        self._readers: dict[str, LogReader] = {}
        self._blocked: str | None = None
        self.owner = owner
        self.fenced = False

    def block_writes(self, reason: str) -> None:
        """Refuse every append from now on."""
        self._blocked = reason

    async def acquire(self, session: str) -> int:
        """Become the owner of a session: after the first append, the former owner can no longer write.

        Returns:
            The number of the last record.
        """
        try:
            newest = await self._connection.last("log", (session,))
        except BrokerError as error:
            raise StoreError(f"session {session!r} cannot be read: {error}") from error
        self._positions[session] = 0 if newest is None else newest.position
        self._last_seqs[session] = 0 if newest is None else last_seq(newest.data)
        return self._last_seqs[session]

    async def release(self, session: str) -> None:
        """Stop being the owner of a session."""
        self._positions.pop(session, None)
        self._readers.pop(session, None)

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        """Append records. Raises: SessionInUse if another owner has written since; StoreError."""
        if not records:
            return frozenset()
        if self._blocked is not None:
            raise StoreError(f"session {session!r} is no longer written here: {self._blocked}")
        for data in self._pack(records):
            before = self._positions[session]
            try:
                position = await self._connection.append("log", (session,), data, expected_last=before)
            except Fenced as error:
                self.fenced = True
                raise SessionInUse(f"session {session!r} has another owner: {error}") from error
            except BrokerError as error:
                raise StoreError(f"session {session!r} cannot be written: {error}") from error
            self._positions[session] = position
            await self._connection.publish(("news", session), LogAppended.to_bytes(before, position, data))
        self._last_seqs[session] = records[-1].seq
        return frozenset()  # only one owner writes, so no turn has a second end that would be dropped

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        """The next records after a number. A replica that lacks records known to exist is asked again."""
        reader = self._readers.setdefault(session, LogReader(self._connection, session))
        for _ in range(STALE_TRIES):
            try:
                found = await reader.after(after)
            except BrokerError as error:
                raise StoreError(f"session {session!r} cannot be read: {error}") from error
            if found or after >= self._last_seqs.get(session, 0):
                return found
            await asyncio.sleep(STALE_SECONDS)  # real time: the replica catches up
        return []

    async def sessions(self) -> list[SessionInfo]:
        """The sessions that this owner has acquired. It knows of no others."""
        return [SessionInfo(session, seq) for session, seq in self._last_seqs.items()]

    async def close(self) -> None:
        """Refuse every append from now on."""
        self.block_writes("the store is closed")


async def former_owner_has_ended(streams: ReadableStreams, assignment: Assignment) -> bool:
    """Whether the process that wrote the log of this session last is known to have ended."""
    if assignment.attempt == 1:
        return False  # no earlier holder of this order could have left a note
    newest = await streams.last("log", (assignment.session,))
    notes = [one.data for one in await streams.read("inbox", (assignment.session,))]
    return newest is not None and to_json(OwnerEnded(last_owner(newest.data))) in notes
