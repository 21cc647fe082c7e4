"""Owns the proof that a supervisor is woken, and that nobody is harmed who wakes one that has gone."""

import time

from safepoint.process.child import Wakeups


def test_a_wait_ends_when_the_supervisor_is_woken_before_it_or_meanwhile():
    with Wakeups() as wakeups:
        wakeups.wake()
        began = time.monotonic()
        wakeups.wait(60)
        assert time.monotonic() - began < 30
        wakeups.wait(0)  # one wake-up ends one wait


def test_an_abort_that_finds_the_child_over_is_harmless():
    with Wakeups() as wakeups:
        pass
    wakeups.wake()
