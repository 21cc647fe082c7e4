"""Owns what an execution of a flow gives back. Knows nothing of how it got there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..run.outcome import Outcome
from .execution import NodeError
from .mermaid import draw
from .position import Position

__all__ = ["FlowResult"]

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class FlowResult(Generic[State]):
    """How a flow ended.

    outcome   Completed(state), Aborted, TimedOut or Failed
    state     as it was at the last safe point
    cursor    the path of the node that would run next, or of the interrupted one; None when completed
    executed  the nodes that ended, in order, also those before a resume
    errors    what the nodes collected, also before a resume

    already_completed  nothing was run: it had completed before under this checkpoint id, and this is how
    """

    outcome: Outcome[State]
    state: State
    cursor: str | None
    executed: tuple[str, ...]
    errors: tuple[NodeError, ...]
    run_id: str
    place: Position
    once: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0
    already_completed: bool = False

    def to_mermaid(self) -> str:
        """The flow as a picture, with what ran, where it stopped, and what was not reached."""
        return draw(self.place.graph, executed=frozenset(self.executed), cursor=self.cursor)
