"""Owns the loop's checkpoint: loaded once, written before anyone is told, deleted only when it is used up.

Knows nothing of when a loop ends.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from ..run.checkpoints import CheckpointError, Checkpoints, CheckpointUnreadable
from .exit import CheckpointReport
from .saved import SavedLoop, read, write

__all__ = ["Keeper"]

T = TypeVar("T")


class Keeper(Generic[T]):
    """One key in one store, for the life of one loop."""

    def __init__(self, checkpoints: Checkpoints, key: str, item_type: Any, partial_type: Any) -> None:
        self._checkpoints = checkpoints
        self._key = key
        self._item_type = item_type
        self._partial_type = partial_type
        self._loaded = False  # there is one in the store that stands for work not done yet

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """No other loop has this key meanwhile. Raises: CheckpointInUse."""
        async with self._checkpoints.lease(self._key):
            yield

    async def load(self) -> SavedLoop[T]:
        """What the loop before left behind. What nobody can read is set aside. Raises: CheckpointError."""
        try:
            text = await self._checkpoints.load(self._key)
            if not text:
                return SavedLoop()
            saved: SavedLoop[T] = read(text, self._item_type, self._partial_type)
        except (CheckpointUnreadable, ValueError, KeyError, TypeError) as problem:
            where = await self._checkpoints.set_aside(self._key, str(problem))
            raise CheckpointError(
                f"checkpoint {self._key!r} cannot be read ({problem}); it was set aside: {where}"
            ) from problem
        self._loaded = True
        return saved

    async def turn_done(self, saved: SavedLoop[T]) -> None:
        """A turn ended well: what was loaded must not be done again after a crash."""
        if self._loaded:
            self._loaded = not saved.empty
            await self._put(saved)

    async def end(self, saved: SavedLoop[T], *, skip: bool, broken: bool) -> CheckpointReport:
        """Write down what is left. `broken`: planning failed; what was loaded stays as it is, for another try."""
        try:
            if broken and not skip:
                return CheckpointReport("kept" if self._loaded else "none")
            return await self._put(SavedLoop() if skip else saved)
        except Exception as error:  # how the loop ended does not change by that
            return CheckpointReport("failed", error)

    async def _put(self, saved: SavedLoop[T]) -> CheckpointReport:
        if saved.empty:
            return CheckpointReport("deleted" if await self._checkpoints.delete(self._key) else "none")
        await self._checkpoints.save(self._key, write(saved, self._item_type, self._partial_type))
        return CheckpointReport("saved")
