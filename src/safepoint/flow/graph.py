"""Owns what a flow is made of: nodes, routes and ends, as frozen data, and whether they fit together. Runs nothing."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ..errors import UsageError
from ..run.policy import Policy
from ..run.receipt import LeafKind
from ..run.retry import Retry

__all__ = ["END", "Cleanup", "End", "FlowError", "Graph", "Node", "Parallel", "Scatter", "Step", "Subflow", "Target"]

OnFailure: TypeAlias = Literal["interrupt", "collect"]
# Outputs that every node has without declaring them: unrouted, they fail the flow.
IMPLIED = ("failed", "timeout")


class FlowError(UsageError):
    """A flow's definition does not fit together: the message lists every problem, each with its fix."""


@dataclass(frozen=True, slots=True)
class End:
    """Where a flow ends. A flow that contains this one routes by the name."""

    name: str = "done"


END = End()
Target: TypeAlias = str | End


class ChildFlow(Protocol):
    """A flow inside another, as far as a graph needs to know it."""

    def graph(self) -> "Graph":
        """What it is made of. Raises: FlowError."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A node that is a function: `(state, ctx) -> output`; `call` is the same in the shape of Work."""

    name: str
    fn: Callable[..., Any]
    call: Callable[..., Any]
    outputs: tuple[str, ...]
    policy: Policy
    retry: Retry | None
    final: bool
    kind: LeafKind
    result_type: Any
    shape = "step"


@dataclass(frozen=True, slots=True)
class Subflow:
    """A node that is a flow."""

    name: str
    child: ChildFlow
    into: Callable[[Any], Any] | None
    out: Callable[[Any, Any], object] | None
    shape = "subflow"

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.child.graph().ends


@dataclass(frozen=True, slots=True)
class Parallel:
    """A node that is several flows at once, each on a copy of the state."""

    name: str
    branches: Mapping[str, ChildFlow]
    join: Callable[[Any, dict[str, Any]], object] | None
    on_failure: OnFailure
    outputs: tuple[str, ...] = ("done",)
    shape = "parallel"


@dataclass(frozen=True, slots=True)
class Scatter:
    """A node that does one thing to many items. The body is a step `(item, ctx) -> result`, or a flow."""

    name: str
    items: Callable[[Any], Any]
    body: Step | ChildFlow
    gather: Callable[[Any, list[Any]], object] | None
    concurrency: int
    on_failure: OnFailure
    outputs: tuple[str, ...] = ("done",)
    shape = "scatter"


Node: TypeAlias = Step | Subflow | Parallel | Scatter


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What runs when the flow is left, on every path."""

    name: str
    call: Callable[..., Any]
    kind: LeafKind
    within: float


@dataclass(frozen=True, slots=True)
class Graph:
    """A flow that fits together."""

    name: str
    start: str
    nodes: Mapping[str, Node]
    routes: Mapping[str, Mapping[str, Target]]
    cleanups: tuple[Cleanup, ...]
    max_steps: int
    state_type: Any
    shape: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[str, ...]:
        """The names of its ends, each once."""
        targets = (target for routes in self.routes.values() for target in routes.values())
        return tuple(dict.fromkeys(target.name for target in targets if isinstance(target, End)))

    def is_just(self, name: str) -> bool:
        """True: it is one function under this name, as in a branch that is no flow. Paths name it once."""
        return self.name == name and list(self.nodes) == [name] and isinstance(self.nodes[name], Step)

    @property
    def fingerprint(self) -> str:
        """Changes when the shape does."""
        text = json.dumps([self.start, self.shape], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def children(node: Node) -> Mapping[str, ChildFlow]:
    """The flows inside a node, by name."""
    match node:
        case Step():
            return {}
        case Subflow(child=child):
            return {"": child}
        case Parallel(branches=branches):
            return branches
        case Scatter(body=body):
            return {} if isinstance(body, Step) else {"": body}


def shape_of(nodes: Mapping[str, Node], routes: Mapping[str, Mapping[str, Target]]) -> dict[str, Any]:
    """The shape as JSON data: what must be the same for a checkpoint to fit."""
    shape: dict[str, Any] = {}
    for name, node in nodes.items():
        ways = {output: [target.name] if isinstance(target, End) else target for output, target in routes[name].items()}
        inside = {key: [child.graph().start, child.graph().shape] for key, child in children(node).items()}
        shape[name] = [node.shape, ways, *([inside] if inside else [])]
    return shape


def problems(start: str, nodes: Mapping[str, Node], routes: Mapping[str, Mapping[str, Target]]) -> Iterator[str]:
    """Everything that does not fit, with what to do about it."""
    if not nodes:
        yield "it has no node: add one with @flow.node"
        return
    if start not in nodes:
        yield f"its start {start!r} is not a node: {_known(nodes)}"
    for name in routes.keys() - nodes.keys():
        yield f"there are routes for {name!r}, which is not a node: {_known(nodes)}"
    for name, node in nodes.items():
        yield from _misrouted(name, node, routes.get(name, {}), nodes)
    if start in nodes:
        for name in nodes.keys() - _reached(start, routes):
            yield f"node {name!r} cannot be reached from {start!r}: route to it, or remove it"


def _misrouted(name: str, node: Node, ways: Mapping[str, Target], nodes: Mapping[str, Node]) -> Iterator[str]:
    for output in node.outputs:
        if output not in ways:
            way = f"{output}=…" if output.isidentifier() else f"**{{{output!r}: …}}"
            yield f"node {name!r}: output {output!r} has no route: add flow.route({name!r}, {way})"
    for output, target in ways.items():
        if output not in (*node.outputs, *IMPLIED):
            outputs = ", ".join(map(repr, node.outputs))
            yield f"node {name!r}: it has no output {output!r} (it has {outputs}): declare it or drop the route"
        elif output == "timeout" and "timeout" not in node.outputs and not _has_limit(node):
            yield f"node {name!r}: output 'timeout' is never taken: give the node timeout=seconds, or drop the route"
        if isinstance(target, str) and target not in nodes:
            yield f"node {name!r}: output {output!r} leads to {target!r}, which is not a node: {_known(nodes)}"


def _has_limit(node: Node) -> bool:
    return isinstance(node, Step) and node.policy.timeout is not None


def _reached(start: str, routes: Mapping[str, Mapping[str, Target]]) -> set[str]:
    reached, todo = set(), [start]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [target for target in routes.get(name, {}).values() if isinstance(target, str)]
    return reached


def _known(nodes: Mapping[str, Node]) -> str:
    return f"the nodes are {', '.join(sorted(nodes))}"
