"""Owns the tests that look inside, beside those of `tests/abort/test_signal.py`.

The signal: the WHATWG rules case by case, and what they mean with threads, deadlines and a garbage collector.
"""

import threading
from functools import partial

from safepoint.abort import (
    AbortController,
    AbortSignal,
)
from safepoint.abort.deadline import _kept
from tests.conftest import counts


def test_listeners_that_come_and_go_on_a_composite_in_other_threads_never_lose_one_that_stays():
    for _ in range(counts(300, 10_000)):
        controller, timeout = AbortController(), AbortSignal.timeout(3600)
        signal = AbortSignal.any([controller.signal, timeout])
        barrier = threading.Barrier(3)
        heard: list[int] = []

        def churn(signal: AbortSignal = signal, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            while not signal.aborted:
                signal.add_listener(lambda: None).remove()

        threads = [threading.Thread(target=churn, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        barrier.wait(10)
        signal.add_listener(partial(heard.append, 1))
        controller.abort()
        for thread in threads:
            thread.join(10)
        assert heard == [1], "the listener was in its place before the abort"
        assert (controller.signal.observers, timeout.observers) == (0, 0)
        assert timeout not in _kept
