"""Owns the tests of what the API takes in."""

import pytest
from pydantic import ValidationError

from safepoint.server import requests


@pytest.mark.parametrize("made", ["a", "A1", "7.b_c:d~e-f", "x" * 200])
def test_an_id_is_made_of_letters_digits_and_few_signs(made: str):
    assert requests.NewSessionBody(id=made).id == made


@pytest.mark.parametrize("made", ["", ".", "-a", "a/b", "a b", "é", "a\n", "x" * 201, "a%2fb", "\x00"])
def test_anything_else_is_no_id(made: str):
    with pytest.raises(ValidationError):
        requests.NewSessionBody(id=made)


def test_what_is_left_out_has_its_usual_value():
    assert requests.NewMessageBody(text="x").when_busy == "queue"
    assert requests.StopBody().at is None


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\x85", "\xa0", "\x00", "x" * 200_001])
def test_a_message_says_something_and_not_too_much(text: str):
    with pytest.raises(ValidationError):
        requests.NewMessageBody(text=text)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 86_401])
def test_seconds_are_positive_and_bounded(seconds: float):
    with pytest.raises(ValidationError):
        requests.StopBody(within=seconds)


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), 86_401, True, "2"])
def test_what_is_left_behind_is_so_after_a_bounded_time(seconds: object):
    with pytest.raises(ValidationError):
        requests.StopBody.model_validate({"abandon": seconds})


def test_not_waiting_at_all_is_a_time():
    assert requests.StopBody.model_validate({"abandon": 0}).abandon == 0
    assert requests.StopBody().abandon is None


def test_a_field_nobody_knows_is_a_mistake():
    with pytest.raises(ValidationError, match="Extra inputs"):
        requests.EditBody.model_validate({"text": "x", "txet": "y"})


def test_nothing_is_guessed_from_another_type():
    with pytest.raises(ValidationError):
        requests.AnswerBody.model_validate({"question_id": "q", "text": 1})
