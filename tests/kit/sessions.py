"""Reading sessions in tests: what a session, a store or a file has, and waiting for an event."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from safepoint.agent import validate
from safepoint.events import Event, StopRequested, TextStreamed, TurnEnded
from safepoint.messages import Message
from safepoint.session import LoggedEvent, Session
from safepoint.session.log import decode_record


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


async def read_all(events: AsyncGenerator[LoggedEvent, None]) -> list[LoggedEvent]:
    """Everything, until the session is closed."""
    return [recorded async for recorded in events]


async def stored(store: Any, session: str = "s") -> list[Event]:
    """What the store knows of a session."""
    return [decode_record(record).event for record in await store.read(session, 0, 1_000_000)]


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


def lines(path: Path) -> list[list[str]]:
    """The words of each line of a file that may not exist yet."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
