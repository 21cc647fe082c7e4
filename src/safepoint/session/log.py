"""Owns the log of a live session: numbers its events, writes them in the background, and serves many readers.

Also owns the wait for the store before a tool call may have an effect: first on record, then the effect. Knows nothing
of turns.

**Numbers.** `add` gives each event the next number at once, in the session's own thread, before anything is written. A
reader asks by number: it gets what is written from the store, and what is not written yet from memory. So there is no
queue per reader, no gap and no duplicate, and a slow reader holds no memory.

**Background writing.** One task writes, so that there is one batch on its way at a time, and the numbers in the store
never have a gap. While a batch is written, the next one gathers. An event leaves `_pending` only when the store has it;
`written_seq` follows after that, so that between the two a reader finds the event in both places rather than in none.
What a caller waits for (`flushed`, a durable event) sets `_urgent` and ends the time of gathering.

**What readers may see.** A durable event (the end of a turn, a recorded stop) must not be seen before it is on record:
a reader who saw it could act on it, and a crash would take it back. Such an event, and all that come after it, are
withheld (`_withheld`) until they are written. Words of an answer are not durable and are visible at once, unless a
withheld event is before them, because readers get events in order.

**The order when a batch is written.** First `written_seq`, then the callbacks of the durable events, then the waiters
of `flushed`, and the readers last. So the caller of a turn has its result before a reader sees `turn_ended`, and a
reader who has seen that event finds the turn ended.

**A store that fails** ends the log: what was pending may or may not be in the store, so it is dropped from memory,
readers go back to the store, every callback gets the error, and nothing is written any more.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..abort import AbortError, Clock
from ..abort.event_loop import Broadcast
from ..agent.conversation import AgentResult
from ..events import Event, RecordDelayed, TurnEnded
from ..run.context import Context
from ..run.journal import Journal
from ..wire import event_from_json, event_to_json
from .loop_tasks import LoopTasks
from .store import LogRecord, SessionInUse, Store, StoreError

__all__ = ["BeforeEffect", "LoggedEvent", "SessionJournal", "SessionLog"]

# How many of the newest events are kept in memory, for readers that keep up.
RECENT = 512
# How many records are read from the store at a time.
PAGE = 500
# How long, by default, events for which nothing waits, such as the words of an answer, gather before they are written.
LINGER_SECONDS = 0.01
# Called when the end of a turn is written, with None, or with the error if it could not be written.
OnDurable: TypeAlias = Callable[[Exception | None], object]
# A wait for the store that is longer than this is reported by an event.
SLOW_SECONDS = 1.0
BeforeEffect = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event with its number in the log.

    Attributes:
        seq: The number. `events(after=seq)` gives the events that come after this one.
        event: The event.
    """

    seq: int
    event: Event

    @property
    def kind(self) -> str:
        """What happened, in one word."""
        return self.event.kind


class SessionLog:
    """The log of one live session.

    Args:
        store: Where it is written.
        session: The id of the session.
        linger_seconds: How long events for which nothing waits gather before they are written.

    Attributes:
        error: What the store raised. It ends the log: nothing is written after that.
        last_seq: The newest number that was given to an event.
        written_seq: All events up to this number are in the store.
    """

    def __init__(self, store: Store, session: str, *, linger_seconds: float = LINGER_SECONDS) -> None:
        self._store = store
        self._session = session
        self._linger_seconds = linger_seconds
        self._pending: deque[LogRecord] = deque()
        self._recent: deque[LoggedEvent] = deque(maxlen=RECENT)
        self._visible_changed = Broadcast()
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._written = Broadcast()
        self._durable_seq = 0  # all events up to this number must survive a power cut
        self._closed = False
        self._released = False
        # The durable events that are not written yet, with their callbacks. Readers see nothing from the first one on.
        self._withheld: deque[tuple[int, OnDurable | None]] = deque()
        self.error: Exception | None = None
        self.last_seq = 0
        self.written_seq = 0

    async def open(self) -> None:
        """Take the session. Raises: SessionInUse; StoreError."""
        self.last_seq = self.written_seq = await self._store.acquire(self._session)

    async def replay(self, apply: Callable[[Event], object]) -> None:
        """Call `apply` with every event of the log, in order. Raises: StoreError."""
        after = 0
        while after < self.last_seq:
            page = await self._store.read(self._session, after, PAGE)
            if not page:
                raise StoreError(f"the log of session {self._session!r} ends at {after}, and not at {self.last_seq}")
            for record in page:
                apply(decode_record(record).event)
            after = page[-1].seq

    def add(self, event: Event, *, durable: bool = False, ends: "tuple[str, OnDurable] | None" = None) -> int:
        """Number an event, show it to the readers, and write it soon.

        Args:
            event: The event.
            durable: Whether it must survive a power cut. Readers see it when it is written.
            ends: The turn of which it is the end, and what is called when it is written or could not be written, before
                the readers see it. Such an event is durable.

        Returns:
            The number of the event.
        """
        record = LogRecord(self.last_seq + 1, event_to_json(event, AgentResult), None if ends is None else ends[0])
        self.last_seq += 1
        if self.error is not None:  # it will never be written
            if ends is not None:
                ends[1](self.error)
            return self.last_seq
        self._pending.append(record)
        self._recent.append(LoggedEvent(self.last_seq, event))
        if durable or ends is not None:
            self._withheld.append((self.last_seq, None if ends is None else ends[1]))
            self._durable_seq = self.last_seq
            self._urgent.set()
        self._work.set()
        self._visible_changed.notify()
        return self.last_seq

    def make_durable(self, seq: int) -> None:
        """Let everything up to this number survive a power cut, and write it now. Readers may see it meanwhile."""
        self._durable_seq = max(self._durable_seq, seq)
        self._urgent.set()

    @property
    def visible_seq(self) -> int:
        """Readers may see all events up to this number."""
        if self.error is not None:
            return self.written_seq
        return self._withheld[0][0] - 1 if self._withheld else self.last_seq

    async def flushed(self, seq: int) -> None:
        """Wait until everything up to this number is written. Raises: what the store raised."""
        while self.written_seq < seq and self.error is None:
            self._urgent.set()
            await self._written.next.wait()
        if self.written_seq < seq and self.error is not None:
            raise self.error

    async def keep_writing(self) -> None:
        """Write events until the log is closed or the store fails."""
        try:
            await self._write_batches()
        except asyncio.CancelledError:
            # As at the end of `asyncio.run`. Nothing will be written any more, so nothing may wait for it either.
            self._fail(StoreError(f"session {self._session!r} was not closed before its event loop was"))
            raise

    async def _write_batches(self) -> None:
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
            self.written_seq = batch[-1].seq
            self._publish()

    async def _gather(self) -> None:
        """Let events gather for one batch: until the next pass of the loop, or longer if nothing waits for them."""
        await asyncio.sleep(0)
        if self._urgent.is_set():
            return
        try:
            async with asyncio.timeout(self._linger_seconds):
                await self._urgent.wait()
        except TimeoutError:
            pass

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._pending.clear()
        self._recent.clear()  # it is not known which of them are in the store: readers ask the store
        self._publish()

    def _publish(self) -> None:
        """Tell those concerned that a batch was written, or that the store failed: see the docstring of the module."""
        while self._withheld and (self.error is not None or self._withheld[0][0] <= self.written_seq):
            on_durable = self._withheld.popleft()[1]
            if on_durable is not None:
                on_durable(self.error)
        self._written.notify()
        self._visible_changed.notify()

    async def _write(self, batch: list[LogRecord]) -> None:
        refused = await self._store.append(self._session, batch, durable=self._durable_seq >= batch[0].seq)
        if refused:
            raise SessionInUse(
                f"session {self._session!r} is live elsewhere: there the end of turn {min(refused)} was written before"
            )

    async def follow(self, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Yield all events after this number, then those that come, until the log is closed.

        Raises:
            StoreError: The store lacks events that were written.
            Exception: What the store raised.
        """
        while True:
            changed = self._visible_changed.next  # taken before the look, so that a change in between is not missed
            page = await self._page(after)
            for logged in page:
                after = logged.seq
                yield logged
            if after < self.visible_seq:
                if not page:
                    raise StoreError(f"the log of session {self._session!r} has lost what came after {after}")
            elif self.error is not None:
                raise self.error
            elif self._closed and after >= self.last_seq:
                return
            else:
                await changed.wait()

    async def _page(self, after: int) -> list[LoggedEvent]:
        missing, visible = self.last_seq - after, self.visible_seq
        if missing <= len(self._recent):
            newest = (self._recent[index] for index in range(-missing, 0))
            return [logged for logged in newest if logged.seq <= visible]
        if after < self.written_seq:
            page = await self._store.read(self._session, after, PAGE)
        else:
            page = [record for record in self._pending if record.seq > after][:PAGE]
        return [decode_record(record) for record in page if record.seq <= visible]

    async def close(self) -> None:
        """Write what is left. Readers end when they have read everything. Raises: what the store raised."""
        self._closed = True
        self._urgent.set()
        self._work.set()
        self._visible_changed.notify()
        await self.flushed(self.last_seq)

    async def release(self) -> None:
        """Give the session back to the store, once, so that it may be opened elsewhere."""
        if not self._released:
            self._released = True
            await self._store.release(self._session)


def decode_record(record: LogRecord) -> LoggedEvent:
    """Read an event from its record."""
    event = event_from_json(record.text, AgentResult)
    assert record.ends is None or isinstance(event, TurnEnded)
    return LoggedEvent(record.seq, event)


class SessionJournal(Journal):
    """The journal of a live session.

    Attributes:
        before_effect: Awaited when a call is on record and before its body begins. A worker reads here whether a stop
            was recorded elsewhere, and applies it; the caller then looks at its signal.
    """

    def __init__(self, log: SessionLog, loop_tasks: LoopTasks, clock: Clock, results: Mapping[str, str]) -> None:
        super().__init__(results)
        self._log = log
        self._loop_tasks = loop_tasks
        self._clock = clock
        self.before_effect: BeforeEffect | None = None

    async def flush(self, ctx: Context) -> None:
        """Wait until the store has everything that was emitted so far, or the signal is aborted.

        Raises:
            Exception: What the store raised.
        """
        try:
            await ctx.signal.run(self._written(ctx))
        except AbortError:
            if not ctx.signal.aborted:
                raise

    async def _written(self, ctx: Context) -> None:
        seq = self._log.last_seq
        self._log.make_durable(seq)
        due = self._clock.monotonic() + SLOW_SECONDS
        timer = self._clock.call_at(due, lambda: self._loop_tasks.call(self._report_delay, ctx, seq))
        try:
            await self._log.flushed(seq)
        finally:
            timer.disarm()
        if self.before_effect is not None:
            await self.before_effect()

    def _report_delay(self, ctx: Context, seq: int) -> None:
        if self._log.written_seq < seq and not ctx.signal.aborted:
            ctx.emit(RecordDelayed(**ctx.stamp(), seconds=SLOW_SECONDS))
