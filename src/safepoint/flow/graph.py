"""Owns the definition of a flow as frozen data: nodes, routes and ends, and the check that they fit together.

Also reads what users define: the functions and options of nodes, and what is wrong with them. Runs nothing.
"""

import hashlib
import inspect
import json
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, Unpack

from ..errors import UsageError
from ..receipt import LeafKind
from ..run.context import Context
from ..run.leaf import kind_of, name_of
from ..run.policy import Policy, PolicySettings
from ..run.retry import Retry
from .state import return_type

__all__ = [
    "END",
    "ChildFlow",
    "Cleanup",
    "End",
    "FlowError",
    "Graph",
    "Items",
    "Node",
    "NodeOptions",
    "OnFailure",
    "Parallel",
    "Scatter",
    "Step",
    "Subflow",
    "Target",
    "as_work",
    "checked_name",
    "checked_on_failure",
    "children",
    "field_reader",
    "make_step",
    "problems",
    "require_known_options",
    "require_sync",
    "shape_of",
]

OnFailure: TypeAlias = Literal["interrupt", "collect"]
# The items of a scatter.
Items: TypeAlias = Iterable[object] | AsyncIterable[object]

# Outputs that every node has without declaring them. Without a route they make the flow fail.
IMPLIED_OUTPUTS = ("failed", "timeout")


class FlowError(UsageError):
    """The definition of a flow does not fit together. The text lists every problem, each with its fix."""


@dataclass(frozen=True, slots=True)
class End:
    """An end of a flow. A flow that contains this one routes by its name."""

    name: str = "done"


END = End()
Target: TypeAlias = str | End


class ChildFlow(Protocol):
    """A flow inside another one, as far as a graph needs to know it."""

    def graph(self) -> "Graph":
        """Return its definition. Raises: FlowError."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A node that is a function.

    Attributes:
        name: The name of the node.
        fn: The function: `(state, ctx) -> output`.
        call: The function in the shape of Work: `(ctx, state)`.
        outputs: What it may return.
        policy: How it is stopped.
        retry: How often it is tried.
        final: Whether its result counts even if a stop came while it ran.
        kind: Where it runs.
        result_type: The annotated type of what it returns; `object` if that is not known.
        shape: The kind of node, in checkpoints.
    """

    name: str
    fn: Callable[..., object]
    call: Callable[..., Any]
    outputs: tuple[str, ...]
    policy: Policy
    retry: Retry | None
    final: bool
    kind: LeafKind
    result_type: object
    shape = "step"


@dataclass(frozen=True, slots=True)
class Subflow:
    """A node that is a flow. `into` makes the state of the flow, `out` brings back what it found."""

    name: str
    child: ChildFlow
    into: Callable[..., object] | None
    out: Callable[..., object] | None
    shape = "subflow"

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.child.graph().ends


@dataclass(frozen=True, slots=True)
class Parallel:
    """A node that is several flows at once, each on a copy of the state. `join` puts the copies together."""

    name: str
    branches: Mapping[str, ChildFlow]
    join: Callable[..., object] | None
    on_failure: OnFailure
    outputs: tuple[str, ...] = ("done",)
    shape = "parallel"


@dataclass(frozen=True, slots=True)
class Scatter:
    """A node that does one thing to many items. The body is a step `(item, ctx) -> result`, or a flow."""

    name: str
    items: Callable[..., Items]
    body: Step | ChildFlow
    gather: Callable[..., object] | None
    concurrency: int
    on_failure: OnFailure
    outputs: tuple[str, ...] = ("done",)
    shape = "scatter"


Node: TypeAlias = Step | Subflow | Parallel | Scatter


@dataclass(frozen=True, slots=True)
class Cleanup:
    """A function that runs when the flow ends, on every path, within a number of seconds."""

    name: str
    call: Callable[..., Any]
    kind: LeafKind
    within: float


@dataclass(frozen=True, slots=True)
class Graph:
    """A flow whose parts fit together.

    Attributes:
        name: The name of the flow.
        start: The first node.
        nodes: The nodes by name.
        routes: For each node, where each of its outputs leads.
        cleanups: What runs when the flow ends.
        max_steps: How many nodes may run in one execution.
        state_type: The type of the state; `object` if only JSON data is known, None if nothing is.
        shape: The nodes and routes as JSON data: see `shape_of`.
    """

    name: str
    start: str
    nodes: Mapping[str, Node]
    routes: Mapping[str, Mapping[str, Target]]
    cleanups: tuple[Cleanup, ...]
    max_steps: int
    state_type: object
    shape: Mapping[str, object] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[str, ...]:
        """The names of the ends, each once."""
        targets = (target for routes in self.routes.values() for target in routes.values())
        return tuple(dict.fromkeys(target.name for target in targets if isinstance(target, End)))

    def is_single_step(self, name: str) -> bool:
        """Whether this is one function with the name of the flow, as for a branch that is a function.

        In paths the name then appears only once.
        """
        return self.name == name and list(self.nodes) == [name] and isinstance(self.nodes[name], Step)

    @property
    def fingerprint(self) -> str:
        """A text that changes when the shape does."""
        text = json.dumps([self.start, self.shape], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def children(node: Node) -> Mapping[str, ChildFlow]:
    """Return the flows inside a node, by name."""
    match node:
        case Step():
            return {}
        case Subflow(child=child):
            return {"": child}
        case Parallel(branches=branches):
            return branches
        case Scatter(body=body):
            return {} if isinstance(body, Step) else {"": body}


def shape_of(nodes: Mapping[str, Node], routes: Mapping[str, Mapping[str, Target]]) -> dict[str, object]:
    """Return the shape of a flow as JSON data. A checkpoint fits only a flow of the same shape."""
    shape: dict[str, object] = {}
    for name, node in nodes.items():
        leads = {
            output: [target.name] if isinstance(target, End) else target for output, target in routes[name].items()
        }
        inner = {key: [child.graph().start, child.graph().shape] for key, child in children(node).items()}
        shape[name] = [node.shape, leads, *([inner] if inner else [])]
    return shape


def problems(start: str, nodes: Mapping[str, Node], routes: Mapping[str, Mapping[str, Target]]) -> Iterator[str]:
    """Yield everything that does not fit, with its fix."""
    if not nodes:
        yield "it has no node: add one with @flow.node"
        return
    if start not in nodes:
        yield f"its start {start!r} is not a node: {_known(nodes)}"
    for name in routes.keys() - nodes.keys():
        yield f"there are routes for {name!r}, which is not a node: {_known(nodes)}"
    for name, node in nodes.items():
        yield from _route_problems(name, node, routes.get(name, {}), nodes)
    if start in nodes:
        for name in nodes.keys() - _reached(start, routes):
            yield f"node {name!r} cannot be reached from {start!r}: route to it, or remove it"


def _route_problems(name: str, node: Node, routes: Mapping[str, Target], nodes: Mapping[str, Node]) -> Iterator[str]:
    for output in node.outputs:
        if output not in routes:
            argument = f"{output}=…" if output.isidentifier() else f"**{{{output!r}: …}}"
            yield f"node {name!r}: output {output!r} has no route: add flow.route({name!r}, {argument})"
    for output, target in routes.items():
        if output not in (*node.outputs, *IMPLIED_OUTPUTS):
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


class NodeOptions(PolicySettings, total=False):
    """The options of a node: see `Flow.node`."""

    outputs: tuple[str, ...]
    retry: Retry | None
    final: bool | None


def make_step(name: str | None, fn: Callable[..., object], **options: Unpack[NodeOptions]) -> Step:
    """Make a node of a function.

    Raises:
        FlowError: The name, the function or an option is wrong.
    """
    if not callable(fn):
        raise FlowError(f"node {name!r}: expected a function, not {type(fn).__name__}")
    if hasattr(fn, "graph"):
        raise FlowError(f"node {name!r}: a flow as a node is flow.subflow({name!r}, …)")
    name = checked_name(name_of(fn) if name is None else name, "node")
    for option in options.keys() - NodeOptions.__optional_keys__:
        raise FlowError(f"node {name!r}: there is no option {option!r}: there are {_listed(NodeOptions)}")
    outputs: object = options.pop("outputs", ("done",))
    retry, final = options.pop("retry", None), options.pop("final", None)
    settings: Any = options  # without the options of a node these are settings of a policy
    policy = Policy(**settings)
    return Step(
        name,
        fn,
        as_work(fn),
        _checked_outputs(name, outputs),
        policy,
        retry,
        policy.on_abort == "finish" if final is None else final,
        kind_of(fn, policy),
        return_type(fn),
    )


def _checked_outputs(name: str, outputs: object) -> tuple[str, ...]:
    names = () if isinstance(outputs, str) or not isinstance(outputs, Iterable) else tuple(outputs)
    if not names or not all(isinstance(output, str) and output for output in names):
        raise FlowError(f"node {name!r}: outputs must be a tuple of names, such as ('found', 'empty'), not {outputs!r}")
    return names


def require_known_options(given: Mapping[str, object], options: Any) -> None:
    """Check the names of options.

    Args:
        given: The options of a call.
        options: The TypedDict of the options that there are.

    Raises:
        UsageError: There is no such option: a name is misspelt, for example.
    """
    for name in given.keys() - options.__optional_keys__:
        raise UsageError(f"there is no option {name!r}: the options are {_listed(options)}")


def _listed(options: Any) -> str:
    return ", ".join(sorted(options.__optional_keys__))


def require_sync(node: str, **functions: Callable[..., object] | str | None) -> None:
    """Raises: FlowError for an async function in a place where the flow would not await it."""
    for name, fn in functions.items():
        if inspect.iscoroutinefunction(fn):
            raise FlowError(f"node {node!r}: {name}= is called, not awaited: give a plain function")


def field_reader(name: str) -> Callable[[object], Items]:
    """Return a function that reads a field of the state."""
    return lambda state: state[name] if isinstance(state, dict) else getattr(state, name)


def checked_name(name: object, what: str) -> str:
    """Return a name. Raises: FlowError if it cannot be part of a path."""
    if not isinstance(name, str) or not name or "/" in name:
        raise FlowError(f"a {what}'s name must be a text without '/', not {name!r}: paths are made of names")
    return name


def checked_on_failure(value: OnFailure) -> OnFailure:
    """Return the value of `on_failure`. Raises: FlowError if it is neither "interrupt" nor "collect"."""
    if value not in ("interrupt", "collect"):
        raise FlowError(f"on_failure must be 'interrupt' or 'collect', not {value!r}")
    return value


def as_work(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a node's function in the shape of Work, `(ctx, state)`, even if it does not take a context."""
    try:
        parameters = len(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        parameters = 2

    def call(ctx: Context, state: object) -> Any:  # a value or an awaitable, as `fn` returns it
        return fn(state, ctx) if parameters > 1 else fn(state)

    call.__wrapped__ = fn  # type: ignore[attr-defined]  # an interrupt looks up the file of the function
    return call
