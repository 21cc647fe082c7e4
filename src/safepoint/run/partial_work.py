"""The partial result of work that was stopped inside a tool call, as text from which the same work can continue.

An agent keeps this text next to the conversations of its sub-agents, and does not need to know which kind of work wrote
it.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["FLOW", "HasPartialWork", "PartialWork", "partial_work"]

# The kind that flows write. It is defined here because the log of a session is read without importing flows.
FLOW = "flow"


@dataclass(frozen=True, slots=True)
class PartialWork:
    """How far a piece of work had come when its tool call was stopped.

    Attributes:
        kind: The kind of work that wrote it, such as "flow". Only the same kind can read it.
        data: JSON text.
    """

    kind: str
    data: str


@runtime_checkable
class HasPartialWork(Protocol):
    """A partial result that can be written as text, such as the Checkpoint of a flow."""

    def to_kept(self) -> PartialWork:
        """Return the text. Work that is called again with it continues from there."""
        ...


def partial_work(partial: object) -> PartialWork | None:
    """Return what to keep of the `partial` of an AbortError; None if it cannot be written as text."""
    if isinstance(partial, PartialWork):
        return partial
    return partial.to_kept() if isinstance(partial, HasPartialWork) else None
