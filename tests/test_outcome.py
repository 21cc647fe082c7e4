"""Outcomes: plain positional values that are matched to the end and unwrap to a value or the right error."""

import pytest

from safepoint.abort import AbortError, AbortReason, AbortTimeout
from safepoint.run import Aborted, Completed, Failed, Outcome, Receipt, TimedOut

RECEIPT = Receipt(None, None, 0.0)


def told(outcome: Outcome[str]) -> str:
    match outcome:
        case Completed(value):
            return value
        case Aborted(reason):
            return f"aborted: {reason.message}"
        case TimedOut(_, _, partial):
            return f"timed out with {partial}"
        case Failed(error):
            return f"failed: {error}"


def test_outcomes_are_matched_by_position():
    assert told(Completed("done")) == "done"
    assert told(Aborted(AbortReason("user", "stop"), RECEIPT, "half")) == "aborted: stop"
    assert told(TimedOut(AbortReason("deadline"), RECEIPT, "half")) == "timed out with half"
    assert told(Failed(LookupError("gone"), RECEIPT)) == "failed: gone"


def test_each_has_its_status_and_its_times():
    outcomes: list[Outcome[int]] = [
        Completed(1, started_at=1.0, finished_at=2.0),
        Aborted(AbortReason(), RECEIPT, started_at=1.0, finished_at=2.0),
        TimedOut(AbortReason("timeout"), RECEIPT, started_at=1.0, finished_at=2.0),
        Failed(ValueError(), RECEIPT, started_at=1.0, finished_at=2.0),
    ]
    assert [outcome.status for outcome in outcomes] == ["completed", "aborted", "timed_out", "failed"]
    assert {(outcome.started_at, outcome.finished_at) for outcome in outcomes} == {(1.0, 2.0)}


def test_unwrap_gives_the_value_or_raises_what_happened():
    assert Completed("value").unwrap() == "value"
    with pytest.raises(AbortError) as aborted:
        Aborted(AbortReason("user", "stop"), RECEIPT, "half").unwrap()
    assert (aborted.value.reason.message, aborted.value.partial) == ("stop", "half")
    with pytest.raises(AbortTimeout):
        TimedOut(AbortReason("deadline"), RECEIPT).unwrap()
    error = LookupError("gone")
    with pytest.raises(LookupError) as failed:
        Failed(error, RECEIPT).unwrap()
    assert failed.value is error


def test_outcomes_are_frozen():
    with pytest.raises(AttributeError):
        Completed(1).value = 2  # type: ignore[misc]
