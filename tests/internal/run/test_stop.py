"""Owns the tests that look inside, beside those of `tests/run/test_stop.py`.

The stop algebra: requests join to the same in any order and only get stricter; a tree of runs feels them.
"""

import math

import pytest
from hypothesis import given

from safepoint.abort import AbortReason
from safepoint.errors import UsageError
from safepoint.run import StopAt, StopRequest
from safepoint.run.stop import NO_STOP, StopOptions
from safepoint.testing import FakeClock
from tests.run.test_stop import family, request, requests


@given(requests, requests, requests)
def test_requests_join_the_same_in_any_order(a: StopRequest, b: StopRequest, c: StopRequest):
    assert a.join(b) == b.join(a)
    assert a.join(b).join(c) == a.join(b.join(c))
    assert a.join(a) == a
    assert a.join(NO_STOP) == a


def test_nobody_has_asked_at_first(clock: FakeClock):
    _, root, _, _ = family(clock)
    assert not root.requested
    assert not root.due(StopAt.TURN_END)
    assert root.request is NO_STOP
    assert root.reason == AbortReason("user", "")


def asked(at: StopAt | None = None, **given: object) -> StopRequest:
    before, now = given.pop("before", NO_STOP), given.pop("now", 10.0)
    return StopOptions(at, **given).request(before, now=now, origin="x.py:1")  # type: ignore[arg-type]


def test_the_first_calls_default_is_now_and_with_a_time_it_is_a_safe_point():
    assert asked().at is StopAt.NOW
    assert asked().scope == "tree"
    assert asked(within=2.0).at is StopAt.SAFE_POINT
    assert asked(within=2.0).deadline == 12.0


def test_none_in_a_later_call_leaves_as_it_is():
    before = asked(StopAt.AFTER_MODEL, reason="first")
    later = asked(within=1.0, before=before, now=20.0)
    assert later.at is StopAt.AFTER_MODEL
    assert later.reason is None
    joined = before.join(later)
    assert (joined.at, joined.scope, joined.deadline) == (StopAt.AFTER_MODEL, "root", 21.0)
    assert joined.reason is before.reason
    assert joined.reason is not None
    assert joined.reason.origin == "x.py:1"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"scope": "all"}, "scope must be 'root' or 'tree', not 'all'"),
        ({"at": "now"}, "at must be a StopAt"),
        ({"within": 0}, "within must be more than 0 seconds, not 0; to stop at once use at=StopAt.NOW"),
        ({"within": -1}, "within"),
        ({"within": math.nan}, "within"),
        ({"abandon": -1}, "abandon must be a relative number of seconds, 0 or more, not -1"),
        ({"abandon": math.nan}, "abandon"),
    ],
)
def test_a_wrong_call_is_refused_with_its_fix(given: dict[str, object], told: str):
    with pytest.raises(UsageError, match=told):
        asked(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [True, "2", None])
def test_only_a_number_is_a_time_after_which_things_are_left_behind(given: object):
    if given is None:
        assert asked(abandon=None).abandon is None
        return
    with pytest.raises(TypeError, match="abandon must be a number of seconds"):
        asked(abandon=given)


def test_a_stop_that_only_says_abandon_is_now_and_a_later_one_leaves_the_rest_as_it_is():
    assert asked(abandon=0).at is StopAt.NOW
    before = asked(StopAt.AFTER_MODEL, reason="first")
    later = asked(abandon=2, before=before, now=20.0)
    assert (later.at, later.abandon, later.reason) == (StopAt.AFTER_MODEL, 2.0, None)
    assert asked(within=3.0, abandon=2).at is StopAt.SAFE_POINT


def test_a_request_says_what_will_happen():
    assert str(request()) == "at SAFE_POINT"
    assert str(asked(abandon=2)) == "at NOW; what has not ended in 2 s is left behind"
    assert str(asked(abandon=0)) == "at NOW; what has not ended by then is left behind"
