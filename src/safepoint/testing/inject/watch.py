"""Owns ending a run that blocks its own thread, so that its event loop cannot check the time. Knows nothing of laws.

A watcher thread sends the blocked thread a signal whose handler raises `Hang`. That needs a system with signals, and
the main thread; otherwise a blocked run ends with the timeout of the test itself.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .chain import Chain, place, short
from .loop import Hang, RunLoop

__all__ = ["BlockWatch", "watching"]

# A signal that programs do not use: it belongs to a kind of timer that Python programs rarely set.
WAKE: signal.Signals | None = getattr(signal, "SIGVTALRM", None)
# How long to wait after the time limit: a loop that still runs raises `Hang` itself, with more information.
PATIENCE = 0.3
POLL_SECONDS = 0.1


class BlockWatch:
    """The watch over the loop of the current run."""

    def __init__(self) -> None:
        self.loop: RunLoop | None = None
        self._over = threading.Event()

    def serve(self, thread: int) -> None:
        """Run the watcher thread.

        Args:
            thread: The thread to watch.
        """
        while not self._over.wait(POLL_SECONDS):
            loop = self.loop
            if loop is not None and time.monotonic() > loop.ends_at + PATIENCE and WAKE is not None:
                signal.pthread_kill(thread, WAKE)

    def end(self) -> None:
        """End the watcher thread."""
        self._over.set()

    def wake(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal in the blocked thread. Does nothing if the run has ended meanwhile."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        chain: Chain = []
        while frame is not None:
            chain.insert(0, (frame.f_code, frame.f_lineno))
            frame = frame.f_back
        file, line = place(chain)
        text = f"it did not end within {loop.seconds:g} s, and blocks the whole event loop at {short(file)}:{line}"
        loop.allow(PATIENCE)  # time to propagate this error; otherwise the loop would raise one without the place
        raise Hang(text)


@contextmanager
def watching() -> Iterator[BlockWatch]:
    """Watch the loop that is set as `BlockWatch.loop`: inside the block it cannot block this thread forever."""
    watch = BlockWatch()
    if WAKE is None or threading.current_thread() is not threading.main_thread():
        yield watch
        return
    before = signal.signal(WAKE, watch.wake)
    thread = threading.Thread(target=watch.serve, args=(threading.get_ident(),), name="safepoint-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()
        signal.signal(WAKE, before)
