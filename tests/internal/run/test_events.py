"""Owns the tests that look inside, beside those of `tests/run/test_events.py`.

Events: a closed union of frozen values in the past tense.
"""

from typing import get_args

from safepoint.events import Event
from safepoint.run import events


def test_the_union_holds_every_event_of_the_module():
    members = {kind.__name__ for kind in get_args(Event)}
    assert members == {name for name in events.__all__ if name != "Event"}
