"""Owns the tests of what the API gives out."""

from typing import Any

from safepoint import Aborted, AbortReason, Receipt
from safepoint.agent import AgentResult
from safepoint.run import StopAck
from safepoint.server.responses import ack_data, change_data, session_data, turn_data
from safepoint.session import ChangeAck, SessionView, TurnView


def test_a_turn_that_has_not_ended_has_no_outcome():
    assert turn_data(TurnView("t", "running")) == {"id": "t", "status": "running", "outcome": None}


def test_a_turn_says_what_goes_on_with_it():
    assert turn_data(TurnView("t", "running", continued_by="t2"))["continued_by"] == "t2"


def test_an_outcome_is_plain_data():
    reason = AbortReason("user", "enough")
    outcome = Aborted(reason, Receipt(reason, 1.0, 2.0), AgentResult("half"), finished_at=2.0)
    data: Any = turn_data(TurnView("t", "aborted", outcome))["outcome"]
    assert (data["status"], data["reason"]["message"], data["partial"]["text"]) == ("aborted", "enough", "half")


def test_a_session_has_its_turns():
    data = session_data(SessionView("s", "helper", 7, True, (TurnView("t", "queued"),)))
    assert data == {
        "id": "s",
        "agent": "helper",
        "last_seq": 7,
        "live": True,
        "turns": [{"id": "t", "status": "queued", "outcome": None}],
    }


def test_an_acknowledgement_is_told_as_it_is():
    assert ack_data(StopAck("accepted", "accepted", "stops at NOW", "t")) == {
        "status": "accepted",
        "level": "accepted",
        "message": "stops at NOW",
        "id": "t",
    }


def test_a_change_says_how_far_it_has_come():
    assert change_data(ChangeAck(True, "recorded")) == {"accepted": True, "level": "recorded", "message": ""}
