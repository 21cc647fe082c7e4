"""Owns how many tool calls of one answer run at once. Knows nothing of tools and of their results."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..abort import AbortError, AbortSignal, Guard
from ..receipt import LeafKind

__all__ = ["MAX_THREADS", "CallSlots"]

# How many synchronous calls of one answer run at once if the agent does not say it: each has a thread or a process of
# its own, and a model may write hundreds of calls. Async calls cost little, and have no limit of their own.
MAX_THREADS = 32


class CallSlots:
    """The limit for the calls of one answer.

    Args:
        max_parallel: How many calls run at once, of every kind. By default only those in threads and processes are
            limited.
    """

    def __init__(self, max_parallel: int | None) -> None:
        self._max_parallel = max_parallel
        self._slots = asyncio.Semaphore(MAX_THREADS if max_parallel is None else max_parallel)

    @asynccontextmanager
    async def hold(self, kind: LeafKind, signal: AbortSignal) -> AsyncIterator[None]:
        """Hold a slot inside the block, after waiting for it in the order of the calls.

        An abort ends the wait, and the block begins without a slot: it looks at the signal before it does anything.
        """
        if self._max_parallel is None and kind not in ("thread", "process"):
            yield
            return
        held = await self._taken(signal)
        try:
            yield
        finally:
            if held:
                self._slots.release()

    async def _taken(self, signal: AbortSignal) -> bool:
        if not self._slots.locked():
            return await self._slots.acquire()  # at once: the calls of an answer begin in one round of the event loop
        try:
            with Guard(signal):
                return await self._slots.acquire()
        except AbortError:
            return False
