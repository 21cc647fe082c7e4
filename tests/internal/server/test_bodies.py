"""Owns the tests of what the API takes in."""

import pytest
from pydantic import ValidationError

from safepoint.server import bodies


@pytest.mark.parametrize("made", ["a", "A1", "7.b_c:d~e-f", "x" * 200])
def test_an_id_is_made_of_letters_digits_and_few_signs(made: str):
    assert bodies.NewSession(id=made).id == made


@pytest.mark.parametrize("made", ["", ".", "-a", "a/b", "a b", "é", "a\n", "x" * 201, "a%2fb", "\x00"])
def test_anything_else_is_no_id(made: str):
    with pytest.raises(ValidationError):
        bodies.NewSession(id=made)


def test_what_is_left_out_has_its_usual_value():
    assert bodies.NewMessage(text="x").when_busy == "queue"
    assert bodies.Stop().at is None


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\x85", "\xa0", "\x00", "x" * 200_001])
def test_a_message_says_something_and_not_too_much(text: str):
    with pytest.raises(ValidationError):
        bodies.NewMessage(text=text)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 86_401])
def test_seconds_are_positive_and_bounded(seconds: float):
    with pytest.raises(ValidationError):
        bodies.Stop(within=seconds)


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), 86_401, True, "2"])
def test_what_is_left_behind_is_so_after_a_bounded_time(seconds: object):
    with pytest.raises(ValidationError):
        bodies.Stop.model_validate({"abandon": seconds})


def test_not_waiting_at_all_is_a_time():
    assert bodies.Stop.model_validate({"abandon": 0}).abandon == 0
    assert bodies.Stop().abandon is None


def test_a_field_nobody_knows_is_a_mistake():
    with pytest.raises(ValidationError, match="Extra inputs"):
        bodies.Edit.model_validate({"text": "x", "txet": "y"})


def test_nothing_is_guessed_from_another_type():
    with pytest.raises(ValidationError):
        bodies.Answer.model_validate({"question_id": "q", "text": 1})
