"""A cell that is played looks at caller, events and store, and notices if one of them says something else."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from safepoint import Completed
from safepoint.agent import AgentResult
from safepoint.events import AnswerStarted, TurnEnded
from safepoint.session import LocalHost, LoggedEvent, TurnView
from safepoint.testing.conformance import CASES, Cast, Rig
from tests.kit.hosts import local

CASE = next(case for case in CASES if (case.phase, case.source) == ("mid-stream", "stop by id"))


class Cheerful(LocalHost):
    """Says of every turn that it is completed."""

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        return TurnView(turn_id, "completed", Completed(AgentResult("all is well")))


class Stuttering(LocalHost):
    """Tells every end twice."""

    async def events(self, session_id: str, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        async with aclosing(super().events(session_id, after)) as events:
            async for recorded in events:
                if isinstance(recorded.event, TurnEnded):
                    yield recorded
                yield recorded


class Busy(LocalHost):
    """Asks the model once more after the stop, or says so."""

    async def events(self, session_id: str, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        async with aclosing(super().events(session_id, after)) as events:
            async for recorded in events:
                event: Any = recorded.event
                if isinstance(event, TurnEnded):
                    about: Any = {"run_id": event.run_id, "path": event.path, "at": event.at}
                    yield LoggedEvent(recorded.seq, AnswerStarted(**about, model="m", step=2))
                yield recorded


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (Cheerful, "it is completed"),
        (Stuttering, "2 ends among the events"),
        (Busy, "begun after the stop"),
    ],
)
async def test_a_host_that_does_not_agree_with_itself_is_found_out(host: type[LocalHost], told: str) -> None:
    @asynccontextmanager
    async def make(cast: Cast, on_disconnect: float | None) -> AsyncIterator[Rig]:
        wrong = host(cast.agents)
        try:
            async with local(cast, on_disconnect) as rig:
                yield replace(rig, host=wrong, session=wrong.live, store_gate=None, seconds=5.0)
        finally:
            await wrong.close()

    with pytest.raises(AssertionError, match=f"mid-stream, stop by id: .*{told}"):
        await CASE.check(make)
