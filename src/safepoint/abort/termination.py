"""Owns how a program hears that it should end (SIGTERM, Ctrl-C), and that it does in time. Knows nothing of its work.

A thread of its own hears the signals, so that whatever lets other threads run cannot keep them from being heard: not
even an event loop that is blocked in C code.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["graceful_shutdown"]

log = logging.getLogger("safepoint")
ENDS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def graceful_shutdown(told: Callable[[], object], within: float, who: str) -> Iterator[None]:
    """Inside the block the first signal calls `told`, in another thread; so many seconds later the process is cut off.

    Belongs to the main thread. `who` is named if it has to be cut off.
    """
    gone = threading.Event()
    heard, tell = socket.socketpair()
    tell.setblocking(False)

    def poke(number: int, frame: object) -> None:
        with suppress(OSError):  # it is full: then it has been told
            tell.send(bytes([number]))

    def listen() -> None:
        while (number := heard.recv(1)) and number[0] not in ENDS:
            if other >= 0:  # for whoever listened before; if that is full, it has been told
                with suppress(OSError):
                    os.write(other, number)
        if number:
            told()
            if not gone.wait(within):
                log.error("%s did not end within %g s: what still runs is cut off", who, within)
                os._exit(1)

    before = {number: signal.signal(number, poke) for number in ENDS}
    # Python calls a handler in the main thread, when that comes back from C; the system writes here at once.
    other = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=listen, name="the end", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(other)
        for number, handler in before.items():
            signal.signal(number, handler)
        gone.set()
        tell.close()
        thread.join()
        heard.close()
