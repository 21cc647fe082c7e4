"""Events: a closed union of frozen values in the past tense, which records of older versions can be read as."""

from typing import get_args

import pytest

from safepoint import events
from safepoint.events import Event, ProgressMade, RunEnded, StopRequested, TurnQueued, event_from_json
from safepoint.run import Context

TURN = '"v": 1, "run_id": "t", "path": ["agent"], "at": 1.0, "turn_id": "t"'


def test_the_union_holds_every_event_of_the_module():
    members = {kind.__name__ for kind in get_args(Event)}
    assert members == {*events.__all__} - {"Event", "event_from_json", "event_to_json"}


def test_the_kind_on_the_wire_is_the_name_in_small_letters():
    for member in get_args(Event):
        words = "".join("_" + c.lower() if c.isupper() else c for c in member.__name__).lstrip("_")
        assert member.__dataclass_fields__["kind"].default == words


def test_events_are_frozen():
    event = RunEnded(run_id="r", path=("run",), at=0.0, status="completed")
    with pytest.raises(AttributeError):
        event.status = "failed"  # type: ignore[misc]


def test_an_event_says_inside_of_which_tool_calls_it_happened():
    outer = Context("agent")
    assert outer.stamp()["calls"] == ()
    inner = outer.child("clerk")
    inner.calls = (*outer.calls, "call-1")
    assert ProgressMade(**inner.child("look").stamp(), message="half way").calls == ("call-1",)


def test_a_record_of_a_version_that_did_not_know_of_calls_can_be_read():
    text = '{"v": 1, "kind": "progress_made", "run_id": "r", "path": ["agent"], "at": 1.0, "message": "half way"}'
    assert event_from_json(text).calls == ()


def test_a_stop_without_a_word_of_leaving_things_behind_can_be_read():
    event = event_from_json(
        f'{{{TURN}, "kind": "stop_requested", "at_point": "NOW", "reason": "", "reason_kind": "user"}}'
    )
    assert isinstance(event, StopRequested)
    assert event.abandon is None


def test_a_queued_turn_that_continues_nothing_can_be_read():
    event = event_from_json(f'{{{TURN}, "kind": "turn_queued", "messages": null}}')
    assert isinstance(event, TurnQueued)
    assert event.continues is None
