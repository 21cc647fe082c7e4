"""Owns what tests of sessions stand on: agents that say what they are told, readers, and stores that misbehave."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from safepoint.agent import Agent, tool, validate
from safepoint.events import Event, StopRequested, TextStreamed, TurnEnded
from safepoint.messages import Message
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.session import LoggedEvent, MemoryStore, Session, StoreError
from safepoint.session.log import read
from safepoint.session.store import LogRecord
from safepoint.testing import drain_ready_tasks


def talker(*answers: Any, name: str = "talker", **options: Any) -> Agent:
    return Agent(ScriptedModel(*answers), name=name, **options)


def held(answer: str) -> tuple[Agent, asyncio.Event]:
    """An agent that answers when it is let go, and not before."""
    released = asyncio.Event()

    @tool
    async def hold() -> str:
        await released.wait()
        return "go"

    return talker([Call("hold")], answer, tools=[hold]), released


def asked(agent: Agent) -> int:
    """How often its model was asked."""
    model = agent.model
    assert isinstance(model, ScriptedModel)
    return len(model.requests)


def said(messages: Sequence[Message]) -> list[str]:
    """A conversation, in short."""
    return [getattr(message, "text", "") or getattr(message, "content", "") for message in messages]


async def until(session: Session, wanted: Callable[[Event], bool], after: int = 0) -> LoggedEvent:
    """The first event that fits."""
    async with aclosing(session.events(after)) as events:
        async for recorded in events:
            if wanted(recorded.event):
                return recorded
    raise AssertionError("the session was closed before that")


async def first_text(session: Session, after: int = 0) -> None:
    await until(session, lambda event: isinstance(event, TextStreamed), after)


async def happens(fact: Callable[[], object]) -> None:
    """Wait until this is true, by turns of the loop."""
    for _ in range(1000):
        if fact():
            return
        await drain_ready_tasks()
    raise AssertionError("it did not happen")


async def read_all(events: AsyncGenerator[LoggedEvent, None]) -> list[LoggedEvent]:
    """Everything, until the session is closed."""
    return [recorded async for recorded in events]


async def stored(store: Any, session: str = "s") -> list[Event]:
    """What the store knows of a session."""
    return [read(record).event for record in await store.read(session, 0, 1_000_000)]


async def ends(store: Any, session: str = "s") -> dict[str, TurnEnded]:
    """The end of each turn; there can be only one."""
    found: dict[str, TurnEnded] = {}
    for event in await stored(store, session):
        if isinstance(event, TurnEnded):
            assert event.turn_id not in found, f"turn {event.turn_id} has two ends"
            found[event.turn_id] = event
    return found


async def stops(store: Any, session: str = "s") -> list[tuple[str, str]]:
    """The recorded stops: which turn, and the kind of its reason."""
    return [(one.turn_id, one.reason_kind) for one in await stored(store, session) if isinstance(one, StopRequested)]


def is_valid(session: Session) -> bool:
    validate(session.messages)
    return True


class GatedStore(MemoryStore):
    """Writes to a session only while its gate is open. `writing` says that a write waits."""

    def __init__(self, held: str = "s") -> None:
        super().__init__()
        self.held = held
        self.gate, self.writing = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def shut(self) -> None:
        self.gate.clear()
        self.writing.clear()

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        if session == self.held and not self.gate.is_set():
            self.writing.set()
            await self.gate.wait()
        return await super().append(session, records, durable=durable)


class FailingStore(MemoryStore):
    """Fails from the first record on in which `breaks` occurs; `keeps`: after it has written it."""

    def __init__(self, breaks: str = "\0", *, keeps: bool = False) -> None:
        super().__init__()
        self.breaks, self.keeps = breaks, keeps

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        broken = any(self.breaks in record.text for record in records)
        if broken and not self.keeps:
            raise StoreError("the disk is full")
        refused = await super().append(session, records, durable=durable)
        if broken:
            raise StoreError("the disk went away")
        return refused


def lines(path: Path) -> list[list[str]]:
    """The words of each line of a file that may not exist yet."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
