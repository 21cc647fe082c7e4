"""Owns a session's log in this process: numbers events, writes them in the background, and lets many readers follow.

A reader asks by number: from the store what is written, from memory what is not written yet. So there is no queue per
reader, no gap and no duplicate, and a slow reader holds nothing. Knows nothing of turns.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice

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
        self._held: int | None = None  # this one, and what comes after it, is shown when it is written
        self.last = 0  # the newest number given out
        self.saved = 0  # up to here it is written
        self.refused: set[str] = set()  # turns whose end was written by somebody else before

    async def open(self) -> None:
        """Take the session. Raises: SessionInUse; StoreError."""
        self.last = self.saved = await self._store.acquire(self._session)

    def add(self, event: Event, *, durable: bool = False, ends: str | None = None) -> int:
        """Number an event and show it to the readers. It is written soon; `durable`: for good.

        The end of a turn is written first, and shown when it stands.
        """
        self.last += 1
        if ends is not None and self._held is None:
            self._held = self.last
        self._pending.append(Record(self.last, to_json(event, AgentResult), ends))
        self._recent.append(Recorded(self.last, event))
        if durable:
            self._durable = self.last
        self._work.set()
        self._announce()
        return self.last

    @property
    def shown(self) -> int:
        """Up to here readers may read."""
        return self.last if self._held is None else self._held - 1

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
            self._held = next((record.seq for record in self._pending if record.ends is not None), None)
            self._tell_written()
            self._announce()

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
            if after >= self.shown:
                if self._closed and after >= self.last:
                    return
                await news.wait()

    async def _page(self, after: int) -> list[Recorded]:
        missing, shown = self.last - after, self.shown
        if missing <= len(self._recent):
            newest = islice(self._recent, len(self._recent) - missing, None)
            return [recorded for recorded in newest if recorded.seq <= shown]
        if after < self.saved:
            page = await self._store.read(self._session, after, PAGE)
        else:
            page = [record for record in self._pending if record.seq > after][:PAGE]
        return [read(record) for record in page if record.seq <= shown]

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
