"""Owns the tests that look inside, beside those of `tests/worker/test_remote_tool.py`.

Owns the tests of a sub-agent on another machine: its abort follows it, and whoever runs again finds it.
"""

from safepoint.events import ToolCalled
from safepoint.run import Completed
from safepoint.session.log import decode_record
from safepoint.session.session_state import OWN_EVENTS
from tests.kit.workers import New, each_broker
from tests.worker.test_remote_tool import heard, lost_parent, results


@each_broker
async def test_a_parent_whose_process_died_goes_on_with_its_child_and_tells_each_event_once(new: New):
    async with lost_parent(new) as (lost, released), lost.opened(resume=True) as session:
        (turn,) = session.turns.values()
        released.set()
        outcome = (await turn).outcome
        assert isinstance(outcome, Completed)
        assert results(outcome.value)[-1] == "it was done once"
        assert len(await lost.host.sessions()) == 1
        events = [decode_record(record).event for record in await lost.store.read("p", 0, 1000)]
        inside = [event.kind for event in events if event.run_id not in ("t1", turn.id, "p")]
        there = [one.event.kind async for one in heard(lost.host, lost.child) if not isinstance(one.event, OWN_EVENTS)]
        assert inside == there
        keys = {event.idempotency_key for event in events if isinstance(event, ToolCalled) and not event.calls}
        assert keys == {"p:t1:parent:call-1"}
