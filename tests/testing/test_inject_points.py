"""Points: what is one, how it is recognised in another run, and that something is done there exactly once."""

from safepoint.testing import point


def test_a_marker_outside_of_a_run_does_nothing():
    point("nobody listens")
