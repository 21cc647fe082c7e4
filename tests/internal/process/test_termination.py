"""Owns the tests that look inside, beside those of `tests/process/test_termination.py`.

Owns the tests of how a program hears that it should end: whatever it is doing, once, and in time.
"""

import os
import signal
import socket
import threading
import time

import pytest

from safepoint.process.termination import ENDS, graceful_shutdown
from tests.process.test_termination import SECONDS


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_is_told_once_in_another_thread(number: int):
    told: list[threading.Thread] = []
    heard = threading.Event()

    def tell() -> None:
        told.append(threading.current_thread())
        heard.set()

    with graceful_shutdown(tell, SECONDS, "the test"):
        os.kill(os.getpid(), number)
        assert heard.wait(SECONDS)
        os.kill(os.getpid(), number)
    assert len(told) == 1
    assert told[0] is not threading.main_thread()
    assert not told[0].is_alive()


def test_afterwards_everything_is_as_it_was():
    before = [signal.getsignal(number) for number in ENDS]
    threads = threading.active_count()
    with graceful_shutdown(lambda: None, SECONDS, "the test"):
        assert [signal.getsignal(number) for number in ENDS] != before
    assert [signal.getsignal(number) for number in ENDS] == before
    assert threading.active_count() == threads


def test_other_signals_still_reach_whoever_listened_before():
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ours.settimeout(SECONDS)
    handler = signal.signal(signal.SIGUSR1, lambda *about: None)
    before = signal.set_wakeup_fd(theirs.fileno())
    try:
        with graceful_shutdown(lambda: None, SECONDS, "the test"):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert ours.recv(1) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(before) == theirs.fileno()
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
        ours.close()
        theirs.close()


def test_what_ends_in_time_is_not_cut_off():
    with graceful_shutdown(lambda: None, 0.05, "the test"):
        pass
    time.sleep(0.1)  # real time: it would be cut off by now


def test_other_signals_are_no_reason_to_end():
    handler = signal.signal(signal.SIGUSR1, lambda *about: None)
    ended = threading.Event()
    try:
        with graceful_shutdown(ended.set, SECONDS, "the test"):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not ended.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, handler)


def test_what_does_not_end_in_time_is_cut_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    codes: list[int] = []
    cut_off = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        cut_off.set()

    monkeypatch.setattr(os, "_exit", leave)
    with graceful_shutdown(lambda: None, 0.01, "the test"):
        os.kill(os.getpid(), signal.SIGTERM)
        assert cut_off.wait(SECONDS)
    assert codes == [1]
    assert "the test did not end within 0.01 s" in caplog.text
