"""Owns the position of a flow: the next node, the state before it, and inside a composite node those of its parts.

Positions form a tree. A `Position` is one level: a graph, the node in it that would run next, and the state as it was
after the last node. While a composite node runs (a sub-flow, a parallel node, a scatter), `inside` holds its part of
the tree: a position per branch or per item that has begun. The cursor that a user sees ("report/fetch/3") is a path
through this tree, and a checkpoint is the tree as data. Neither is stored separately, so the three cannot disagree.

The tree is live. The code that runs a node changes it in place, and a checkpoint may be taken between any two awaits,
also by another branch. Two rules make every such moment a valid one to resume from:

- `advance` and `finish` change node, state, inner position and step together, without an await. In between, the
  checkpoint would pair a node with the state after it, and the resumed flow would run that node twice.
- `state` is only replaced after a node has ended well, or at a safe point. Nodes work on copies. So a node that is
  stopped, that fails, or whose process dies begins again with the state that it began with.

A scatter may have very many items, so its position does not list the finished ones. `watermark` says that all items
below it are done, `ahead` holds the done ones above it, and `acknowledge` moves the watermark over them. The size of a
checkpoint thus depends on the number of items in progress, not on the number of items.

`visit` tells the visits of a node in a cycle apart, including the cycles around it: it becomes a part of the node's
idempotency key. The key must be the same when a visit is repeated after a crash, and another one in the next round.

Knows nothing of how nodes run.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .graph import Graph

__all__ = ["InnerPosition", "ParallelPosition", "Position", "ScatterPosition", "SubflowPosition"]


@dataclass(slots=True)
class Position:
    """The position in one graph.

    Attributes:
        graph: The graph.
        node: The node that would run next, or that is running; None at the end.
        state: The state before that node. Only the nodes of the graph know its type.
        step: How many nodes have run in this graph.
        end: The name of the end that was reached, or None.
        inside: The positions inside the node, if it is a composite that has begun.
        outer_visits: Which visits of the composites around this graph this is, as text before `step`.
    """

    graph: Graph
    node: str | None
    state: Any
    step: int = 0
    end: str | None = None
    inside: "InnerPosition | None" = None
    outer_visits: str = ""

    @classmethod
    def start(cls, graph: Graph, state: object, outer_visits: str = "") -> "Position":
        """Return the position before the first node of a graph."""
        return cls(graph, graph.start, state, outer_visits=outer_visits)

    @property
    def visit(self) -> str:
        """Which visit of the node this is. It differs for each round of a cycle, in this graph or around it."""
        return f"{self.outer_visits}{self.step}"

    @property
    def inner_prefix(self) -> str:
        """The `outer_visits` of positions inside the node."""
        return f"{self.visit}."

    def advance(self, node: str, state: object) -> None:
        """Move on to the next node. This is a safe point."""
        self.node, self.state, self.inside = node, state, None
        self.step += 1

    def finish(self, end: str, state: object) -> None:
        """Move to an end."""
        self.node, self.state, self.inside, self.end = None, state, None, end
        self.step += 1

    @property
    def cursor(self) -> str | None:
        """The path of the node that would run next, or of the interrupted one; None at the end."""
        if self.node is None:
            return None
        inner_cursor = None if self.inside is None else self.inside.cursor
        return self.node if inner_cursor is None else f"{self.node}/{inner_cursor}"


@dataclass(slots=True)
class SubflowPosition:
    """The position inside a sub-flow."""

    position: Position

    @property
    def cursor(self) -> str | None:
        return self.position.cursor


@dataclass(slots=True)
class ParallelPosition:
    """The positions inside a parallel node, by the names of the branches."""

    positions: dict[str, Position]

    @property
    def cursor(self) -> str | None:
        for name, position in self.positions.items():
            if position.node is not None:
                return name if position.graph.is_single_step(name) else f"{name}/{position.cursor}"
        return None


@dataclass(slots=True)
class ScatterPosition:
    """The position inside a scatter.

    Attributes:
        watermark: All items below this number are done.
        ahead: The items above the watermark that are done.
        results: The results of the done items, by number, if the scatter gathers them.
        positions: The positions of the items that have begun and are not done, if the body is a flow.
        pulled: How many items were taken from the source.
    """

    watermark: int = 0
    ahead: set[int] = field(default_factory=set)
    results: dict[int, object] = field(default_factory=dict)
    positions: dict[int, Position] = field(default_factory=dict)
    pulled: int = 0

    def is_done(self, index: int) -> bool:
        """Whether this item is done."""
        return index < self.watermark or index in self.ahead

    def acknowledge(self, index: int) -> None:
        """Mark an item as done."""
        self.positions.pop(index, None)
        self.ahead.add(index)
        while self.watermark in self.ahead:
            self.ahead.remove(self.watermark)
            self.watermark += 1

    @property
    def done(self) -> int:
        """How many items are done."""
        return self.watermark + len(self.ahead)

    @property
    def cursor(self) -> str | None:
        if self.watermark >= self.pulled:
            return None
        position = self.positions.get(self.watermark)
        return f"{self.watermark}/{position.cursor}" if position is not None else str(self.watermark)


InnerPosition: TypeAlias = SubflowPosition | ParallelPosition | ScatterPosition
