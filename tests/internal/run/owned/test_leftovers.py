"""Owns the tests that look inside, beside those of `tests/run/owned/test_leftovers.py`.

What goes on when a run is over: tasks, threads and processes, each with a line in the receipt.
"""

from safepoint.run.owned.leftovers import executor_call_behind


def test_a_wait_for_something_else_has_no_thread_behind_it():
    assert executor_call_behind(None) is None
    assert executor_call_behind([1]) is None
    assert executor_call_behind([(print, None), (len, None)]) is None
