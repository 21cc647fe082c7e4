"""Owns a session as it is seen from afar: its log, read and followed by number. Knows nothing of who asks for it.

What its owner says of each new message saves a question; whatever was missed is read. So nothing depends on hearing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from ..agent.conversation import AgentResult
from ..run.outcome import Outcome
from ..session.log import RECENT, LoggedEvent, read
from ..session.loop_tasks import LoopTasks
from ..session.session_state import SessionState
from ..session.store import LogRecord
from .broker import BrokerConnection, BrokerError
from .log_reader import LogReader
from .store import LogAppended
from .wait_helpers import set_within

__all__ = ["LogFollower"]

# Whoever writes says so; who missed it looks this often.
LOOK_SECONDS = 2.0


class LogFollower:
    """The log of one session, and what it says. `state` is as new as the last `catch_up()`."""

    def __init__(self, connection: BrokerConnection, session: str, loop_tasks: LoopTasks) -> None:
        self._connection = connection
        self._session = session
        self._loop_tasks = loop_tasks
        self._pages = LogReader(connection, session)
        self._recent: deque[LoggedEvent] = deque(maxlen=RECENT)
        self._news = asyncio.Event()
        self._look = asyncio.Event()
        self._reading = asyncio.Lock()
        self._unlisten: Callable[[], Awaitable[None]] | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self.followers = 0
        self.state = SessionState()
        self.seq = 0

    async def catch_up(self) -> None:
        """Read what is new. Raises: BrokerError."""
        async with self._reading:
            while records := await self._pages.after(self.seq):
                for record in records:
                    self._apply(record)

    def _apply(self, record: LogRecord) -> None:
        recorded = read(record)
        self.state.apply(recorded.event)
        self.seq = record.seq
        self._recent.append(recorded)
        self._announce()

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _heard(self, said: bytes) -> None:
        before, entry = LogAppended.read(said)
        if entry.position <= self._pages.position:
            return
        if before == self._pages.position and not self._reading.locked():
            for record in self._pages.feed(entry):
                self._apply(record)
        else:
            self._look.set()

    async def _keep_up(self) -> None:
        """While somebody follows: read what was missed."""
        while self.followers and not self._closed:
            await set_within(LOOK_SECONDS, self._look)
            self._look.clear()
            try:
                await self.catch_up()
            except BrokerError:
                pass  # it is asked again soon

    async def follow(self, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Everything after this number, then what comes, until this host is closed. Raises: BrokerError."""
        self.followers += 1
        pages: LogReader | None = None
        try:
            await self._listen()
            await self.catch_up()
            while not self._closed:
                news = self._news
                missing = self.seq - after
                if missing <= 0:
                    await news.wait()
                    continue
                if missing <= len(self._recent):
                    page = [self._recent[place] for place in range(-missing, 0)]
                else:
                    pages = pages or LogReader(self._connection, self._session)
                    page = [read(record) for record in await pages.after(after) if record.seq <= self.seq]
                    if not page:  # a server of a cluster that lags behind
                        await asyncio.sleep(0.05)  # real time: it will have caught up
                for recorded in page:
                    after = recorded.seq
                    yield recorded
        finally:
            await self._end()

    async def _listen(self) -> None:
        async with self._starting:
            if self._unlisten is None:
                self._unlisten = await self._connection.listen(("news", self._session), self._heard)
                self._forget = self._connection.on_return(self._look.set)
                self._loop_tasks.spawn(self._keep_up(), f"mirror of {self._session}")

    async def _end(self) -> None:
        self.followers -= 1
        async with self._starting:
            if not self.followers and self._unlisten is not None:
                unlisten, self._unlisten = self._unlisten, None
                self._forget()
                self._look.set()
                await unlisten()

    async def outcome_of(self, turn_id: str, *, heirs: bool = False) -> Outcome[AgentResult] | None:
        """How a turn ended, as soon as it has. None: this host was closed before.

        heirs  of a turn that loses its owner, how the one ends that goes on with it
        """
        events = self.follow(self.seq)
        try:
            await self.catch_up()
            while True:
                turn = self.state.turns.get(self.state.successor(turn_id) if heirs else turn_id)
                if turn is not None and turn.outcome is not None and not (heirs and turn.lost):
                    return turn.outcome
                if await anext(events, None) is None:
                    return None
        finally:
            await events.aclose()

    def close(self) -> None:
        """Whoever follows comes to an end."""
        self._closed = True
        self._look.set()
        self._announce()
