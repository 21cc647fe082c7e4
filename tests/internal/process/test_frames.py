"""Owns the proof that a message between two processes arrives whole, or not at all."""

import os
import selectors
import socket
import threading

import pytest

from safepoint.process.frames import FrameChannel, FrameSocket, frame


@pytest.fixture
def line():
    """Two ends of a line: the parent's, which never blocks, and the child's, which waits."""
    ours, theirs = socket.socketpair()
    with ours, theirs, selectors.DefaultSelector() as selector:
        yield FrameChannel(ours, selector), theirs, selector, ours


def test_a_message_that_does_not_fit_is_sent_as_the_other_side_takes_it(line):
    parent, end, selector, _ = line
    message = os.urandom(3_000_000)
    parent.send(message)
    received: list[bytes | None] = []
    reader = threading.Thread(target=lambda: received.append(FrameSocket(end).receive(10)))
    reader.start()
    while selector.get_map() and not received:
        for key, _ in selector.select(0.01):
            key.data()
    reader.join(10)
    assert received == [message]
    [key] = selector.get_map().values()
    assert key.events == selectors.EVENT_READ


def test_a_message_counts_when_all_of_it_has_come(line):
    parent, end, _, _ = line
    whole = frame(b"x" * 100)
    for part in (whole[:3], whole[3:20], whole[20:-1]):
        end.sendall(part)
        parent.transfer()
        assert not parent.received.complete
        assert parent.received.take() is None
    end.sendall(whole[-1:])
    parent.transfer()
    assert parent.received.complete
    assert parent.received.take() == b"x" * 100
    assert parent.received.take() is None


def test_messages_that_come_together_are_taken_one_by_one(line):
    parent, end, _, _ = line
    parent.send(b"one")
    parent.send(b"")
    parent.send(b"three")
    frames = FrameSocket(end)
    assert [frames.receive(10) for _ in range(2)] == [b"one", b""]
    assert frames.wait(0)  # what is left is in the buffer, and no longer in the socket
    assert frames.receive(0) == b"three"
    with pytest.raises(TimeoutError):
        frames.receive(0)
    for message in (b"four", b"five"):
        assert frames.send(message)
    parent.transfer()
    assert [parent.received.take() for _ in range(3)] == [b"four", b"five", None]


def test_a_message_of_an_end_that_did_not_listen_still_counts(line):
    parent, end, selector, _ = line
    parent.send(b"never read")
    end.sendall(frame(b"said"))
    end.close()
    parent.send(b"never sent")
    parent.transfer()
    assert parent.received.take() == b"said"
    assert not selector.get_map()


def test_a_line_that_is_torn_in_the_middle_of_a_frame_gives_nothing(line):
    parent, end, _, ours = line
    parent.send(b"first")
    ours.sendall(frame(b"second")[:-1])
    ours.close()
    frames = FrameSocket(end)
    assert frames.receive(10) == b"first"
    assert frames.receive(10) is None
    assert not frames.send(b"to nobody")


def test_a_line_that_is_reset_gives_nothing(line):
    _, end, _, ours = line
    end.sendall(b"never read")
    ours.close()
    assert FrameSocket(end).receive(10) is None
