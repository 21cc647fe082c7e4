"""Owns views of stored sessions: they are read without being opened, and nothing is written.

Knows nothing of what runs.
"""

import asyncio
from collections import OrderedDict

from ..events import SessionClosed, SessionOpened
from .log import PAGE, decode_record
from .session_state import SessionState
from .store import SessionInfo, Store

__all__ = ["StoredSession", "StoredSessions"]

# How many of the sessions that were read last stay in memory. A client that asks again reads only the new records.
KEPT = 64


class StoredSession:
    """One session, as far as its log was read.

    Attributes:
        state: The state that the log describes.
        seq: The number of the last event that was read; 0 if there is no such session.
        agent: The name of its agent.
    """

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        self._id = session_id
        self._reading = asyncio.Lock()
        self.state = SessionState()
        self.seq = 0
        self.agent: str | None = None

    async def catch_up(self) -> None:
        """Read the new records. Raises: StoreError."""
        async with self._reading:
            while records := await self._store.read(self._id, self.seq, PAGE):
                for record in records:
                    event = decode_record(record).event
                    if isinstance(event, SessionOpened):
                        self.agent = self.agent or event.agent
                    self.state.apply(event)
                    self.seq = record.seq


class StoredSessions:
    """The sessions of one store, for reading."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, StoredSession] = OrderedDict()

    async def get(self, session_id: str) -> StoredSession | None:
        """Return the session as it is in the store now; `None` if it is not there. Raises: StoreError."""
        session = self._kept.pop(session_id, None) or StoredSession(self._store, session_id)
        await session.catch_up()
        if not session.seq:
            return None
        self._kept[session_id] = session
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return session

    def discard(self, session_id: str) -> None:
        """Drop what was read of a session that is live from now on, because the live session has the newest state."""
        self._kept.pop(session_id, None)

    async def agent_of(self, session_id: str) -> str | None:
        """Return the agent with which a session began; `None` if there is no such session. Raises: StoreError."""
        for record in await self._store.read(session_id, 0, 1):
            event = decode_record(record).event
            if isinstance(event, SessionOpened):
                return event.agent
        return None

    async def has_turns(self, info: SessionInfo, resume: bool) -> bool:
        """Whether there are turns that have not ended or, with `resume`, one that may go on. Raises: StoreError.

        For most sessions one record is enough: the last one says that the session was closed with nothing left to do.
        """
        for record in await self._store.read(info.id, info.last_seq - 1, 1):
            last = decode_record(record).event
            if isinstance(last, SessionClosed) and not last.left:
                return False
        session = StoredSession(self._store, info.id)
        await session.catch_up()
        return bool(session.state.open_turns) or (resume and session.state.interrupted is not None)
