"""Owns the tests that look inside, beside those of `tests/session/test_session.py`.

A live session as its users hold it.
"""

import gc
import tracemalloc
from collections.abc import Sequence

from safepoint.session import MemoryStore, Session
from safepoint.session.store import LogRecord
from tests.conftest import counts
from tests.kit.agents import talker


class Paperless(MemoryStore):
    """Keeps nothing: what grows is not the store."""

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        return frozenset()


async def test_many_turns_keep_only_what_was_said_and_how_each_ended() -> None:
    few, many = counts(100, 9_500), 500
    async with Session.open("s", agent=talker(*["ok"] * (few + many)), store=Paperless()) as session:
        model = session.agent.model

        async def run(number: int) -> None:
            for _ in range(number):
                result = await session.send("hello")
                session.forget(result.turn_id)  # so that the model is not given more and more to read
            await session.saved()

        await run(few)
        gc.collect()
        tracemalloc.start()
        await run(many)
        model.requests.clear()  # type: ignore[attr-defined]
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] / many
        tracemalloc.stop()
    assert kept < 4000, f"{kept:.0f} bytes per turn"
