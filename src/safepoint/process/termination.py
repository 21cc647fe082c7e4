"""Owns the end of a program on SIGTERM or Ctrl-C, and its time limit. Knows nothing of what the program does.

The signals are handled in a thread of their own. Python runs signal handlers only in the main thread, and only when
that executes Python code, so an event loop that is blocked in C code would delay them without limit. The interpreter
also writes each signal number to a file descriptor, from the C signal handler and at once; the thread reads from there.
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
def graceful_shutdown(on_signal: Callable[[], object], within: float, name: str) -> Iterator[None]:
    """Shut the program down on the first SIGTERM or Ctrl-C inside the block. Must be used in the main thread.

    Args:
        on_signal: Called in another thread; it makes the block end.
        within: The seconds after which the process exits, if the block has not ended by then.
        name: The name of the program, for the log message in that case.
    """
    ended = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def forward(number: int, frame: object) -> None:
        with suppress(OSError):  # the buffer is full, so the thread will wake up anyway
            writer.send(bytes([number]))

    def listen() -> None:
        while (number := reader.recv(1)) and number[0] not in ENDS:
            if previous >= 0:  # another signal: pass it on to the previous owner of the wake-up descriptor
                with suppress(OSError):
                    os.write(previous, number)
        if number:
            on_signal()
            if not ended.wait(within):
                log.error("%s did not end within %g s: what still runs is cut off", name, within)
                os._exit(1)

    handlers = {number: signal.signal(number, forward) for number in ENDS}
    # The interpreter writes to this descriptor at once; `forward` runs later, in the main thread.
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=listen, name="safepoint-shutdown", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        ended.set()
        writer.close()
        thread.join()
        reader.close()
