"""Owns the tests that look inside, beside those of `tests/abort/test_reason.py`.

Reasons: typed, with the place that asked, and the same after JSON and pickling.
"""

import _thread
import copy
import json
import threading

import pytest

from safepoint.abort import AbortError, AbortReason, AbortTimeout
from safepoint.abort.reason import called_by_safepoint, caller, error_from, owner_of, reason_from
from safepoint.errors import TEXT_LIMIT, SafepointError
from tests.abort.test_reason import ALL_KINDS, pickled, through_json


def test_a_string_is_a_users_reason():
    reason = reason_from("visitor closed page", "page.py:7")
    assert (reason.kind, reason.message, reason.origin, reason.cause) == (
        "user",
        "visitor closed page",
        "page.py:7",
        None,
    )


def test_nothing_is_a_users_reason_without_words():
    reason = reason_from(None, "page.py:7")
    assert (reason.kind, reason.message, reason.origin, reason.cause) == ("user", "", "page.py:7", None)


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt("ctrl")], ids=repr)
def test_an_exception_is_an_error_with_its_cause(error):
    reason = reason_from(error, "page.py:7")
    assert reason.kind == "error"
    assert reason.message == f"{type(error).__name__}: {error}"
    assert reason.origin == "page.py:7"
    assert reason.cause is error


def test_a_reason_that_says_where_it_comes_from_is_taken_as_it_is():
    reason = AbortReason("shutdown", "drain", "worker.py:3")
    assert reason_from(reason, "page.py:7") is reason


def test_a_reason_without_a_place_gets_the_one_that_aborts():
    cause = ValueError("wrong")
    reason = reason_from(AbortReason("error", "drain", None, cause), "page.py:7")
    assert reason == AbortReason("error", "drain")
    assert reason.origin == "page.py:7"
    assert reason.cause is cause


def test_where_python_code_does_not_call_there_is_no_origin():
    origins = []
    done = threading.Event()

    class Asking:
        def __init__(self):
            origins.append(caller(1))
            done.set()

    _thread.start_new_thread(Asking, ())  # its first frame is the one that asks
    assert done.wait(10)
    assert origins == [None]
    assert caller(10_000) is None


def test_what_was_typed_is_the_users_and_what_is_frozen_is_pythons():
    assert [owner_of(file) for file in ("<stdin>", "<string>", "<frozen runpy>")] == ["user", "user", "system"]


def test_a_reason_made_of_a_long_error_is_short_also_on_its_way():
    reason = reason_from(ValueError("x" * 20_000_000), None)
    assert len(json.dumps(reason.to_dict())) < 10_000
    assert through_json(reason).to_dict() == reason.to_dict()


def test_a_long_message_is_cut_wherever_it_comes_from():
    told = "x" * 20_000_000
    short = AbortReason("user", told)
    assert len(short.message) == TEXT_LIMIT
    assert short.message.endswith("x… (20000000 characters)")
    assert reason_from(told, None) == short
    assert AbortReason.from_dict({"kind": "user", "message": told}) == short
    assert len(AbortReason.from_dict({"kind": told, "message": told}).message) == TEXT_LIMIT
    assert through_json(short) == short


@pytest.mark.parametrize("partial", [None, ["so", "far"]])
@pytest.mark.parametrize(("kind", "error_type"), [("user", AbortError), ("timeout", AbortTimeout)])
def test_an_error_survives_pickling_and_copying_with_its_reason_and_partial(kind, error_type, partial):
    error = error_from(AbortReason(kind, "stop", "page.py:7"), partial)
    for back in [*pickled(error), copy.copy(error), copy.deepcopy(error)]:
        assert type(back) is error_type
        assert back.reason == error.reason
        assert back.reason.origin == "page.py:7"
        assert back.partial == partial
        assert str(back) == str(error)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_error_is_a_timeout_exactly_when_time_ran_out(kind):
    reason = AbortReason(kind, "stop")
    error = error_from(reason, "so far")
    assert type(error) is (AbortTimeout if kind in ("deadline", "timeout") else AbortError)
    assert isinstance(error, TimeoutError) is reason.timed_out
    assert isinstance(error, SafepointError)
    assert error.reason is reason
    assert error.partial == "so far"


def test_an_error_has_nothing_partial_unless_given():
    assert error_from(AbortReason()).partial is None
    assert AbortError(AbortReason()).partial is None


def test_a_call_that_has_no_caller_is_not_safepoints():
    assert not called_by_safepoint(0)
    assert not called_by_safepoint(100_000)  # as from C: there is no such frame
