"""Follows the log of a session that another process writes. Knows nothing of who reads it.

The owner publishes each message that it appends, which saves a read. Publications may be lost: what was missed is read
from the stream, so correctness does not depend on them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from ..abort.event_loop import Broadcast, set_within
from ..agent.conversation import AgentResult
from ..outcome import Outcome
from ..session.log import RECENT, LoggedEvent, decode_record
from ..session.loop_tasks import LoopTasks
from ..session.session_state import SessionState
from ..session.store import LogRecord
from .broker import BrokerError, Messaging, ReadableStreams
from .store import LogAppended, LogReader

__all__ = ["LogFollower", "LogSource"]

# How often the log is read by default while somebody follows it, whether or not something was published.
READ_SECONDS = 2.0


class LogSource(ReadableStreams, Messaging, Protocol):
    """What a follower uses of a connection: it reads and listens, and appends nothing."""


class LogFollower:
    """The log of one session, and the state of the session that follows from it.

    Args:
        connection: The connection to the broker.
        session: The id of the session.
        loop_tasks: Where the task that reads runs.
        read_seconds: How often the log is read even if nothing was published.

    Attributes:
        followers: How many readers follow the log.
        state: The state as of the last `catch_up()`.
        seq: The number of the last event that was read.
    """

    def __init__(
        self,
        source: LogSource,
        session: str,
        loop_tasks: LoopTasks,
        *,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._source = source
        self._session = session
        self._loop_tasks = loop_tasks
        self._read_seconds = read_seconds
        self._reader = LogReader(source, session)
        self._recent: deque[LoggedEvent] = deque(maxlen=RECENT)
        self._changed = Broadcast()
        self._read_now = asyncio.Event()
        self._reading = asyncio.Lock()
        self._unlisten: Callable[[], Awaitable[None]] | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self.followers = 0
        self.state = SessionState()
        self.seq = 0

    async def catch_up(self) -> None:
        """Read everything that is new. Raises: BrokerError."""
        async with self._reading:
            while records := await self._reader.after(self.seq):
                for record in records:
                    self._apply(record)

    def _apply(self, record: LogRecord) -> None:
        recorded = decode_record(record)
        self.state.apply(recorded.event)
        self.seq = record.seq
        self._recent.append(recorded)
        self._changed.notify()

    def _on_appended(self, notice: bytes) -> None:
        before, entry = LogAppended.from_bytes(notice)
        if entry.position <= self._reader.position:
            return
        if before == self._reader.position and not self._reading.locked():
            for record in self._reader.feed(entry):
                self._apply(record)
        else:  # a message in between was missed, or a read is under way
            self._read_now.set()

    async def _keep_reading(self) -> None:
        while self.followers and not self._closed:
            await set_within(self._read_seconds, self._read_now)
            self._read_now.clear()
            try:
                await self.catch_up()
            except BrokerError:
                pass  # tried again soon

    async def follow(self, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """The events after a number, then new ones as they come, until this follower is closed. Raises: BrokerError."""
        self.followers += 1
        reader: LogReader | None = None
        try:
            await self._start()
            await self.catch_up()
            while not self._closed:
                changed = self._changed.next
                missing = self.seq - after
                if missing <= 0:
                    await changed.wait()
                    continue
                if missing <= len(self._recent):
                    page = [self._recent[index] for index in range(-missing, 0)]
                else:
                    reader = reader or LogReader(self._source, self._session)
                    page = [decode_record(record) for record in await reader.after(after) if record.seq <= self.seq]
                    if not page:  # a replica that lags behind
                        await asyncio.sleep(0.05)  # real time: the replica catches up
                for recorded in page:
                    after = recorded.seq
                    yield recorded
        finally:
            await self._leave()

    async def _start(self) -> None:
        async with self._starting:
            if self._unlisten is None:
                self._unlisten = await self._source.listen(("news", self._session), self._on_appended)
                self._forget = self._source.on_reconnect(self._read_now.set)
                self._loop_tasks.spawn(self._keep_reading(), f"follower of {self._session}")

    async def _leave(self) -> None:
        self.followers -= 1
        async with self._starting:
            if not self.followers and self._unlisten is not None:
                unlisten, self._unlisten = self._unlisten, None
                self._forget()
                self._read_now.set()
                await unlisten()

    async def outcome_of(self, turn_id: str, *, follow_successors: bool = False) -> Outcome[AgentResult] | None:
        """Wait until a turn has ended.

        Args:
            turn_id: The turn.
            follow_successors: If the turn loses its owner, wait for the turn that continues it.

        Returns:
            How it ended; None if this follower was closed before.
        """
        events = self.follow(self.seq)
        try:
            await self.catch_up()
            while True:
                turn = self.state.turns.get(self.state.successor(turn_id) if follow_successors else turn_id)
                if turn is not None and turn.outcome is not None and not (follow_successors and turn.orphaned):
                    return turn.outcome
                if await anext(events, None) is None:
                    return None
        finally:
            await events.aclose()

    def close(self) -> None:
        """End everything that follows the log."""
        self._closed = True
        self._read_now.set()
        self._changed.notify()
