"""Owns a session's log in this process: numbers events, writes them in the background, and lets many readers follow.

A reader asks by number: from the store what is written, from memory what is not written yet. So there is no queue per
reader, no gap and no duplicate, and a slow reader holds nothing. Knows nothing of turns.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from ..agent.talk import AgentResult
from ..run.events import Event, TurnEnded
from ..run.wire import event_from_json, to_json
from .store import Record, Store

__all__ = ["Log", "Recorded"]

# So many of the newest events are kept in memory, for readers that keep up.
RECENT = 512
PAGE = 500


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its number. Read on with `events(after=seq)`."""

    seq: int
    event: Event

    @property
    def kind(self) -> str:
        """What happened, in a word."""
        return self.event.kind


class Log:
    """The log of one live session."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._session = session
        self._pending: deque[Record] = deque()
        self._recent: deque[Recorded] = deque(maxlen=RECENT)
        self._news = asyncio.Event()
        self._work = asyncio.Event()
        self._written = asyncio.Event()
        self._durable = 0  # up to here it must survive a power cut
        self._closed = False
        self.error: Exception | None = None
        self.last = 0  # the newest number given out
        self.saved = 0  # up to here it is written
        self.refused: set[str] = set()  # turns whose end was written by somebody else before

    async def open(self) -> None:
        """Take the session. Raises: SessionInUse; StoreError."""
        self.last = self.saved = await self._store.acquire(self._session)

    def add(self, event: Event, *, durable: bool = False, ends: str | None = None) -> int:
        """Number an event and show it to the readers. It is written soon; `durable`: for good."""
        self.last += 1
        self._pending.append(Record(self.last, to_json(event, AgentResult), ends))
        self._recent.append(Recorded(self.last, event))
        if durable:
            self._durable = self.last
        self._work.set()
        self._announce()
        return self.last

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def flushed(self, seq: int) -> None:
        """Wait until everything up to this number is written. Raises: what the store raised."""
        while self.saved < seq and self.error is None:
            await self._written.wait()
        if self.error is not None:
            raise self.error

    async def keep_writing(self) -> None:
        """Write what comes, for the life of the session. While one batch is on its way the next one gathers."""
        while not self._closed or self._pending:
            if not self._pending:
                await self._work.wait()
                self._work.clear()
                continue
            batch = list(self._pending)
            try:
                durable = self._durable >= batch[0].seq
                self.refused |= await self._store.append(self._session, batch, durable=durable)
            except Exception as error:
                self.error = error
                self._tell_written()
                return
            for _ in batch:
                self._pending.popleft()
            self.saved = batch[-1].seq
            self._tell_written()

    def _tell_written(self) -> None:
        self._written.set()
        self._written = asyncio.Event()

    async def follow(self, after: int = 0) -> AsyncIterator[Recorded]:
        """All events after this number, then what comes, until the log is closed."""
        while True:
            news = self._news
            for recorded in await self._page(after):
                after = recorded.seq
                yield recorded
            if after >= self.last:
                if self._closed:
                    return
                await news.wait()

    async def _page(self, after: int) -> list[Recorded]:
        recent = list(self._recent)
        if recent and recent[0].seq <= after + 1:
            return [recorded for recorded in recent if recorded.seq > after]
        if after >= self.saved:
            waiting = [record for record in self._pending if record.seq > after]
            return [read(record) for record in waiting[:PAGE]]
        return [read(record) for record in await self._store.read(self._session, after, PAGE)]

    async def close(self) -> None:
        """Nothing comes any more: readers end when they have read everything."""
        self._closed = True
        self._work.set()
        self._announce()
        await self.flushed(self.last)

    async def release(self) -> None:
        """Give the session back."""
        await self._store.release(self._session)


def read(record: Record) -> Recorded:
    """A record as it was before it was written."""
    event = event_from_json(record.text, AgentResult)
    assert record.ends is None or isinstance(event, TurnEnded)
    return Recorded(record.seq, event)
