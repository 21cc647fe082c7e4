"""Owns what work leaves behind when it is stopped inside a tool call, as text that the same work goes on from.

An agent keeps this next to the conversations of its sub-agents without knowing which work wrote it. Knows nothing of
flows and agents.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["FLOW", "Keepable", "KeptWork", "kept_work"]

# The kind of what flows write. The log of a session is read without them.
FLOW = "flow"


@dataclass(frozen=True, slots=True)
class KeptWork:
    """How far a piece of work had come when its tool call was stopped.

    Attributes:
        kind: Which kind of work wrote it, such as "flow". Only the same kind can read it.
        data: JSON text.
    """

    kind: str
    data: str


@runtime_checkable
class Keepable(Protocol):
    """The partial of stopped work that can be kept as text, such as the Checkpoint of a flow."""

    def to_kept(self) -> KeptWork:
        """As text. The work that is called again with it goes on from there."""
        ...


def kept_work(partial: object) -> KeptWork | None:
    """What to keep of the partial of an AbortError; None if it cannot be written as text."""
    if isinstance(partial, KeptWork):
        return partial
    return partial.to_kept() if isinstance(partial, Keepable) else None
