"""Owns the tests that look inside, beside those of `tests/run/test_retry.py`.

Retry: owns its sleep, wakes at once, starts nothing after an abort, keeps no state.
"""

from datetime import UTC, datetime, timedelta

import pytest

from safepoint.run.retry import as_seconds
from safepoint.testing import FakeClock


def test_the_date_of_an_object_counts_too(clock: FakeClock):
    now = datetime.fromtimestamp(clock.time(), UTC)
    assert as_seconds(now + timedelta(seconds=5)) == pytest.approx(5)
    assert as_seconds(now - timedelta(seconds=5)) == 0.0
