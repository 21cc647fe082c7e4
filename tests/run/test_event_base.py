"""What every event says of its place."""

from safepoint.events import ProgressMade, event_from_json
from safepoint.run import Context


def test_an_event_says_inside_of_which_tool_calls_it_happened():
    outer = Context("agent")
    assert outer.stamp()["calls"] == ()
    inner = outer.child("clerk")
    inner.calls = (*outer.calls, "call-1")
    assert ProgressMade(**inner.child("look").stamp(), message="half way").calls == ("call-1",)


def test_a_record_of_a_version_that_did_not_know_of_calls_can_be_read():
    text = '{"v": 1, "kind": "progress_made", "run_id": "r", "path": ["agent"], "at": 1.0, "message": "half way"}'
    assert event_from_json(text).calls == ()
