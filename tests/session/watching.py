"""Owns how tests of hosts wait for what happens there: by the events that everybody can read."""

import asyncio
from contextlib import aclosing
from typing import Any

from safepoint.agent import AgentResult
from safepoint.events import Event, TurnEnded
from safepoint.run import Outcome
from safepoint.session import Host

SECONDS = 20.0


async def seen(host: Host, session_id: str, kind: type[Any], after: int = 0, **about: Any) -> Any:
    """The first event of this kind, with these fields."""

    def fits(event: Event) -> bool:
        return isinstance(event, kind) and all(getattr(event, name) == value for name, value in about.items())

    async with asyncio.timeout(SECONDS), aclosing(host.events(session_id, after)) as events:
        async for recorded in events:
            if fits(recorded.event):
                return recorded.event
    raise AssertionError(f"the host was closed before {kind.__name__}")


async def end_of(host: Host, session_id: str, turn_id: str) -> Outcome[AgentResult]:
    """How a turn ended, or the one that goes on with it, as its first id tells it."""
    after = 0
    async with asyncio.timeout(SECONDS), aclosing(host.events(session_id, after)) as events:
        async for recorded in events:
            if isinstance(recorded.event, TurnEnded):
                view = await host.turn(session_id, turn_id)
                if view.outcome is not None:
                    return view.outcome
    raise AssertionError(f"the host was closed before the end of {turn_id}")
