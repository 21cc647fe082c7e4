"""Owns the tests of what the API takes in, and of what it gives out."""

from typing import Any

import pytest
from pydantic import ValidationError

from safepoint import Aborted, AbortReason, Receipt
from safepoint.agent import AgentResult
from safepoint.run import StopAck
from safepoint.server import schemas
from safepoint.session import ChangeAck, SessionView, TurnView


@pytest.mark.parametrize("made", ["a", "A1", "7.b_c:d~e-f", "x" * 200])
def test_an_id_is_made_of_letters_digits_and_few_signs(made: str):
    assert schemas.NewSessionBody(id=made).id == made


@pytest.mark.parametrize("made", ["", ".", "-a", "a/b", "a b", "é", "a\n", "x" * 201, "a%2fb", "\x00"])
def test_anything_else_is_no_id(made: str):
    with pytest.raises(ValidationError):
        schemas.NewSessionBody(id=made)


def test_what_is_left_out_has_its_usual_value():
    assert schemas.NewMessageBody(text="x").when_busy == "queue"
    assert schemas.StopBody().at is None


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\x85", "\xa0", "\x00", "x" * 200_001])
def test_a_message_says_something_and_not_too_much(text: str):
    with pytest.raises(ValidationError):
        schemas.NewMessageBody(text=text)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 86_401])
def test_seconds_are_positive_and_bounded(seconds: float):
    with pytest.raises(ValidationError):
        schemas.StopBody(within=seconds)


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), 86_401, True, "2"])
def test_what_is_left_behind_is_so_after_a_bounded_time(seconds: object):
    with pytest.raises(ValidationError):
        schemas.StopBody.model_validate({"abandon": seconds})


def test_not_waiting_at_all_is_a_time():
    assert schemas.StopBody.model_validate({"abandon": 0}).abandon == 0
    assert schemas.StopBody().abandon is None


def test_a_field_nobody_knows_is_a_mistake():
    with pytest.raises(ValidationError, match="Extra inputs"):
        schemas.EditBody.model_validate({"text": "x", "txet": "y"})


def test_nothing_is_guessed_from_another_type():
    with pytest.raises(ValidationError):
        schemas.AnswerBody.model_validate({"question_id": "q", "text": 1})


def test_a_turn_that_has_not_ended_has_no_outcome():
    assert schemas.turn_data(TurnView("t", "running")) == {"id": "t", "status": "running", "outcome": None}


def test_a_turn_says_what_goes_on_with_it():
    assert schemas.turn_data(TurnView("t", "running", continued_by="t2"))["continued_by"] == "t2"


def test_an_outcome_is_plain_data():
    reason = AbortReason("user", "enough")
    outcome = Aborted(reason, Receipt(reason, 1.0, 2.0), AgentResult("half"), finished_at=2.0)
    data: Any = schemas.turn_data(TurnView("t", "aborted", outcome))["outcome"]
    assert (data["status"], data["reason"]["message"], data["partial"]["text"]) == ("aborted", "enough", "half")


def test_a_session_has_its_turns():
    data = schemas.session_data(SessionView("s", "helper", 7, True, (TurnView("t", "queued"),)))
    assert data == {
        "id": "s",
        "agent": "helper",
        "last_seq": 7,
        "live": True,
        "turns": [{"id": "t", "status": "queued", "outcome": None}],
    }


def test_an_acknowledgement_is_told_as_it_is():
    assert schemas.ack_data(StopAck("accepted", "accepted", "stops at NOW", "t")) == {
        "status": "accepted",
        "level": "accepted",
        "message": "stops at NOW",
        "id": "t",
    }


def test_a_change_says_how_far_it_has_come():
    assert schemas.change_data(ChangeAck(True, "recorded")) == {"accepted": True, "level": "recorded", "message": ""}
