"""How many events of a sub-agent on another machine are in a log: by the call, until that has ended."""

from typing import Any

from safepoint.events import TextStreamed, ToolCalled, ToolEnded
from safepoint.session.session_state import ForwardedEvents

AT: Any = {"run_id": "t", "path": ("p",), "at": 0.0}


def called(call_id: str, key: str, *around: str) -> ToolCalled:
    return ToolCalled(**AT, calls=around, call_id=call_id, name="child", arguments="{}", idempotency_key=key)


def ended(call_id: str, status: Any) -> ToolEnded:
    return ToolEnded(**AT, calls=(), call_id=call_id, name="child", status=status, content="")


def text(*calls: str) -> TextStreamed:
    return TextStreamed(**AT, calls=calls, text="hi")


def test_events_of_another_machine_are_counted_for_each_call_around_them() -> None:
    forwarded = ForwardedEvents()
    forwarded.apply(called("c1", "k1"), own=True)
    forwarded.apply(called("c2", "k2", "c1"), own=True)
    forwarded.apply(text("c1"), own=True)  # of a sub-agent in this process
    forwarded.apply(text("c1", "c2"), own=False)
    forwarded.apply(text("c1"), own=False)
    assert forwarded.counts == {"k1": 2, "k2": 1}


def test_a_call_that_was_cut_off_keeps_its_count_and_one_that_has_ended_does_not() -> None:
    forwarded = ForwardedEvents()
    forwarded.apply(called("c1", "k1"), own=True)
    forwarded.apply(text("c1"), own=False)
    forwarded.apply(ended("c1", "unknown"), own=True)
    forwarded.apply(called("c1", "k1"), own=True)  # it runs again
    forwarded.apply(text("c1"), own=False)
    assert forwarded.counts == {"k1": 2}
    forwarded.apply(ended("c1", "completed"), own=True)
    forwarded.apply(text("c1"), own=False)
    assert forwarded.counts == {}
