"""Owns a stopped loop on paper: versioned JSON of its items and of what the stopped turn left behind.

Knows nothing of stores, nor of what the items mean: their type says how they are written.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from ..errors import UsageError

__all__ = ["SavedLoop", "Stopped", "read", "write"]

T = TypeVar("T")
VERSION = 1


@dataclass(frozen=True, slots=True)
class Stopped(Generic[T]):
    """A turn that was stopped: the items it was about, and what it left behind to go on from."""

    items: tuple[T, ...]
    partial: Any = None


@dataclass(frozen=True, slots=True)
class SavedLoop(Generic[T]):
    """What a loop leaves for the next one."""

    unhandled: tuple[T, ...] = ()
    stopped: Stopped[T] | None = None
    cause: str = field(default="")

    @property
    def empty(self) -> bool:
        """True: there is nothing to go on with."""
        return not self.unhandled and self.stopped is None


def write(saved: SavedLoop[Any], item_type: Any, partial_type: Any) -> str:
    """As text. Raises: UsageError for items that JSON cannot hold."""
    try:
        items: TypeAdapter[Any] = TypeAdapter(list[item_type])
        stopped = saved.stopped
        data = {
            "version": VERSION,
            "kind": "turn-loop",
            "cause": saved.cause,
            "unhandled": items.dump_python(list(saved.unhandled), mode="json"),
            "stopped": None
            if stopped is None
            else {
                "items": items.dump_python(list(stopped.items), mode="json"),
                "partial": None
                if stopped.partial is None
                else TypeAdapter(partial_type).dump_python(stopped.partial, mode="json"),
            },
        }
        return json.dumps(data, ensure_ascii=False)
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(
            f"the items or the partial of the stopped turn cannot be written as JSON ({problem}): give item_type= and"
            " partial_type="
        ) from problem


def read(text: str, item_type: Any, partial_type: Any) -> SavedLoop[Any]:
    """Read `write()` back. Raises: ValueError that says what is wrong."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("kind") != "turn-loop":
        raise ValueError("it is not the checkpoint of a turn loop")
    if data.get("version") != VERSION:
        raise ValueError(f"it is of version {data.get('version')!r}; this reader knows {VERSION}")
    items: TypeAdapter[Any] = TypeAdapter(list[item_type])
    stopped = data.get("stopped")
    if stopped is not None:
        partial = stopped.get("partial")
        partial = None if partial is None else TypeAdapter(partial_type).validate_python(partial)
        stopped = Stopped(tuple(items.validate_python(stopped["items"])), partial)
    return SavedLoop(tuple(items.validate_python(data["unhandled"])), stopped, str(data.get("cause", "")))
