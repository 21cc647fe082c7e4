"""Owns how a node and a walk can end: two closed unions. Knows nothing of who decides."""

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["BodyReturned", "NodeDone", "NodeEnd", "NodeFailed", "NodeInterrupted", "StepEnd", "WalkFinished", "Walked"]


@dataclass(frozen=True, slots=True)
class BodyReturned:
    """The function has returned, and is believed."""

    value: Any


@dataclass(frozen=True, slots=True)
class NodeDone:
    """The node has ended well: by this output, with this state."""

    output: str
    state: Any


@dataclass(frozen=True, slots=True)
class WalkFinished:
    """The walk has reached an end."""

    end: str


@dataclass(frozen=True, slots=True)
class NodeInterrupted:
    """It was stopped. The place says where, and what is kept. `error`: what came out of it meanwhile."""

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node failed. `operation` is its path; `timed_out`: its own time was up; `kept`: a state with what did work."""

    error: Exception
    operation: str
    timed_out: bool = False
    kept: Any = None


StepEnd: TypeAlias = BodyReturned | NodeInterrupted | NodeFailed
NodeEnd: TypeAlias = NodeDone | NodeInterrupted | NodeFailed
Walked: TypeAlias = WalkFinished | NodeInterrupted | NodeFailed
