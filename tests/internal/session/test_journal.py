"""Owns the tests that look inside, beside those of `tests/session/test_journal.py`.

Calls on record before their bodies begin: the wait, its end at a stop, one write for an answer, failing stores.
"""

from collections.abc import Sequence

from safepoint.abort import use_clock
from safepoint.agent import tool
from safepoint.events import CallRecorded, RecordDelayed, ToolEnded
from safepoint.models.scripted import Call
from safepoint.run import Aborted
from safepoint.session import MemoryStore, Session
from safepoint.session.store import LogRecord
from safepoint.testing import FakeClock, drain_ready_tasks
from tests.kit.agents import talker
from tests.kit.sessions import stored, until
from tests.kit.stores import GatedStore
from tests.kit.waiting import loop_until
from tests.session.test_journal import payer


class GatedCalls(GatedStore):
    """Its gate holds back only what has a record of a call in it."""

    async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
        if any("call_recorded" in record.text for record in records):
            assert durable, "it would not survive a power cut"
            return await super().append(session, records, durable=durable)
        return await MemoryStore.append(self, session, records, durable=durable)


async def test_the_body_of_a_tool_begins_only_when_its_call_is_on_record() -> None:
    store, ran = GatedCalls(), list[str]()
    store.shut()
    async with Session.open("s", agent=payer(ran), store=store) as session:
        turn = session.send("go", turn_id="1")
        await store.writing.wait()
        await drain_ready_tasks()
        assert ran == []
        store.gate.set()
        assert (await turn).status == "completed"
    assert ran == ["s:1:talker:call-1"]
    recorded = [event for event in await stored(store) if isinstance(event, CallRecorded)]
    assert [(event.effects, event.idempotency_key) for event in recorded] == [("irreversible", ran[0])]


async def test_a_tool_that_only_reads_waits_for_no_record() -> None:
    store, ran = GatedCalls(), list[str]()
    store.shut()
    async with Session.open("s", agent=payer(ran, effects="read"), store=store) as session:
        turn = session.send("go", turn_id="1")
        await store.writing.wait()
        await loop_until(lambda: ran)
        store.gate.set()
        assert (await turn).status == "completed"


async def test_the_wait_for_the_record_ends_at_a_stop_and_the_body_never_begins() -> None:
    store, ran = GatedCalls(), list[str]()
    store.shut()
    async with Session.open("s", agent=payer(ran), store=store) as session:
        turn = session.send("go", turn_id="1")
        await store.writing.wait()
        turn.stop()
        store.gate.set()
        outcome = (await turn).outcome
    assert ran == []
    assert isinstance(outcome, Aborted)
    fates = {one.name: one.fate for one in outcome.receipt.entries}
    assert fates == {"talker/model": "finished", "talker/pay": "not_started"}
    statuses = [event.status for event in await stored(store) if isinstance(event, ToolEnded)]
    assert statuses == ["not_started"]


async def test_after_a_second_of_waiting_an_event_says_so_while_it_still_waits() -> None:
    with use_clock(FakeClock()) as clock:
        store, ran = GatedCalls(), list[str]()
        store.shut()
        async with Session.open("s", agent=payer(ran), store=store) as session:
            turn = session.send("go", turn_id="1")
            await store.writing.wait()
            clock.advance(1.0)
            delayed = await until(session, lambda event: isinstance(event, RecordDelayed))
            assert isinstance(delayed.event, RecordDelayed)
            assert delayed.event.seconds == 1.0
            assert ran == []
            store.gate.set()
            await turn


async def test_the_calls_of_one_answer_are_written_together() -> None:
    class Counting(MemoryStore):
        batches: list[int]

        async def append(self, session: str, records: Sequence[LogRecord], *, durable: bool) -> frozenset[str]:
            self.batches.append(sum("call_recorded" in record.text for record in records))
            return await super().append(session, records, durable=durable)

    store = Counting()
    store.batches = []

    @tool
    async def pay(n: int) -> str:
        return "paid"

    @tool(effects="idempotent")
    def charge(n: int) -> str:
        return "charged"

    calls = [*(Call("pay", n=n) for n in range(10)), *(Call("charge", n=n) for n in range(10))]
    async with Session.open("s", agent=talker(calls, "done", tools=[pay, charge]), store=store) as session:
        assert (await session.send("go")).status == "completed"
    assert [batch for batch in store.batches if batch] == [20]
