"""Owns the JSON of a saved turn loop: its items, and what an interrupted turn left behind, with a version.

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
P = TypeVar("P")
VERSION = 1
# What an interrupted turn leaves behind unless the loop is given another type: an agent's conversation, or plain data.
AnyPartial: TypeAlias = Annotated[AgentResult | object, Field(union_mode="left_to_right")]


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
