"""Owns the tests that look inside, beside those of `tests/internal/testing/test_laws.py`.

The laws, one by one, over records made by hand: what each accepts, what it names, and how endings are read.
"""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from safepoint.abort import AbortError, AbortReason, AbortTimeout
from safepoint.testing import RunEnding, laws
from tests.testing.test_laws import ABORTED, OURS, breaches


def test_a_hung_run_shows_the_chains_of_its_tasks():
    run = replace(
        ABORTED, ending=RunEnding("hung", error=TimeoutError("too long")), tasks=("task main\n  a.py:7 work",)
    )
    assert breaches(run, laws.ends) == [("ends", "the run hangs: too long\ntask main\n  a.py:7 work")]


@pytest.mark.parametrize("value", [None, 42, "aborted", SimpleNamespace(status="unheard of"), {"status": "failed"}])
def test_a_plain_value_is_a_completion(value):
    assert laws.ending_of(value) == RunEnding("completed", value)


def test_outcomes_are_read_by_their_status():
    assert laws.ending_of(SimpleNamespace(status="completed", value=1)) == RunEnding("completed", 1)
    error = ValueError("x")
    assert laws.ending_of(SimpleNamespace(status="failed", error=error)) == RunEnding("failed", error=error)
    receipt = SimpleNamespace(still_running=("a tool",))
    for outcome in (
        SimpleNamespace(status="aborted", reason=OURS, receipt=receipt),
        SimpleNamespace(status="anything", outcome=SimpleNamespace(status="aborted", reason=OURS, receipt=receipt)),
    ):
        assert laws.ending_of(outcome) == RunEnding("aborted", reason=OURS, still_running=1)


def test_exceptions_are_read_by_their_kind():
    assert laws.ending_of_error(asyncio.CancelledError()).status == "cancelled"
    assert laws.ending_of_error(ValueError("x")).status == "failed"
    assert laws.ending_of_error(AbortError(OURS)).status == "aborted"
    assert laws.ending_of_error(AbortError(OURS)).reason == OURS
    assert laws.ending_of_error(AbortTimeout(AbortReason("timeout"))).status == "timed_out"


def test_a_group_is_an_abort_if_everything_in_it_is():
    nested = ExceptionGroup("inner", [AbortError(OURS)])
    ending = laws.ending_of_error(ExceptionGroup("outer", [AbortError(OURS), nested]))
    assert (ending.status, ending.reason) == ("aborted", OURS)
    assert laws.ending_of_error(ExceptionGroup("outer", [AbortError(OURS), ValueError()])).status == "failed"


def test_a_failure_says_where_it_was_raised():
    try:
        raise ValueError("x")
    except ValueError as error:
        ending = laws.ending_of_error(error)
    assert str(ending).startswith("failed: ValueError('x') at tests/internal/testing/test_laws.py:")
