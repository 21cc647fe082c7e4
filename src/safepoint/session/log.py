"""Owns a session's log in this process: numbers events, writes them in the background, and lets many readers follow.

A reader asks by number: from the store what is written, from memory what is not written yet. So there is no queue per
reader, no gap and no duplicate, and a slow reader holds nothing. Knows nothing of turns.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..agent.conversation import AgentResult
from ..run.events import Event, TurnEnded
from ..run.wire import event_from_json, event_to_json
from .store import LogRecord, SessionInUse, Store, StoreError

__all__ = ["LoggedEvent", "SessionLog"]

# So many of the newest events are kept in memory, for readers that keep up.
RECENT = 512
PAGE = 500
# So long what nobody waits for, such as the words of an answer, may gather before it is written.
LINGER_SECONDS = 0.01
Stands: TypeAlias = Callable[[Exception | None], object]


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event with its number. Read on with `events(after=seq)`."""

    seq: int
    event: Event

    @property
    def kind(self) -> str:
        """What happened, in a word."""
        return self.event.kind


class SessionLog:
    """The log of one live session. A store that fails ends it: `error` says how, and nothing is written any more."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._session = session
        self._pending: deque[LogRecord] = deque()
        self._recent: deque[LoggedEvent] = deque(maxlen=RECENT)
        self._news = asyncio.Event()
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._written = asyncio.Event()
        self._durable = 0  # up to here it must survive a power cut
        self._closed = False
        self._released = False
        self._held: deque[tuple[int, Stands | None]] = deque()  # the first, and what comes after it, is not shown yet
        self.error: Exception | None = None
        self.last = 0  # the newest number given out
        self.saved = 0  # up to here it is written

    async def open(self) -> None:
        """Take the session. Raises: SessionInUse; StoreError."""
        self.last = self.saved = await self._store.acquire(self._session)

    async def replay(self, apply: Callable[[Event], object]) -> None:
        """Everything there is, in order. Raises: StoreError."""
        after = 0
        while after < self.last:
            page = await self._store.read(self._session, after, PAGE)
            if not page:
                raise StoreError(f"the log of session {self._session!r} ends at {after}, and not at {self.last}")
            for record in page:
                apply(read(record).event)
            after = page[-1].seq

    def add(self, event: Event, *, durable: bool = False, ends: "tuple[str, Stands] | None" = None) -> int:
        """Number an event and show it to the readers. It is written soon; `durable`: for good, and before it is shown.

        `ends`: it is the end of this turn. It is durable; when it stands the function is told, with what went wrong if
        something did, and only then the readers.
        """
        record = LogRecord(self.last + 1, event_to_json(event, AgentResult), None if ends is None else ends[0])
        self.last += 1
        if self.error is not None:  # nobody will write it
            if ends is not None:
                ends[1](self.error)
            return self.last
        self._pending.append(record)
        self._recent.append(LoggedEvent(self.last, event))
        if durable or ends is not None:
            self._held.append((self.last, None if ends is None else ends[1]))
            self._durable = self.last
            self._urgent.set()
        self._work.set()
        self._announce()
        return self.last

    def make_durable(self, seq: int) -> None:
        """Everything up to this number must survive a power cut, and is written now. Readers see it meanwhile."""
        self._durable = max(self._durable, seq)
        self._urgent.set()

    @property
    def shown(self) -> int:
        """Up to here readers may read."""
        if self.error is not None:
            return self.saved
        return self._held[0][0] - 1 if self._held else self.last

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def flushed(self, seq: int) -> None:
        """Wait until everything up to this number is written. Raises: what the store raised."""
        while self.saved < seq and self.error is None:
            self._urgent.set()
            await self._written.wait()
        if self.saved < seq and self.error is not None:
            raise self.error

    async def keep_writing(self) -> None:
        """Write what comes, for the life of the session. While one batch is on its way the next one gathers."""
        try:
            await self._write_what_comes()
        except asyncio.CancelledError:  # as at the end of `asyncio.run`: nobody may wait for what nobody will write
            self._fail(StoreError(f"session {self._session!r} was not closed before its event loop was"))
            raise

    async def _write_what_comes(self) -> None:
        while not self._closed or self._pending:
            if not self._pending:
                await self._work.wait()
                self._work.clear()
                continue
            await self._gather()
            self._urgent.clear()
            batch = list(self._pending)
            try:
                await self._write(batch)
            except Exception as error:
                self._fail(error)
                return
            for _ in batch:
                self._pending.popleft()
            self.saved = batch[-1].seq
            self._tell_written()

    async def _gather(self) -> None:
        """What happens in one moment is written in one batch: a short one, or if nobody waits for it a longer one."""
        await asyncio.sleep(0)
        if self._urgent.is_set():
            return
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self._urgent.wait()
        except TimeoutError:
            pass

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._pending.clear()
        self._recent.clear()  # of these nobody knows whether they stand: readers ask the store
        self._tell_written()

    def _tell_written(self) -> None:
        while self._held and (self.error is not None or self._held[0][0] <= self.saved):
            stands = self._held.popleft()[1]
            if stands is not None:
                stands(self.error)
        self._written.set()
        self._written = asyncio.Event()
        self._announce()

    async def _write(self, batch: list[LogRecord]) -> None:
        refused = await self._store.append(self._session, batch, durable=self._durable >= batch[0].seq)
        if refused:
            raise SessionInUse(
                f"session {self._session!r} is live elsewhere: there the end of turn {min(refused)} was written before"
            )

    async def follow(self, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """All events after this number, then what comes, until the log is closed. Raises: what the store raised."""
        while True:
            news = self._news
            page = await self._page(after)
            for recorded in page:
                after = recorded.seq
                yield recorded
            if after < self.shown:
                if not page:
                    raise StoreError(f"the log of session {self._session!r} has lost what came after {after}")
            elif self.error is not None:
                raise self.error
            elif self._closed and after >= self.last:
                return
            else:
                await news.wait()

    async def _page(self, after: int) -> list[LoggedEvent]:
        missing, shown = self.last - after, self.shown
        if missing <= len(self._recent):
            newest = (self._recent[place] for place in range(-missing, 0))
            return [recorded for recorded in newest if recorded.seq <= shown]
        if after < self.saved:
            page = await self._store.read(self._session, after, PAGE)
        else:
            page = [record for record in self._pending if record.seq > after][:PAGE]
        return [read(record) for record in page if record.seq <= shown]

    async def close(self) -> None:
        """Nothing comes any more: readers end when they have read everything. Raises: what the store raised."""
        self._closed = True
        self._urgent.set()
        self._work.set()
        self._announce()
        await self.flushed(self.last)

    async def release(self) -> None:
        """Give the session back, once: afterwards somebody else may have it."""
        if not self._released:
            self._released = True
            await self._store.release(self._session)


def read(record: LogRecord) -> LoggedEvent:
    """A record as it was before it was written."""
    event = event_from_json(record.text, AgentResult)
    assert record.ends is None or isinstance(event, TurnEnded)
    return LoggedEvent(record.seq, event)
