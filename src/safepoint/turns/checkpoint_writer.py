"""Owns the loop's checkpoint: loaded once, written before anyone is told, deleted only when it is used up.

It is written where a turn begins and where it ends, so that a crash loses no item that had waited for one. Knows
nothing of when that is.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ..errors import UsageError
from ..run.checkpoints import CheckpointError, Checkpoints, CheckpointUnreadable
from .loop_exit import CheckpointReport
from .saved_loop import InterruptedTurn, SavedLoop, adapter, read, write

__all__ = ["CheckpointWriter"]

log = logging.getLogger("safepoint")
T = TypeVar("T")


class CheckpointWriter(Generic[T]):
    """One key in one store, for the life of one loop. Raises: UsageError for types that JSON cannot hold."""

    def __init__(self, checkpoints: Checkpoints, key: str, item_type: Any, partial_type: Any) -> None:
        self._checkpoints = checkpoints
        self._key = key
        self._items = adapter("item_type", list[item_type])
        self._partials = adapter("partial_type", partial_type)
        self._loaded = False  # before that, what is in the store is not touched
        self._text: str | None = None  # what is in the store: "" is nothing, None is not known
        self._used = False  # there was one
        self._warned = False

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """No other loop has this key meanwhile. Raises: CheckpointInUse."""
        async with self._checkpoints.lease(self._key):
            yield

    async def load(self) -> SavedLoop[T]:
        """What the loop before left behind. What nobody can read is set aside. Raises: CheckpointError."""
        try:
            text = await self._checkpoints.load(self._key) or ""
            saved: SavedLoop[T] = read(text, self._items, self._partials) if text else SavedLoop()
        except (CheckpointUnreadable, ValueError) as problem:
            where = await self._checkpoints.set_aside(self._key, str(problem))
            self._text = ""
            raise CheckpointError(
                f"checkpoint {self._key!r} cannot be read ({problem}); it was set aside: {where}"
            ) from problem
        self._loaded, self._text, self._used = True, text, bool(text)
        return saved

    async def keep(self, saved: SavedLoop[T]) -> None:
        """Write down where the loop is. A store that fails does not end the loop: `end` tries again, and reports."""
        try:
            await self._put(saved)
        except Exception as error:
            if not self._warned:
                self._warned = True
                log.warning("checkpoint %r is not up to date, a crash would lose items: %s", self._key, error)

    async def end(self, saved: SavedLoop[T], *, skip: bool, broken: bool) -> CheckpointReport:
        """Write down what is left. `broken`: planning failed; what is there stays as it is, for another try."""
        try:
            if not skip and (broken or not self._loaded):
                return CheckpointReport("none" if self._text == "" else "kept")
            return await self._put(SavedLoop() if skip else saved)
        except Exception as error:  # how the loop ended does not change by that
            return CheckpointReport("failed", error)

    def _written(self, saved: SavedLoop[T]) -> str:
        try:
            return write(saved, self._items, self._partials)
        except UsageError as problem:
            if saved.stopped is None or saved.stopped.partial is None:
                raise
            # The items count: better a turn that begins anew than no checkpoint.
            text = write(replace(saved, stopped=InterruptedTurn(saved.stopped.items)), self._items, self._partials)
            log.warning("checkpoint %r is without what the stopped turn left behind: %s", self._key, problem)
            return text

    async def _put(self, saved: SavedLoop[T]) -> CheckpointReport:
        text = "" if saved.empty else self._written(saved)
        if text != self._text:
            self._text = None  # until it is there
            if text:
                await self._checkpoints.save(self._key, text)
            else:
                self._used = await self._checkpoints.delete(self._key) or self._used
            self._text, self._used = text, self._used or bool(text)
        return CheckpointReport("saved" if text else "deleted" if self._used else "none")
