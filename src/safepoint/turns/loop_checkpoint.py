"""Owns the checkpoint of a turn loop: what is saved of it, as JSON with a version, and when it is written.

Knows nothing of what the items mean: their type says how they are written.

Why it is written where it is. The loop saves at two places: when a turn is about to be planned, and when a turn has
ended, before `TurnEnded` is emitted.

- A crash while a turn runs: the items of that turn and those behind it are in the checkpoint, because they were saved
  before planning. They run again, so an item may run twice, but none is lost.
- A crash after a turn: its items are no longer in the checkpoint, because the save comes before the event. If the event
  came first, a listener could act on an end that the next process knows nothing of, and the turn would run again.
- A store that fails in between must not end the loop: `_stored_text` becomes `None` (unknown) before each write, so
  that the next save writes again even if its text is the same.
- Until `load` has succeeded nothing is written or deleted: what is in the store belongs to the previous loop.
"""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import GenericAlias
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter

from ..agent.conversation import AgentResult
from ..errors import UsageError
from ..storage.checkpoints import CheckpointError, Checkpoints, CheckpointUnreadable

__all__ = [
    "AnyPartial",
    "CheckpointReport",
    "CheckpointWriter",
    "InterruptedTurn",
    "SavedLoop",
    "adapter",
    "read",
    "write",
]

T = TypeVar("T")
P = TypeVar("P")
VERSION = 1
# What an interrupted turn leaves behind unless the loop is given another type: an agent's conversation, or plain data.
AnyPartial: TypeAlias = Annotated[AgentResult | object, Field(union_mode="left_to_right")]
log = logging.getLogger("safepoint")


@dataclass(frozen=True, slots=True)
class InterruptedTurn(Generic[T]):
    """A turn that was stopped and is to go on.

    Attributes:
        items: The items of the turn.
        partial: What its work left behind to go on from. Its type is the `partial_type` of the loop, which is a value
            at run time, so that no type checker can know it.
    """

    items: tuple[T, ...]
    partial: Any = None


@dataclass(frozen=True, slots=True)
class SavedLoop(Generic[T]):
    """What a loop leaves for the next one.

    Attributes:
        unhandled: The items that wait, in order.
        interrupted: The turn that was stopped and is to go on.
        cause: Why the loop was stopped.
    """

    unhandled: tuple[T, ...] = ()
    interrupted: InterruptedTurn[T] | None = None
    cause: str = field(default="")

    @property
    def empty(self) -> bool:
        """Whether there is nothing to go on with."""
        return not self.unhandled and self.interrupted is None


def adapter(option: str, kind: Any) -> TypeAdapter[P]:
    """Make what writes values of a type as JSON and reads them back.

    Args:
        option: The name of the argument with which the user gave the type, for the message.
        kind: The type, as an annotation would name it: a class, a union, anything that pydantic knows.

    Raises:
        UsageError: Values of this type cannot be written as JSON.
    """
    try:
        return TypeAdapter(kind)
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(f"{option}={kind!r} cannot be written as JSON: {problem}") from problem


def write(saved: SavedLoop[T], items: TypeAdapter[list[T]], partials: TypeAdapter[P]) -> str:
    """Write a saved loop as JSON.

    Raises:
        UsageError: JSON cannot hold an item or the partial.
    """
    try:
        interrupted = saved.interrupted
        stopped: dict[str, object] | None = None
        if interrupted is not None:
            partial = None if interrupted.partial is None else _plain(partials, interrupted.partial)
            stopped = {"items": _plain(items, list(interrupted.items)), "partial": partial}
        data = {
            "version": VERSION,
            "kind": "turn-loop",
            "cause": saved.cause,
            "unhandled": _plain(items, list(saved.unhandled)),
            "stopped": stopped,
        }
        return json.dumps(data, ensure_ascii=False)
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(
            f"the items or the partial of the stopped turn cannot be written as JSON ({problem}): give item_type= and"
            " partial_type="
        ) from problem


def _plain(kind: TypeAdapter[P], value: P) -> object:
    """Turn a value into plain JSON data.

    pydantic would write a value of another type with a warning, in a form that cannot be read back: that is an error.
    """
    return kind.dump_python(value, mode="json", warnings="error")


def read(text: str, items: TypeAdapter[list[T]], partials: TypeAdapter[P]) -> SavedLoop[T]:
    """Read what `write()` has written.

    Raises:
        ValueError: The text is no checkpoint of a turn loop, or is damaged. The message says what is wrong.
    """
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict) or data.get("kind") != "turn-loop":
        raise ValueError("it is not the checkpoint of a turn loop")
    if data.get("version") != VERSION:
        raise ValueError(f"it is of version {data.get('version')!r}; this reader knows {VERSION}")
    stopped = data.get("stopped")
    if not isinstance(stopped, dict | None):
        raise ValueError(f"its stopped turn is {type(stopped).__name__}, not an object")
    interrupted: InterruptedTurn[T] | None = None
    if stopped is not None:
        partial = stopped.get("partial")
        partial = None if partial is None else partials.validate_python(partial)
        interrupted = InterruptedTurn(tuple(items.validate_python(stopped.get("items"))), partial)
    return SavedLoop(tuple(items.validate_python(data.get("unhandled"))), interrupted, str(data.get("cause", "")))


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """What became of the checkpoint of a loop.

    Attributes:
        status: "saved" and "deleted": the store was changed. "kept": a checkpoint of an earlier loop was left as it is.
            "none": there is no checkpoint. "failed": the store raised, and what was there before is still there.
        error: What the store raised, for "failed".
    """

    status: Literal["none", "saved", "deleted", "kept", "failed"] = "none"
    error: Exception | None = None


class CheckpointWriter(Generic[T]):
    """One key in one checkpoint store, for the life of one loop.

    Args:
        checkpoints: The store.
        key: The name of the checkpoint in the store.
        item_type: The type of one item, from which pydantic makes the JSON.
        partial_type: The type of what an interrupted turn left behind.

    Raises:
        UsageError: One of the types cannot be written as JSON.
    """

    def __init__(self, checkpoints: Checkpoints, key: str, item_type: object, partial_type: object) -> None:
        self._checkpoints = checkpoints
        self._key = key
        self._items: TypeAdapter[list[T]] = adapter("item_type", GenericAlias(list, (item_type,)))
        self._partials: TypeAdapter[object] = adapter("partial_type", partial_type)
        self._loaded = False
        self._stored_text: str | None = None  # the text in the store; "" if there is none, None if it is not known
        self._existed = False  # there was a checkpoint at some time, so that an empty one counts as deleted
        self._warned = False

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """Keep other loops from using this key. Raises: CheckpointInUse."""
        async with self._checkpoints.lease(self._key):
            yield

    async def load(self) -> SavedLoop[T]:
        """Read what the previous loop left behind.

        Raises:
            CheckpointError: The checkpoint cannot be read. It was set aside, so that the next start begins anew.
        """
        try:
            text = await self._checkpoints.load(self._key) or ""
            saved: SavedLoop[T] = read(text, self._items, self._partials) if text else SavedLoop()
        except (CheckpointUnreadable, ValueError) as problem:
            where = await self._checkpoints.set_aside(self._key, str(problem))
            self._stored_text = ""
            raise CheckpointError(
                f"checkpoint {self._key!r} cannot be read ({problem}); it was set aside: {where}"
            ) from problem
        self._loaded, self._stored_text, self._existed = True, text, bool(text)
        return saved

    async def save(self, saved: SavedLoop[T]) -> None:
        """Save the state of a loop that continues.

        A store that fails does not end the loop. It is logged once; `save_exit` tries again and reports.
        """
        try:
            await self._store(saved)
        except Exception as error:
            if not self._warned:
                self._warned = True
                log.warning("checkpoint %r is not up to date, a crash would lose items: %s", self._key, error)

    async def save_exit(self, saved: SavedLoop[T], *, skip: bool, planning_failed: bool) -> CheckpointReport:
        """Save what is left when the loop ends.

        Args:
            saved: What is left.
            skip: Leave nothing behind: the checkpoint is deleted.
            planning_failed: A plan failed. The checkpoint stays as it is, for another try.

        Returns:
            What became of the checkpoint. A failing store is reported and not raised, because it does not change how
            the loop ended.
        """
        try:
            if not skip and (planning_failed or not self._loaded):
                return CheckpointReport("none" if self._stored_text == "" else "kept")
            return await self._store(SavedLoop() if skip else saved)
        except Exception as error:
            return CheckpointReport("failed", error)

    def _as_text(self, saved: SavedLoop[T]) -> str:
        try:
            return write(saved, self._items, self._partials)
        except UsageError as problem:
            interrupted = saved.interrupted
            if interrupted is None or interrupted.partial is None:
                raise
            # The items matter more: a turn that begins anew is better than no checkpoint.
            without_partial = replace(saved, interrupted=InterruptedTurn(interrupted.items))
            text = write(without_partial, self._items, self._partials)
            log.warning("checkpoint %r is without what the stopped turn left behind: %s", self._key, problem)
            return text

    async def _store(self, saved: SavedLoop[T]) -> CheckpointReport:
        text = "" if saved.empty else self._as_text(saved)
        if text != self._stored_text:
            self._stored_text = None  # unknown until the store has answered
            if text:
                await self._checkpoints.save(self._key, text)
            else:
                self._existed = await self._checkpoints.delete(self._key) or self._existed
            self._stored_text, self._existed = text, self._existed or bool(text)
        return CheckpointReport("saved" if text else "deleted" if self._existed else "none")
