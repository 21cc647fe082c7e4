"""The laws, one by one, over records made by hand: what each accepts, what it names, and how endings are read."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from safepoint.abort import AbortReason
from safepoint.testing import DEFAULT_LAWS, Point, RecordedEffect, RecordedRun, RunEnding, pairs

OURS = AbortReason("user", "abort_everywhere, point 1")


POINT = Point(number=1, what="await", task="main", nth=1, file="a.py", line=7, chain=("a.py:7 work",))


CLEAN = RecordedRun(point=None, mode=None, reason=None, ending=RunEnding("completed", 42))


ABORTED = RecordedRun(point=POINT, mode="abort", reason=OURS, ending=RunEnding("aborted", reason=OURS), clean=CLEAN)


CANCELLED = replace(ABORTED, mode="cancel", reason=None, ending=RunEnding("cancelled"))


@dataclass
class ToolStarted:
    call_id: str


@dataclass
class ToolEnded:
    call_id: str


def change(run: RecordedRun, **changes: Any) -> RecordedRun:
    return replace(run, **changes)


def breaches(run, *only):
    return [(law.__name__, message) for law in only or DEFAULT_LAWS for message in law(run)]


@pytest.mark.parametrize("run", [CLEAN, ABORTED, CANCELLED, replace(ABORTED, ending=RunEnding("completed", 42))])
def test_a_good_run_breaks_no_law(run):
    assert breaches(run) == []


def test_every_law_says_in_a_sentence_what_must_be_true():
    assert all((law.__doc__ or "").strip() for law in DEFAULT_LAWS)
    assert len({law.__name__ for law in DEFAULT_LAWS}) == len(DEFAULT_LAWS)


@pytest.mark.parametrize("status", ["failed", "timed_out", "cancelled"])
@pytest.mark.parametrize("mode", ["abort", "inside", "twice"])
def test_an_abort_that_comes_out_as_anything_else_is_a_breach(mode, status):
    run = replace(ABORTED, mode=mode, ending=RunEnding(status))
    assert breaches(run) == [("outcome_is_the_stop", f"an abort is never reported as {status}: {status}")]


def test_another_reason_than_ours_is_a_breach():
    ((law, message),) = breaches(replace(ABORTED, ending=RunEnding("aborted", reason=AbortReason("parent", "x"))))
    assert law == "outcome_is_the_stop"
    assert "parent: x instead of user: abort_everywhere, point 1" in message


def test_an_abort_without_a_reason_is_a_breach():
    assert breaches(replace(ABORTED, ending=RunEnding("aborted"))) != []


def test_our_reason_counts_also_after_a_journey_through_json():
    travelled = AbortReason.from_dict(OURS.to_dict())
    assert breaches(replace(ABORTED, ending=RunEnding("aborted", reason=travelled))) == []


def test_completing_after_an_interruption_is_a_breach():
    run = replace(ABORTED, ending=RunEnding("completed", 42), interrupted=("a.py:7",))
    ((law, message),) = breaches(run)
    assert law == "outcome_is_the_stop"
    assert "interrupted it at a.py:7" in message


def test_completing_without_ever_looking_at_the_signal_is_a_breach():
    run = replace(ABORTED, ending=RunEnding("completed", 42), clean=replace(CLEAN, observed=False))
    assert [law for law, _ in breaches(run)] == ["outcome_is_the_stop"]


@pytest.mark.parametrize("status", ["completed", "aborted", "failed"])
def test_a_cancelled_task_from_which_no_cancellation_comes_out_is_a_breach(status):
    ((law, message),) = breaches(replace(CANCELLED, ending=RunEnding(status, 42)))
    assert law == "outcome_is_the_stop"
    assert f"what came out is {status}" in message


@pytest.mark.parametrize("status", ["aborted", "failed", "cancelled", "timed_out"])
def test_a_clean_run_that_does_not_complete_is_a_breach(status):
    assert [law for law, _ in breaches(replace(CLEAN, ending=RunEnding(status)))] == ["outcome_is_the_stop"]


def test_another_value_than_always_is_a_breach_if_there_is_one_value():
    run = replace(ABORTED, ending=RunEnding("completed", None))
    assert breaches(run) == [("no_result_lost", "completed with None, but the result is 42")]
    assert breaches(replace(run, clean=replace(CLEAN, repeatable=False))) == []


@pytest.mark.parametrize(
    ("field", "law"),
    [
        ("tasks", "no_task_left"),
        ("threads", "no_thread_left"),
        ("processes", "no_process_left"),
        ("descriptors", "no_descriptor_left"),
        ("streams", "no_stream_open"),
        ("timers", "no_timer_armed"),
    ],
)
def test_what_is_left_is_named_one_by_one(field, law):
    for run in (CLEAN, ABORTED, CANCELLED):
        found = breaches(change(run, **{field: ("first", "second")}))
        assert [name for name, _ in found] == [law, law]
        assert found[0][1].endswith(": first")
        assert found[1][1].endswith(": second")


@pytest.mark.parametrize("field", ["tasks", "threads", "processes"])
def test_what_the_receipt_lists_as_still_running_may_be_left(field):
    run = replace(ABORTED, ending=RunEnding("aborted", reason=OURS, still_running=1))
    assert breaches(change(run, **{field: ("listed",)})) == []
    assert breaches(change(run, **{field: ("listed", "not listed")})) != []


def test_the_timer_of_a_task_that_is_left_is_not_told_again():
    assert [law for law, _ in breaches(replace(ABORTED, tasks=("task",), timers=("its timer",)))] == ["no_task_left"]


def test_listeners_left_are_counted():
    message = "listeners or guards are left on the signal: 2"
    assert breaches(replace(CANCELLED, listeners=2)) == [("no_listener_left", message)]


def test_only_late_effects_that_are_no_cleanup_are_breaches():
    early, late, cleanup = (
        RecordedEffect("read", False, False, "a.py:1"),
        RecordedEffect("write", True, False, "a.py:2"),
        RecordedEffect("close", True, True, "a.py:3"),
    )
    message = "an effect after the stop: 'write', recorded at a.py:2"
    assert breaches(replace(ABORTED, effects=(early, late, cleanup))) == [("no_effect_after_the_stop", message)]


def test_the_run_after_must_complete_with_the_same_value():
    good = replace(CLEAN, clean=CLEAN)
    assert breaches(replace(ABORTED, again=good)) == []
    for ending in (
        RunEnding("failed", error=ValueError("busy")),
        RunEnding("completed", 0),
        RunEnding("hung", error=OSError("x")),
    ):
        ((law, message),) = breaches(replace(ABORTED, again=replace(good, ending=ending)))
        assert law == "works_again"
        assert message.startswith("run once more")


@pytest.mark.parametrize(
    "events",
    [
        (),
        ("run_started", "run_ended"),
        ("RunStarted", "ToolStarted", "ToolEnded", "RunEnded"),
        ("run_started", "question_asked", "question_withdrawn", "run_ended"),
        ("session.opened", "turn started", "turn ended", "session.closed"),
        (ToolStarted("a"), ToolStarted("b"), ToolEnded("b"), ToolEnded("a")),
        (ToolStarted("a"), ToolEnded("a"), ToolStarted("a"), ToolEnded("a")),
        ("text", "text"),
    ],
)
def test_events_that_end_what_they_began_are_accepted(events):
    assert breaches(replace(ABORTED, events=events)) == []


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (("run_started", "tool_started", "run_ended"), "tool_started has no end among the events"),
        ((ToolStarted("a"), ToolStarted("b"), ToolEnded("b")), "ToolStarted has no end among the events"),
        ((ToolStarted("a"), ToolStarted("a"), ToolEnded("a")), "ToolStarted has no end among the events"),
        (("run_ended", "run_started"), "run_started has no end among the events"),
        (("run_started", "run_ended", "text"), "the last event is text, not the end of run_started"),
        (
            (SimpleNamespace(kind="run_started"), SimpleNamespace(kind="run_ended"), "text"),
            "the last event is text, not the end of run_started",
        ),
    ],
)
def test_events_that_do_not_fit_are_breaches(events, message):
    assert breaches(replace(ABORTED, events=events)) == [("events_are_paired", message)]


def test_pairs_and_the_terminal_event_can_be_chosen():
    law = pairs({"begun": ("over", "lost")}, terminal="turn_over")
    assert breaches(replace(ABORTED, events=("turn_begun", "part_begun", "part_lost", "turn_over")), law) == []
    assert breaches(replace(ABORTED, events=("TurnBegun", "TurnOver")), law) == []
    message = "the last event is turn_lost, not the terminal turn_over"
    assert breaches(replace(ABORTED, events=("turn_begun", "turn_lost")), law) == [("events_are_paired", message)]
