"""Events: a closed union of frozen values in the past tense."""

from typing import get_args

import pytest

from safepoint.events import Event, RunEnded


def test_the_kind_on_the_wire_is_the_name_in_small_letters():
    for member in get_args(Event):
        words = "".join("_" + c.lower() if c.isupper() else c for c in member.__name__).lstrip("_")
        assert member.__dataclass_fields__["kind"].default == words


def test_events_are_frozen():
    event = RunEnded(run_id="r", path=("run",), at=0.0, status="completed")
    with pytest.raises(AttributeError):
        event.status = "failed"  # type: ignore[misc]
