"""Owns the tests that look inside, beside those of `tests/abort/test_deadline.py`.

Deadlines: pulled when asked, one timer when observed, nothing kept that nobody needs.
"""

import gc
import weakref
from functools import partial
from typing import Any

import pytest

from safepoint.abort import AbortSignal
from safepoint.abort.deadline import _forked, _kept
from safepoint.testing import FakeClock


def test_a_timeout_is_collected_at_once_without_listeners_and_kept_while_it_has_one(clock: FakeClock):
    lonely = weakref.ref(AbortSignal.timeout(1200))
    assert lonely() is None
    heard: list[int] = []
    registration = AbortSignal.timeout(5).add_listener(lambda: heard.append(1))
    gc.collect()
    clock.advance(5)
    assert heard == [1]
    assert not registration.remove()
    assert not _kept


def test_a_timeout_whose_listener_was_removed_is_collected_and_its_timer_disarmed(clock: FakeClock):
    signal = AbortSignal.timeout(1200)
    signal.add_listener(lambda: None).remove()
    ref = weakref.ref(signal)
    assert clock.pending == 1
    del signal
    assert ref() is None
    assert clock.pending == 0
    assert not _kept


def test_a_deadline_is_kept_until_the_last_of_its_listeners_is_removed(clock: FakeClock):
    signal = AbortSignal.timeout(5)
    first, second = signal.add_listener(lambda: None), signal.add_listener(lambda: None)
    first.remove()
    assert signal in _kept
    second.remove()
    assert signal not in _kept


def test_a_deadline_that_is_listened_to_while_its_last_listener_is_removed_is_kept(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    signal = AbortSignal.timeout(5)
    heard: list[int] = []
    registration = signal.add_listener(lambda: None)

    class Kept(dict[Any, bool]):
        def pop(self, key: Any, default: Any = None) -> Any:
            popped = super().pop(key, default)
            if not heard and signal.observers == 0:
                signal.add_listener(partial(heard.append, 1))
                super().pop(key, default)  # in the other order: its entry was there before ours was removed
            return popped

    kept = Kept(_kept)
    monkeypatch.setattr("safepoint.abort.deadline._kept", kept)
    registration.remove()
    assert signal in kept
    clock.advance(5)
    assert heard == [1]
    assert signal not in kept


def test_after_a_fork_the_timer_is_set_once_more_and_not_at_each_observation(clock: FakeClock):
    signal = AbortSignal.timeout(5)
    heard: list[int] = []
    signal.add_listener(partial(heard.append, 1))
    _forked()
    assert clock.pending == 1
    for number in (2, 3):
        signal.add_listener(partial(heard.append, number))
    assert clock.pending == 2, "one of before, which has no thread after a real fork, and a new one"
    clock.advance(5)
    assert heard == [1, 2, 3]
