"""Owns what an execution of a flow returns. Knows nothing of how the flow ran."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..outcome import Outcome
from .execution import NodeError
from .mermaid import draw
from .position import Position

__all__ = ["FlowResult"]

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class FlowResult(Generic[State]):
    """How a flow ended.

    Attributes:
        outcome: Completed(state), Aborted, TimedOut or Failed.
        state: The state at the last safe point.
        cursor: The path of the node that would run next, or of the interrupted one; None if the flow completed.
        executed: The nodes that ended, in order, including those before a resume.
        errors: What the nodes collected, including before a resume.
        run_id: The id of the run. A resumed run has the same one.
        position: Where the flow ended, for `Checkpoint.from_result`.
        once: The results of `ctx.once`, and the conversations of agents, of nodes that have not ended, as JSON text.
        revision: How many checkpoints were made of this run.
        already_completed: Whether nothing was run, because the flow had completed before under this checkpoint id.
            The result is the earlier one.
    """

    outcome: Outcome[State]
    state: State
    cursor: str | None
    executed: tuple[str, ...]
    errors: tuple[NodeError, ...]
    run_id: str
    position: Position
    once: Mapping[str, str] = field(default_factory=dict)
    revision: int = 0
    already_completed: bool = False

    def to_mermaid(self) -> str:
        """Return the flow as a Mermaid chart that shows what ran, where it stopped, and what was not reached."""
        return draw(self.position.graph, executed=frozenset(self.executed), cursor=self.cursor)
