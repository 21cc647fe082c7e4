"""Owns the tests that look inside, beside those of `tests/internal/testing/test_inject_watch.py`.

The watch: a run that blocks its thread is woken there and then; one that is over is left in peace.
"""

import signal
import threading

import pytest

from safepoint.testing.inject.loop import Hang, RunLoop
from safepoint.testing.inject.watch import watching

WAKE = signal.SIGVTALRM


def test_a_run_that_has_ended_is_not_disturbed():
    with watching() as watch:
        watch.loop = None
        signal.raise_signal(WAKE)


def test_the_one_in_progress_gets_hang_once():
    loop = RunLoop(None, 0.0)
    try:
        with watching() as watch:
            watch.loop = loop
            with pytest.raises(Hang, match="did not end within 0 s"):
                threading.Event().wait(10)
            assert watch.loop is None
    finally:
        loop.close()


def test_the_handler_of_before_is_put_back():
    before = signal.getsignal(WAKE)
    with watching():
        assert signal.getsignal(WAKE) != before
    assert signal.getsignal(WAKE) == before
