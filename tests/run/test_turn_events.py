"""The events of turns and sessions, as older versions have written them."""

from typing import get_args

from safepoint.events import Event, StopRequested, TurnQueued, event_from_json
from safepoint.run import turn_events

PLACE = '"v": 1, "run_id": "t", "path": ["agent"], "at": 1.0, "turn_id": "t"'


def test_each_of_them_is_an_event():
    assert {getattr(turn_events, name) for name in turn_events.__all__} <= set(get_args(Event))


def test_a_stop_without_a_word_of_leaving_things_behind_can_be_read():
    event = event_from_json(
        f'{{{PLACE}, "kind": "stop_requested", "at_point": "NOW", "reason": "", "reason_kind": "user"}}'
    )
    assert isinstance(event, StopRequested)
    assert event.abandon is None


def test_a_queued_turn_that_continues_nothing_can_be_read():
    event = event_from_json(f'{{{PLACE}, "kind": "turn_queued", "messages": null}}')
    assert isinstance(event, TurnQueued)
    assert event.continues is None
