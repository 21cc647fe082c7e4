"""Owns sessions as their store has them: read without opening them, and without writing a word.

Knows nothing of what runs.
"""

import asyncio
from collections import OrderedDict

from ..run.events import SessionClosed, SessionOpened
from .log import PAGE, read
from .session_state import SessionState
from .store import SessionInfo, Store

__all__ = ["StoredSession", "StoredSessions"]

# So many of the sessions that were looked at last are kept folded: a client that asks again reads only what is new.
KEPT = 64


class StoredSession:
    """One session as far as it was read.

    Attributes:
        past: What its log says.
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
        """Read what is new. Raises: StoreError."""
        async with self._reading:
            while records := await self._store.read(self._id, self.seq, PAGE):
                for record in records:
                    event = read(record).event
                    if isinstance(event, SessionOpened):
                        self.agent = self.agent or event.agent
                    self.state.apply(event)
                    self.seq = record.seq


class StoredSessions:
    """The sessions of one store, to look at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, StoredSession] = OrderedDict()

    async def get(self, session_id: str) -> StoredSession | None:
        """The session as it is in the store now; None if it is not there. Raises: StoreError."""
        session = self._kept.pop(session_id, None) or StoredSession(self._store, session_id)
        await session.catch_up()
        if not session.seq:
            return None
        self._kept[session_id] = session
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return session

    def forget(self, session_id: str) -> None:
        """It is live from now on: whoever has it knows better."""
        self._kept.pop(session_id, None)

    async def agent_of(self, session_id: str) -> str | None:
        """The agent with which a session began; None if there is no such session. Raises: StoreError."""
        for record in await self._store.read(session_id, 0, 1):
            event = read(record).event
            if isinstance(event, SessionOpened):
                return event.agent
        return None

    async def has_turns(self, info: SessionInfo, resume: bool) -> bool:
        """True: there are turns that have not ended, or with `resume` one that may go on. Raises: StoreError.

        Of most sessions one event says so: with the last one they were closed, with nothing left to do.
        """
        for record in await self._store.read(info.id, info.last_seq - 1, 1):
            last = read(record).event
            if isinstance(last, SessionClosed) and not last.left:
                return False
        session = StoredSession(self._store, info.id)
        await session.catch_up()
        return bool(session.state.open_turns) or (resume and session.state.interrupted is not None)
