"""Owns what work leaves behind when it is stopped inside a tool call, as text that the same work goes on from.

An agent keeps this next to the conversations of its sub-agents without knowing which work wrote it. Knows nothing of
flows and agents.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["FLOW", "HasPartialWork", "PartialWork", "partial_work"]

# The kind of what flows write. The log of a session is read without them.
FLOW = "flow"


@dataclass(frozen=True, slots=True)
class PartialWork:
    """How far a piece of work had come when its tool call was stopped.

    Attributes:
        kind: Which kind of work wrote it, such as "flow". Only the same kind can read it.
        data: JSON text.
    """

    kind: str
    data: str


@runtime_checkable
class HasPartialWork(Protocol):
    """The partial of stopped work that can be kept as text, such as the Checkpoint of a flow."""

    def to_kept(self) -> PartialWork:
        """As text. The work that is called again with it goes on from there."""
        ...


def partial_work(partial: object) -> PartialWork | None:
    """What to keep of the partial of an AbortError; None if it cannot be written as text."""
    if isinstance(partial, PartialWork):
        return partial
    return partial.to_kept() if isinstance(partial, HasPartialWork) else None
