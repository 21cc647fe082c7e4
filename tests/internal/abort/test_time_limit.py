"""A deadline that goes to another process: the same reason, and the time on the way counts."""

import time

from safepoint.abort import AbortController, AbortReason, AbortSignal
from safepoint.abort.time_limit import TimeLimit, deadline_from, limit_of

NEVER = AbortSignal.never()


def test_the_time_on_the_way_counts():
    limit = limit_of(AbortSignal.any([AbortSignal.timeout(100), AbortSignal.timeout(50), NEVER]))
    assert limit is not None
    assert limit.seconds == 50
    assert 40 < limit.remaining <= 50
    late = TimeLimit(30.0, time.monotonic() - 20, 30.0, "deadline", "here:1")
    assert 5 < deadline_from(late).remaining() <= 10
    over = TimeLimit(30.0, time.monotonic() - 31, 30.0, "deadline", "here:1")
    reason = deadline_from(over).reason
    assert reason == AbortReason("deadline", "30 s passed")
    assert reason.origin == "here:1"
    assert limit_of(AbortController().signal) is None
