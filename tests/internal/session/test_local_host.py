"""Owns the tests that look inside, beside those of `tests/session/test_local_host.py`.

The host of one process: ids that hold for life, deploys and crashes that lose nothing, sessions that recover.
"""

from safepoint.events import (
    TextStreamed,
)
from safepoint.models.scripted import Stall
from safepoint.session import LocalHost, MemoryStore
from safepoint.session.session_state import MAX_RESUMES
from safepoint.session.store import LogRecord
from tests.kit.agents import talker
from tests.kit.hosts import end_of, seen
from tests.session.test_local_host import crashed, speaking


async def test_deploys_do_not_count_as_attempts() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    for _ in range(MAX_RESUMES + 2):
        await host.close()
        host = LocalHost(talker(["more", Stall()]), store, resume=True)
        await host.recover()
        goes_on = (await host.turn("s", "t")).continued_by
        assert goes_on is not None
        await seen(host, "s", TextStreamed, run_id=goes_on)
    await host.close()


async def test_what_a_person_continues_may_be_resumed_again() -> None:
    store = MemoryStore()
    host = LocalHost(talker(["half", Stall()]), store)
    await speaking(host)
    for _ in range(MAX_RESUMES + 1):
        store = crashed(store)
        await host.close()
        host = LocalHost(talker(["more", Stall()], ["by hand", Stall()]), store, resume=True)
        await host.recover()
        turns = (await host.session("s")).turns
        if turns:
            await seen(host, "s", TextStreamed, run_id=turns[0].id)
            await (await host.live("s")).saved()
    assert not turns, "it is not resumed by itself any more"
    by_hand = await host.continue_turn("s")
    await seen(host, "s", TextStreamed, run_id=by_hand.id)
    await (await host.live("s")).saved()
    left = crashed(store)
    await host.close()
    host = LocalHost(talker("whole"), left, resume=True)
    await host.recover()
    assert (await end_of(host, "s", by_hand.id)).status == "completed"
    await host.close()


async def test_of_a_session_that_was_closed_with_nothing_left_only_the_last_event_is_read() -> None:
    class Counting(MemoryStore):
        reads = 0

        async def read(self, session: str, after: int = 0, limit: int = 1000) -> list[LogRecord]:
            self.reads += 1
            return await super().read(session, after, limit)

    store = Counting()
    host = LocalHost(talker("one"), store)
    await host.create("s")
    await host.send("s", "hi", turn_id="t")
    await end_of(host, "s", "t")
    await host.close()
    store.reads = 0
    host = LocalHost(talker(), store, resume=True)
    assert await host.recover() == []
    assert store.reads == 1
    await host.close()
