"""Owns the framing of messages between two processes: eight bytes of length, then the message.

The length tells a complete message from the beginning of one whose sender was killed. What is in a message is known to
its sender and its receiver alone.
"""

import selectors
import socket
import struct
import threading

__all__ = ["HEADER", "FrameBuffer", "FrameChannel", "FrameSocket", "frame"]

HEADER = struct.Struct(">Q")
CHUNK = 1 << 18  # how many bytes are read at once


def frame(message: bytes) -> bytes:
    """Encode a message as a frame."""
    return HEADER.pack(len(message)) + message


class FrameBuffer:
    """The bytes that have been received, out of which complete messages are taken."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, received: bytes) -> None:
        """Add bytes."""
        self._received += received

    @property
    def complete(self) -> bool:
        """Whether the whole of the next message has arrived."""
        size = len(self._received) - HEADER.size
        return size >= 0 and size >= HEADER.unpack_from(self._received)[0]

    def take(self) -> bytes | None:
        """Return the next message and remove it; None if it is not complete."""
        if not self.complete:
            return None
        end = HEADER.size + HEADER.unpack_from(self._received)[0]
        message = bytes(memoryview(self._received)[HEADER.size : end])
        del self._received[:end]
        return message


class FrameSocket:
    """The end of a socket on which messages are waited for, as a child process does.

    Any thread may send. Only one may receive at a time.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = FrameBuffer()
        self._send_lock = threading.Lock()

    def send(self, message: bytes) -> bool:
        """Send a message. Returns False if the other side is gone."""
        try:
            with self._send_lock:
                self._end.sendall(frame(message))
        except OSError:
            return False
        return True

    def receive(self, seconds: float | None = None) -> bytes | None:
        """Wait for the next message. Returns None if the other side is gone.

        A message that has already arrived is returned even if no time is left.

        Args:
            seconds: How long to wait for each part of it; None for no limit.

        Raises:
            TimeoutError: Nothing came in that time.
        """
        while (message := self._buffer.take()) is None:
            # A wait that times out while this process is frozen reports nothing, even if messages have arrived
            # meanwhile: look once more.
            if not self.wait(seconds) and not self.wait(0.0):
                raise TimeoutError
            try:
                received = self._end.recv(CHUNK)
            except OSError:  # the other side was killed before it had read everything that we sent
                received = b""
            if not received:
                return None
            self._buffer.feed(received)
        return message

    def wait(self, seconds: float | None) -> bool:
        """Wait until there is something to receive, but no longer than this. Any thread."""
        if self._buffer.complete:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            return bool(selector.select(seconds))


class FrameChannel:
    """The end of a socket that never blocks: what cannot be transferred now waits for the selector of its owner.

    The selector's data of the socket is `transfer`, which the owner calls when the socket is ready.
    """

    def __init__(self, end: socket.socket, selector: selectors.BaseSelector) -> None:
        end.setblocking(False)
        selector.register(end, selectors.EVENT_READ, self.transfer)
        self._end = end
        self._selector = selector
        self._open = True
        self._unsent = bytearray()
        self.received = FrameBuffer()

    def send(self, message: bytes) -> None:
        """Send a message, now or as soon as the other side accepts it."""
        self._unsent += frame(message)
        self.transfer()

    def transfer(self) -> None:
        """Send and receive what is possible now."""
        while self._open and (self._transmit() or self._receive()):
            pass
        if self._open:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._selector.modify(self._end, wanted, self.transfer)

    def _transmit(self) -> bool:
        try:
            sent = self._end.send(self._unsent)
        except BlockingIOError:
            return False
        except OSError:  # the other side no longer reads; its answer or its end will follow
            sent = len(self._unsent)
        del self._unsent[:sent]
        return sent > 0

    def _receive(self) -> bool:
        try:
            received = self._end.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # the other side ended without having read everything
            received = b""
        self.received.feed(received)
        if not received:
            self._open = False
            self._selector.unregister(self._end)
        return bool(received)
