"""Owns waking a run that blocks its own thread, where no event loop can look at the time. Knows nothing of laws.

A watcher thread sends the blocked thread a signal whose handler raises `Hang` on the spot. That needs a system with
signals and the main thread; elsewhere a blocked run waits for the timeout of the test itself.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .inject_chain import Chain, place, short
from .inject_loop import Hang, RunLoop

__all__ = ["BlockWatch", "watching"]

# Nobody else uses it: it belongs to a kind of timer that Python programs do not set.
WAKE: signal.Signals | None = getattr(signal, "SIGVTALRM", None)
# A loop that still turns notices by itself that its time is up, and can tell more.
PATIENCE = 0.3
POLL_SECONDS = 0.1


class BlockWatch:
    """What the watcher looks at: the loop of the run in progress."""

    def __init__(self) -> None:
        self.loop: RunLoop | None = None
        self._over = threading.Event()

    def serve(self, thread: int) -> None:
        """The watcher's part."""
        while not self._over.wait(POLL_SECONDS):
            loop = self.loop
            if loop is not None and time.monotonic() > loop.ends_at + PATIENCE and WAKE is not None:
                signal.pthread_kill(thread, WAKE)

    def end(self) -> None:
        """Let the watcher go."""
        self._over.set()

    def wake(self, number: int, frame: FrameType | None) -> None:
        """The handler, in the blocked thread. Too late if the run has ended in the meantime."""
        loop, self.loop = self.loop, None
        if loop is None:
            return
        chain: Chain = []
        while frame is not None:
            chain.insert(0, (frame.f_code, frame.f_lineno))
            frame = frame.f_back
        file, line = place(chain)
        text = f"it did not end within {loop.seconds:g} s, and blocks the whole event loop at {short(file)}:{line}"
        loop.allow(PATIENCE)  # to hand this on; otherwise the loop itself would say the time is up, and not where
        raise Hang(text)


@contextmanager
def watching() -> Iterator[BlockWatch]:
    """Inside the block the loop that is set on the watch cannot block this thread for ever."""
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
