"""Owns the ways in which a node and a graph can end, as closed unions. Knows nothing of who decides."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "BodyReturned",
    "GraphEnd",
    "GraphFinished",
    "NodeDone",
    "NodeEnd",
    "NodeFailed",
    "NodeInterrupted",
    "StepEnd",
]


@dataclass(frozen=True, slots=True)
class BodyReturned:
    """The function of a node has returned, and its result counts."""

    value: object


@dataclass(frozen=True, slots=True)
class NodeDone:
    """The node has ended well: by this output, with this state."""

    output: str
    state: object


@dataclass(frozen=True, slots=True)
class GraphFinished:
    """The graph has reached an end."""

    end: str


@dataclass(frozen=True, slots=True)
class NodeInterrupted:
    """The node was stopped. The position says where, and holds what is kept.

    Attributes:
        error: What the node raised after the stop, if it raised anything.
    """

    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The node failed.

    Attributes:
        error: What it raised.
        operation: Its path, from the root of the flow.
        timed_out: Whether its own time limit was exceeded.
        kept: A state with the parts that did succeed, or None.
    """

    error: Exception
    operation: str
    timed_out: bool = False
    kept: object = None


StepEnd: TypeAlias = BodyReturned | NodeInterrupted | NodeFailed
NodeEnd: TypeAlias = NodeDone | NodeInterrupted | NodeFailed
GraphEnd: TypeAlias = GraphFinished | NodeInterrupted | NodeFailed
