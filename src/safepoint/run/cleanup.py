"""The call of one clean-up: on the event loop if it is async or belongs to the loop, otherwise in a thread.

A synchronous function may block, and on the loop it would stop every other run. A thread can be waited for up to a time
limit, and left behind. `settle.py` decides when clean-ups run, and handles their errors.
"""

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable

from ..abort.event_loop import post
from ..abort.guard import discard
from ..abort.threads import start_in_thread
from .context import Cleanup, on_loop
from .interrupt.code_location import thread_place

__all__ = ["CleanupCall", "runs_on_loop"]

log = logging.getLogger("safepoint")

# Objects of these modules may be used only in the thread of their event loop. Their synchronous methods do not block.
LOOP_MODULES = {"asyncio", "_asyncio", "uvloop"}


def runs_on_loop(cleanup: Cleanup) -> bool:
    """Whether a clean-up is an async function, or a method of an asyncio object, such as `writer.close`."""
    while isinstance(cleanup, functools.partial):
        cleanup = cleanup.func
    if inspect.iscoroutinefunction(cleanup if inspect.isroutine(cleanup) else type(cleanup).__call__):
        return True
    owner = getattr(cleanup, "__self__", None)
    return inspect.isasyncgen(owner) or any(
        kind.__module__.partition(".")[0] in LOOP_MODULES for kind in type(owner).__mro__
    )


class CleanupCall:
    """One call of a clean-up. If `await run()` is interrupted, the thread goes on; a second `run()` waits for it."""

    def __init__(self, cleanup: Cleanup) -> None:
        self._cleanup = cleanup
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[object] | None = None
        self._thread_id: int | None = None
        self._abandoned = False

    @property
    def in_thread(self) -> bool:
        """Whether it runs in a thread and has not returned."""
        return self._ended is not None and not self._ended.done()

    async def run(self) -> None:
        """Call it and wait for it.

        Raises:
            BaseException: What the clean-up raised.
        """
        if runs_on_loop(self._cleanup):
            result = self._cleanup()
        else:
            if self._ended is None:
                self._ended = start_in_thread(self._run_in_thread)
            await asyncio.wait([self._ended])
            result = self._ended.result()
        if inspect.isawaitable(result):
            await result

    def leave(self) -> str | None:
        """Leave it behind if its thread still runs: its events are dropped, and its end is logged.

        Returns:
            Where the thread is; None if there is none, or it has not begun.
        """
        if self._ended is None or self._ended.done():
            return None
        self._abandoned = True
        self._ended.add_done_callback(self._on_late_end)
        return None if self._thread_id is None else thread_place(self._thread_id)

    def _run_in_thread(self) -> object:
        self._thread_id = threading.get_ident()
        on_loop.set(self._post)  # in a copy of the caller's context, which ends with this call
        return self._cleanup()

    def _post(self, call: Callable[[], object]) -> None:
        if not self._abandoned:
            post(self._loop, call)

    def _on_late_end(self, ended: "asyncio.Future[object]") -> None:
        error = ended.exception()
        if error is None:
            discard(ended.result())
        log.warning(
            "The clean-up %r %s after the run had gone on without it",
            self._cleanup,
            "returned" if error is None else f"raised {type(error).__name__}",
        )
