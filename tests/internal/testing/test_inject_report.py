"""Owns the tests that look inside, beside those of `tests/internal/testing/test_inject_report.py`.

The report: one paragraph per breach, the modes together, and what was not tried is said.
"""

from safepoint.testing import Ignore
from safepoint.testing.inject import report as inject_report
from tests.testing.test_inject_report import report


def test_what_was_ignored_and_what_time_jumped_over_is_said_and_passes():
    good = report(ignored=((Ignore(name="serve"), 4),), jumped_over=tuple(f"thread {number}" for number in range(9)))
    good.check()
    lines = str(good).splitlines()
    assert lines[1] == "  not counted: 4, by Ignore(name='serve')"
    assert lines[2] == "  fake time jumped although it had not moved for a second: thread 0"
    assert len(lines) == 2 + inject_report.LISTED
