"""Owns the tests of what servers and workers say to each other: it comes back as it was sent, or is refused."""

from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint.abort import AbortReason
from safepoint.errors import UsageError
from safepoint.run import StopAt
from safepoint.session import SessionBusy, SessionEnded
from safepoint.worker import BrokerError, WorkerInfo
from safepoint.worker.protocol import (
    AnswerCall,
    Assignment,
    CloseCall,
    ContinueCall,
    EditCall,
    ForgetCall,
    Placement,
    ReleaseWhenIdle,
    RemoveCall,
    Reply,
    SendCall,
    Stats,
    StopCall,
    Unreadable,
    call_from_json,
    from_json,
    queue_of,
    to_json,
)

WHY = AbortReason("user", "enough", "page.py:1").to_dict()
CALLS = [
    StopCall("t", "AFTER_TOOLS", 1.5, WHY),
    StopCall("t", "SAFE_POINT", scope="tree"),
    StopCall("t"),
    AnswerCall("q", "blue"),
    EditCall("t", "other words"),
    RemoveCall("t"),
    ForgetCall("t"),
    ContinueCall("t"),
    ContinueCall(None),
    CloseCall("enough"),
    ReleaseWhenIdle(),
]
INFO = WorkerInfo("w", ("a", "b"), 1, 8, "process", "0.1", 42, "here", 1.5, True, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("call", CALLS, ids=repr)
def test_a_call_arrives_as_what_it_was(call: Any):
    assert call_from_json(to_json(call)) == call


@pytest.mark.parametrize(
    "said",
    [
        SendCall("t", "🛑", 2.5, "steer"),
        Placement("a", "w"),
        Assignment("s", "a", "w", 3, False),
        INFO,
        Reply(busy=2.0),
    ],
    ids=lambda said: type(said).__name__,
)
def test_what_is_said_is_read_back(said: Any):
    assert from_json(type(said), to_json(said)) == said


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(0, 1e6))
def test_any_text_travels(text: str, seconds: float):
    assert from_json(SendCall, to_json(SendCall("t", text, seconds))) == SendCall("t", text, seconds)


def test_what_a_newer_version_adds_is_ignored():
    assert from_json(Placement, b'{"agent": "a", "colour": "red"}') == Placement("a")


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", b'{"agent": 3}', b"[]", b"\xff", b'{"kind": "fly"}'])
def test_what_cannot_be_understood_is_refused_and_shown(data: bytes):
    for read in (partial(from_json, Placement), call_from_json, partial(from_json, StopCall)):
        with pytest.raises(Unreadable, match="cannot be understood"):
            read(data)


def test_a_point_to_stop_at_that_nobody_knows_is_refused():
    with pytest.raises(Unreadable):
        call_from_json(b'{"kind": "stop", "turn_id": "t", "at": "SOME_DAY"}')


def test_a_stop_tells_when_and_why():
    call: StopCall = from_json(StopCall, to_json(StopCall("t", "SAFE_POINT", None, WHY)))
    assert (call.stop_at, call.abort_reason) == (StopAt.SAFE_POINT, AbortReason("user", "enough", "page.py:1"))
    assert StopCall("t").stop_at is None


@pytest.mark.parametrize("error", [UsageError("u"), SessionBusy("b"), SessionEnded("e"), BrokerError("x")], ids=repr)
def test_an_error_is_raised_again_where_it_is_read(error: Exception):
    reply: Reply = from_json(Reply, to_json(Reply.from_error(error)))
    assert (reply.ok, reply.status) == (False, "unknown")  # and no stop was accepted
    with pytest.raises(type(error), match=str(error)):
        reply.raise_error()


def test_an_error_of_another_kind_keeps_its_name():
    with pytest.raises(BrokerError, match="ZeroDivisionError: by zero"):
        Reply.from_error(ZeroDivisionError("by zero")).raise_error()


def test_an_answer_without_an_error_is_returned():
    reply = Reply(True, turn_id="t")
    assert reply.raise_error() is reply


def test_an_answer_from_a_blocked_process_says_for_how_long():
    reply = Reply(status="accepted", message="it stops", turn_id="t1")
    assert reply.while_blocked(0.0) is reply
    blocked = reply.while_blocked(1.26)
    assert (blocked.status, blocked.turn_id, blocked.busy) == ("accepted", "t1", 1.26)
    assert blocked.message == "it stops (its event loop has not moved for 1.3 s)"


def test_a_session_is_for_any_worker_with_its_agent_or_for_one():
    assert queue_of(Placement("painter")) == ("any", "painter")
    assert queue_of(Placement("painter", "w1")) == ("at", "w1")


def test_what_a_worker_counts_is_part_of_what_it_says():
    assert set(asdict(Stats())) <= set(asdict(INFO))


def test_what_an_older_server_or_worker_does_not_say_is_not_made_up():
    stop: StopCall = from_json(StopCall, b'{"turn_id": "t", "at": "SAFE_POINT", "kind": "stop"}')
    assert stop.scope is None
    reply: Reply = from_json(Reply, b'{"ok": true}')
    assert not reply.recorded


def test_a_new_worker_has_counted_nothing():
    assert set(asdict(Stats()).values()) == {0}
