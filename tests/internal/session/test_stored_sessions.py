"""Sessions as their store has them: read without opening them."""

import asyncio
from typing import Any

from safepoint.events import SessionClosed, SessionOpened, TurnQueued, TurnStarted, event_to_json
from safepoint.messages import UserMessage
from safepoint.session import MemoryStore, SessionInfo
from safepoint.session.store import LogRecord
from safepoint.session.stored_sessions import KEPT, StoredSessions

PLACE: Any = {"run_id": "s", "path": ("a",), "at": 1.0}
OPENED = SessionOpened(**PLACE, agent="poet")
QUEUED = TurnQueued(**PLACE, turn_id="t", messages=(UserMessage(text="hi"),))
STARTED = TurnStarted(**PLACE, turn_id="t", items=1)


class Counting(MemoryStore):
    """Says how many records were read."""

    records = 0

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
        found = await super().read(session, after, limit)
        self.records += len(found)
        return found


async def write(store: MemoryStore, *events: Any, session: str = "s") -> None:
    last = (await store.read(session, 0, 10_000))[-1:]
    first = last[0].seq + 1 if last else 1
    await store.append(
        session, [LogRecord(first + n, event_to_json(event)) for n, event in enumerate(events)], durable=True
    )


async def test_what_was_read_before_is_not_read_again() -> None:
    store = Counting()
    sessions = StoredSessions(store)
    await write(store, OPENED, QUEUED)
    store.records = 0
    found = await sessions.get("s")
    assert found is not None
    assert (found.agent, found.seq, [turn.status for turn in found.state.open_turns]) == ("poet", 2, ["queued"])
    assert store.records == 2
    await write(store, STARTED)
    store.records = 0
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(sessions.get("s"))
    found = await sessions.get("s")
    assert found is not None
    assert (found.seq, [turn.status for turn in found.state.open_turns]) == (3, ["running"])
    assert store.records <= 3 + 2 * 3, "whoever comes while it is read may read it once more, and not more"


async def test_a_session_that_is_not_there_is_none_and_is_not_kept() -> None:
    sessions = StoredSessions(MemoryStore())
    assert await sessions.get("s") is None
    assert await sessions.agent_of("s") is None
    assert sessions._kept == {}


async def test_only_the_sessions_looked_at_last_are_kept() -> None:
    store = MemoryStore()
    sessions = StoredSessions(store)
    for number in range(KEPT + 1):
        await write(store, OPENED, session=str(number))
        assert await sessions.get(str(number)) is not None
    assert len(sessions._kept) == KEPT
    sessions.discard(str(KEPT))
    assert list(sessions._kept) == [str(number) for number in range(1, KEPT)]


async def test_there_is_work_in_a_session_that_a_crash_has_ended_in_the_middle_of_a_turn_or_that_was_left() -> None:
    async def left(*events: Any, resume: bool = False) -> bool:
        store = MemoryStore()
        await write(store, OPENED, *events)
        return await StoredSessions(store).has_turns(SessionInfo("s", 1 + len(events)), resume)

    assert await left(QUEUED)
    assert await left(QUEUED, STARTED)
    assert await left(QUEUED, SessionClosed(**PLACE, reason="shutdown", left=1))
    assert not await left()
    assert not await left(SessionClosed(**PLACE, reason="closed"))
