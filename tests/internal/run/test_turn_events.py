"""Owns the tests that look inside, beside those of `tests/run/test_turn_events.py`.

The events of turns and sessions, as older versions have written them.
"""

from typing import get_args

from safepoint.events import Event
from safepoint.run import turn_events


def test_each_of_them_is_an_event():
    assert {getattr(turn_events, name) for name in turn_events.__all__} <= set(get_args(Event))
