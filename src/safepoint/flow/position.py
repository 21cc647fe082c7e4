"""Owns where a flow is: the next node, the state before it, and, inside a composite, where each part is.

A place is live: whoever walks moves it on, and at any moment it can be written down. It is the one truth from which
the cursor, the checkpoint and the resumed run derive. Knows nothing of how nodes run.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .graph import Graph

__all__ = ["Inside", "ParallelAt", "Position", "ScatterAt", "SubflowAt"]


@dataclass(slots=True)
class Position:
    """Where one walk through a graph is. `node` None: it has arrived at `end`.

    `around`: which visits of the composites around it this is.
    """

    graph: Graph
    node: str | None
    state: Any
    step: int = 0
    end: str | None = None
    inside: "Inside | None" = None
    around: str = ""

    @classmethod
    def start(cls, graph: Graph, state: Any, around: str = "") -> "Position":
        """Before the first node."""
        return cls(graph, graph.start, state, around=around)

    @property
    def visit(self) -> str:
        """Which visit of the node this is: another one whenever a cycle, here or around, comes back to it."""
        return f"{self.around}{self.step}"

    @property
    def within(self) -> str:
        """What is `around` a place inside the node."""
        return f"{self.visit}."

    def go(self, node: str, state: Any) -> None:
        """On to the next node; this is a safe point."""
        self.node, self.state, self.inside = node, state, None
        self.step += 1

    def arrive(self, end: str, state: Any) -> None:
        """At an end."""
        self.node, self.state, self.inside, self.end = None, state, None, end
        self.step += 1

    @property
    def cursor(self) -> str | None:
        """As a path: the node that would run next, or the interrupted one; None at the end."""
        if self.node is None:
            return None
        deeper = None if self.inside is None else self.inside.cursor
        return self.node if deeper is None else f"{self.node}/{deeper}"


@dataclass(slots=True)
class SubflowAt:
    """Inside a sub-flow."""

    place: Position

    @property
    def cursor(self) -> str | None:
        return self.place.cursor


@dataclass(slots=True)
class ParallelAt:
    """Inside a parallel node: every branch's own place."""

    places: dict[str, Position]

    @property
    def cursor(self) -> str | None:
        for name, place in self.places.items():
            if place.node is not None:
                return name if place.graph.is_just(name) else f"{name}/{place.cursor}"
        return None


@dataclass(slots=True)
class ScatterAt:
    """Inside a scatter. All items below `watermark` are done, and those in `ahead`; `places`: begun and not done."""

    watermark: int = 0
    ahead: set[int] = field(default_factory=set)
    results: dict[int, Any] = field(default_factory=dict)
    places: dict[int, Position] = field(default_factory=dict)
    pulled: int = 0

    def is_done(self, index: int) -> bool:
        return index < self.watermark or index in self.ahead

    def acknowledge(self, index: int) -> None:
        """This item has reached its end."""
        self.places.pop(index, None)
        self.ahead.add(index)
        while self.watermark in self.ahead:
            self.ahead.remove(self.watermark)
            self.watermark += 1

    @property
    def done(self) -> int:
        return self.watermark + len(self.ahead)

    @property
    def cursor(self) -> str | None:
        if self.watermark >= self.pulled:
            return None
        place = self.places.get(self.watermark)
        return f"{self.watermark}/{place.cursor}" if place is not None else str(self.watermark)


Inside: TypeAlias = SubflowAt | ParallelAt | ScatterAt
