"""Owns a stopped loop on paper: versioned JSON of its items and of what the stopped turn left behind.

Knows nothing of stores, nor of what the items mean: their type says how they are written.
"""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter

from ..agent.conversation import AgentResult
from ..errors import UsageError

__all__ = ["AnyPartial", "InterruptedTurn", "SavedLoop", "adapter", "read", "write"]

T = TypeVar("T")
VERSION = 1
# What a stopped turn leaves behind, if nobody says more: an agent's conversation, or plain data.
AnyPartial: TypeAlias = Annotated[AgentResult | Any, Field(union_mode="left_to_right")]


@dataclass(frozen=True, slots=True)
class InterruptedTurn(Generic[T]):
    """A turn that was stopped: the items it was about, and what it left behind to go on from."""

    items: tuple[T, ...]
    partial: Any = None


@dataclass(frozen=True, slots=True)
class SavedLoop(Generic[T]):
    """What a loop leaves for the next one."""

    unhandled: tuple[T, ...] = ()
    stopped: InterruptedTurn[T] | None = None
    cause: str = field(default="")

    @property
    def empty(self) -> bool:
        """True: there is nothing to go on with."""
        return not self.unhandled and self.stopped is None


def adapter(option: str, kind: Any) -> TypeAdapter[Any]:
    """What writes and reads values of this type. Raises: UsageError for a type that is no data."""
    try:
        return TypeAdapter(kind)
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(f"{option}={kind!r} cannot be written as JSON: {problem}") from problem


def write(saved: SavedLoop[Any], items: TypeAdapter[list[Any]], partials: TypeAdapter[Any]) -> str:
    """As text. Raises: UsageError for items that JSON cannot hold."""
    try:
        stopped = saved.stopped
        data: dict[str, Any] = {
            "version": VERSION,
            "kind": "turn-loop",
            "cause": saved.cause,
            "unhandled": _plain(items, list(saved.unhandled)),
            "stopped": None,
        }
        if stopped is not None:
            partial = None if stopped.partial is None else _plain(partials, stopped.partial)
            data["stopped"] = {"items": _plain(items, list(stopped.items)), "partial": partial}
        return json.dumps(data, ensure_ascii=False)
    except Exception as problem:  # pydantic raises several kinds
        raise UsageError(
            f"the items or the partial of the stopped turn cannot be written as JSON ({problem}): give item_type= and"
            " partial_type="
        ) from problem


def _plain(kind: TypeAdapter[Any], value: Any) -> Any:
    # What is of another type would be written somehow, and not be readable.
    return kind.dump_python(value, mode="json", warnings="error")


def read(text: str, items: TypeAdapter[list[Any]], partials: TypeAdapter[Any]) -> SavedLoop[Any]:
    """Read `write()` back. Raises: ValueError that says what is wrong."""
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
    if stopped is not None:
        partial = stopped.get("partial")
        partial = None if partial is None else partials.validate_python(partial)
        stopped = InterruptedTurn(tuple(items.validate_python(stopped.get("items"))), partial)
    return SavedLoop(tuple(items.validate_python(data.get("unhandled"))), stopped, str(data.get("cause", "")))
