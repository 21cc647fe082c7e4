"""Owns the tests that look inside, beside those of `tests/run/owned/test_connections.py`.

A thread that is blocked in a connection is freed from it, and nobody else's connection is touched.
"""

import socket
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from safepoint.process.group import PROC
from safepoint.run.owned import connections
from tests.kit.waiting import wait_until


class Pair:
    """Two connected sockets, kept where no frame of the test itself holds them."""

    def __init__(self) -> None:
        self.ends = socket.socketpair()

    def close(self) -> None:
        for end in self.ends:
            end.close()


def test_a_connection_that_merely_lies_in_a_variable_is_not_touched():
    pair = Pair()
    waits = Pair()

    def work() -> None:
        connection = pair.ends[0]  # held, and not waited for
        waits.ends[0].recv(1)
        assert connection.fileno() >= 0

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: thread.native_id and connections._system_call(thread.native_id or 0) not in (None, (-1, -1)))
    try:
        assert find(thread) is None
    finally:
        waits.ends[1].sendall(b"x")
        thread.join(30)
    pair.ends[1].sendall(b"still open")
    assert pair.ends[0].recv(10) == b"still open"
    pair.close()
    waits.close()


def blocked_reader(pair: Pair) -> threading.Thread:
    def read() -> None:
        mine = pair.ends[0]
        mine.recv(1)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: thread.native_id and connections._system_call(thread.native_id or 0) not in (None, (-1, -1)))
    return thread


def find(thread: threading.Thread, proc: str = PROC) -> object:
    return connections.blocked_in(thread.ident or 0, thread.native_id or 0, sys._current_frames(), proc=proc)


def test_a_connection_that_another_thread_holds_too_is_left_alone():
    pair = Pair()
    thread = blocked_reader(pair)
    done = threading.Event()

    def hold() -> None:
        shared = pair.ends[0]
        done.wait(30)
        assert shared.fileno() >= 0

    other = threading.Thread(target=hold)
    other.start()
    try:
        wait_until(lambda: find(thread) is None)
        done.set()
        other.join(30)
        wait_until(lambda: find(thread) is not None)
    finally:
        done.set()
        pair.ends[1].shutdown(socket.SHUT_RDWR)
        thread.join(30)
        pair.close()


@pytest.mark.parametrize("module", ["httpcore._sync.http2", "httpcore._sync.http11"])
def test_a_connection_under_http2_is_left_alone(module: str):
    pair = Pair()
    names: dict[str, Any] = {"__name__": module}
    exec("def read(pair):\n    connection = pair.ends[0]\n    connection.recv(1)\n", names)
    thread = threading.Thread(target=names["read"], args=(pair,))
    thread.start()
    wait_until(lambda: thread.native_id and connections._system_call(thread.native_id or 0) not in (None, (-1, -1)))
    try:
        assert (find(thread) is None) == module.endswith("http2")
    finally:
        pair.ends[1].sendall(b"x")
        thread.join(30)
    pair.close()


def test_where_the_system_does_not_tell_only_the_call_at_hand_counts():
    pair = Pair()
    thread = blocked_reader(pair)
    free = find(thread, proc="nowhere")
    assert callable(free)
    free()
    thread.join(30)
    free()  # once more, on a connection that is over: nothing happens
    pair.close()
    free()


def test_a_thread_that_is_gone_is_blocked_in_nothing():
    assert connections.blocked_in(0, 0, {}) is None


def test_things_that_only_look_like_connections_run_none_of_their_code():
    class Trap:
        def __getattr__(self, name: str) -> object:
            raise AssertionError("asked")

    assert list(connections._connections_of("x", Trap())) == []
    assert list(connections._connections_of("x", SimpleNamespace(_sock="no socket"))) == []
    assert list(connections._connections_of("x", 3)) == []


def test_a_proxy_in_a_variable_of_another_thread_keeps_nobody_from_being_freed():
    class Gone:
        pass

    pair, ready, done = Pair(), threading.Event(), threading.Event()

    def hold() -> None:
        thing = Gone()
        proxy = weakref.proxy(thing)
        del thing
        ready.set()
        done.wait(30)
        assert type(proxy) is weakref.ProxyType

    other = threading.Thread(target=hold)
    other.start()
    assert ready.wait(30)
    thread = blocked_reader(pair)
    free = find(thread)
    done.set()
    other.join(30)
    assert callable(free)
    free()
    thread.join(30)
    pair.close()


def test_what_a_neighbour_deletes_is_not_kept_alive_by_a_look():
    pair, looked, deleted, gone = Pair(), threading.Event(), threading.Event(), []

    class Thing:
        pass

    def neighbour() -> None:
        thing = Thing()
        weakref.finalize(thing, gone.append, 1)
        looked.wait(30)
        del thing
        deleted.set()
        done.wait(30)

    done = threading.Event()
    other = threading.Thread(target=neighbour)
    other.start()
    thread = blocked_reader(pair)
    assert find(thread) is not None
    looked.set()
    assert deleted.wait(30)
    try:
        assert gone == [1]
    finally:
        done.set()
        other.join(30)
        pair.ends[1].shutdown(socket.SHUT_RDWR)
        thread.join(30)
        pair.close()


@pytest.mark.parametrize("layer", ["_sock", "sock", "_socket", "socket"])
def test_a_thin_layer_over_a_socket_is_seen_through(layer):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert list(connections._connections_of("it", SimpleNamespace(**{layer: ours}))) == [(f"it.{layer}", ours)]


def test_who_holds_which_connection_is_found_once_for_all_threads_of_a_look(monkeypatch):
    pairs, looked = [Pair(), Pair()], list[object]()
    threads = [blocked_reader(pair) for pair in pairs]
    found = connections._holders

    def holders(frames: Any) -> Any:
        looked.append(frames)
        return found(frames)

    monkeypatch.setattr(connections, "_holders", holders)
    reading = connections.ThreadFrames(sys._current_frames())
    frees = [connections.blocked_in(thread.ident or 0, thread.native_id or 0, reading) for thread in threads]
    assert None not in frees
    assert len(looked) == 1
    for free, thread in zip(frees, threads, strict=True):
        assert free is not None
        free()
        thread.join(30)
    for pair in pairs:
        pair.close()
