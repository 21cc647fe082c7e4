"""The events of turns and sessions, as older versions have written them."""

from safepoint.events import StopRequested, TurnQueued, event_from_json

PLACE = '"v": 1, "run_id": "t", "path": ["agent"], "at": 1.0, "turn_id": "t"'


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
