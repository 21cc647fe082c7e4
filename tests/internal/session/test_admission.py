"""What may become a turn, and stops that came before their turn."""

import pytest

from safepoint import AbortReason
from safepoint.errors import UsageError
from safepoint.messages import AssistantMessage, SystemMessage, UserMessage
from safepoint.session.turn import as_messages
from safepoint.session.turn_stops import REMEMBER_COUNT, REMEMBER_SECONDS, EarlyStops
from safepoint.testing import FakeClock

HI = UserMessage(text="hi")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("hi", (HI,)),
        (HI, (HI,)),
        (["hi", HI], (HI, HI)),
        ((SystemMessage(text="be kind"), "hi"), (SystemMessage(text="be kind"), HI)),
        ([AssistantMessage(text="before"), HI], (AssistantMessage(text="before"), HI)),
    ],
    ids=["a text", "a message", "both", "instructions", "an answer"],
)
def test_messages_come_in_all_their_forms(given, made) -> None:
    assert as_messages(given) == made


def test_a_function_is_left_to_be_called_later() -> None:
    def make(messages):
        raise AssertionError("too early")

    assert as_messages(make) is make


@pytest.mark.parametrize("given", ["", "  \n", [], ["hi", ""], UserMessage(text=" ")])
def test_an_empty_message_is_refused(given) -> None:
    with pytest.raises(UsageError, match=r"empty|no message"):
        as_messages(given)


def test_a_stop_that_came_first_is_taken_once(clock: FakeClock) -> None:
    early_stops = EarlyStops(clock)
    early_stops.remember("t", AbortReason("user", "first"))
    early_stops.remember("t", AbortReason("user", "second"))
    assert early_stops.find("other") is None
    assert early_stops.find("t") == AbortReason("user", "first"), "the first reason wins"
    assert early_stops.find("t") is not None, "the message may be sent again"
    early_stops.forget("t")
    assert early_stops.find("t") is None


def test_a_stop_that_came_first_is_forgotten_after_ten_minutes(clock: FakeClock) -> None:
    early_stops = EarlyStops(clock)
    early_stops.remember("early", AbortReason())
    clock.advance(REMEMBER_SECONDS - 1)
    early_stops.remember("late", AbortReason())
    clock.advance(1)
    assert early_stops.find("early") is None
    assert early_stops.find("late") is not None


def test_not_more_than_so_many_stops_are_remembered(clock: FakeClock) -> None:
    early_stops = EarlyStops(clock)
    for number in range(REMEMBER_COUNT + 1):
        early_stops.remember(str(number), AbortReason())
    assert early_stops.find("0") is None, "the oldest had to go"
    assert early_stops.find("1") is not None
    assert early_stops.find(str(REMEMBER_COUNT)) is not None
