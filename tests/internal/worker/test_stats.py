"""Owns the tests that look inside, beside those of `tests/worker/test_stats.py`.

Owns the tests of what a worker counts.
"""

from dataclasses import asdict

from safepoint.worker.protocol import Stats


def test_a_new_worker_has_counted_nothing():
    assert set(asdict(Stats()).values()) == {0}
