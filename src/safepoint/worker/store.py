"""Owns a session's log in a broker, as the `Store` of whoever owns the session. Knows nothing of what the records mean.

Every write names what must have come before it: an owner whose place was taken is fenced, however late it writes.
"""

import asyncio
import json
import uuid
from collections.abc import Sequence

from ..session.store import LogRecord, SessionInfo, SessionInUse, StoreError
from .broker import BrokerConnection, BrokerError, Fenced, StreamEntry
from .log_reader import LogReader, last_owner, last_seq
from .protocol import Assignment, OwnerEnded, to_json

__all__ = ["BrokerStore", "LogAppended", "packed"]

# NATS takes a megabyte by default; a text of so many characters fits also where each of them takes six bytes.
MESSAGE_CHARS = 150_000
PART_CHARS = 50  # what is written around each
STALE_TRIES = 40
STALE_SECONDS = 0.05


def packed(records: Sequence[LogRecord], by: str) -> list[bytes]:
    """Records as messages that fit through: several in one, or one in several parts, each with where it begins."""
    messages: list[bytes] = []
    parts: list[list[object]] = []
    size = 0
    for record in records:
        cuts = range(0, max(len(record.text), 1), MESSAGE_CHARS)
        for cut in cuts:
            text = record.text[cut : cut + MESSAGE_CHARS]
            length = len(text) + len(record.ends or "") + PART_CHARS
            if parts and size + length > MESSAGE_CHARS:
                messages.append(_message(parts, by))
                parts, size = [], 0
            parts.append([record.seq, text, record.ends, cut, cut != cuts[-1]])
            size += length
    return [*messages, _message(parts, by)]


def _message(parts: list[list[object]], by: str) -> bytes:
    # The id tells apart what was written twice from what was written by two.
    return json.dumps({"id": uuid.uuid4().hex, "by": by, "records": parts}, ensure_ascii=False).encode()


class LogAppended:
    """What an owner tells whoever follows: a message that is kept, where, and what came before it."""

    @staticmethod
    def write(before: int, position: int, data: bytes) -> bytes:
        """As it is said."""
        return b"%d %d " % (before, position) + data

    @staticmethod
    def read(said: bytes) -> tuple[int, StreamEntry]:
        """As it was meant."""
        before, position, data = said.split(b" ", 2)
        return int(before), StreamEntry(int(position), (), data)


class BrokerStore:
    """The logs in a broker, for one owner. `by`: who it is, and the attempt."""

    def __init__(self, connection: BrokerConnection, by: str) -> None:
        self._connection = connection
        self.by = by
        self._newest: dict[str, int] = {}  # the position of the last message of each session that is ours
        self._last: dict[str, int] = {}
        self._pages: dict[str, LogReader] = {}
        self._shut: str | None = None
        self.fenced = False

    def shut(self, why: str) -> None:
        """Write nothing any more."""
        self._shut = why

    async def acquire(self, session: str) -> int:
        """Take the session. Whoever had it before cannot write any more once we have."""
        try:
            newest = await self._connection.last("log", (session,))
        except BrokerError as error:
            raise StoreError(f"session {session!r} cannot be read: {error}") from error
        self._newest[session] = 0 if newest is None else newest.position
        self._last[session] = 0 if newest is None else last_seq(newest.data)
        return self._last[session]

    async def release(self, session: str) -> None:
        """Give it back."""
        self._newest.pop(session, None)
        self._pages.pop(session, None)

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        """Write these records. Raises: SessionInUse if another owner has written since."""
        if not records:
            return frozenset()
        if self._shut is not None:
            raise StoreError(f"session {session!r} is not written here any more: {self._shut}")
        for data in packed(records, self.by):
            before = self._newest[session]
            try:
                position = await self._connection.append("log", (session,), data, after=before)
            except Fenced as error:
                self.fenced = True
                raise SessionInUse(f"session {session!r} has another owner: {error}") from error
            except BrokerError as error:
                raise StoreError(f"session {session!r} cannot be written: {error}") from error
            self._newest[session] = position
            await self._connection.publish(("news", session), LogAppended.write(before, position, data))
        self._last[session] = records[-1].seq
        return frozenset()  # one owner writes: there is no second end

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        """The records after this seq. A server of a cluster that lags behind is asked again."""
        pages = self._pages.setdefault(session, LogReader(self._connection, session))
        for _ in range(STALE_TRIES):
            try:
                found = await pages.after(after)
            except BrokerError as error:
                raise StoreError(f"session {session!r} cannot be read: {error}") from error
            if found or after >= self._last.get(session, 0):
                return found
            await asyncio.sleep(STALE_SECONDS)  # real time: it will have caught up
        return []

    async def sessions(self) -> list[SessionInfo]:
        """Whoever owns a session knows of no other."""
        return [SessionInfo(session, seq) for session, seq in self._last.items()]

    async def close(self) -> None:
        """Write nothing any more."""
        self.shut("the store is closed")


async def former_owner_has_ended(connection: BrokerConnection, assignment: Assignment) -> bool:
    """Whether somebody has seen the end of the process that has written the log of this session last."""
    if assignment.attempt == 1:
        return False  # if there was one before, its order is gone, and with it who could have told
    newest = await connection.last("log", (assignment.session,))
    notes = [one.data for one in await connection.read("inbox", (assignment.session,))]
    return newest is not None and to_json(OwnerEnded(last_owner(newest.data))) in notes
