"""Owns how a flow is written down: nodes, routes, composites, clean-ups, and how it is set going.

Knows nothing of the walk. A flow is Work: it can be a tool, a turn, or a node of another flow.
"""

import uuid
from collections.abc import Callable, Mapping
from operator import is_not
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast, get_args, overload

from ..abort import AbortSignal
from ..abort.clock import check_seconds
from ..abort.reason import caller
from ..abort.renamed_arguments import take_deadline
from ..errors import UsageError
from ..run.checkpoints import Checkpoints
from ..run.context import Context
from ..run.leaf import kind_of, name_of
from ..run.partial_work import PartialWork
from ..run.policy import Policy
from .checkpoint import Checkpoint
from .checkpoint_saver import CheckpointSaver, Resume
from .execution import FlowExecution
from .flow_run import FlowRun
from .graph import (
    END,
    ChildFlow,
    Cleanup,
    End,
    FlowError,
    Graph,
    Node,
    OnFailure,
    Parallel,
    Scatter,
    Step,
    Subflow,
    Target,
    children,
    problems,
    shape_of,
)
from .mermaid import draw
from .nested_flow import run_inside
from .node_options import NodeOptions, checked_name, checked_options, checked_plain, checked_policy, field, make_step
from .position import Position
from .result import FlowResult
from .state import clone, first_parameter
from .step import adapted

__all__ = ["Flow"]

State = TypeVar("State")
Services = TypeVar("Services")
F = TypeVar("F", bound=Callable[..., Any])
MAX_STEPS = 100_000


class RunOptions(TypedDict, Generic[Services], total=False):
    """How to run a flow: see `Flow.execute`."""

    signal: AbortSignal | None
    timeout: float | None
    services: Services
    abandon_after: float | None
    resume: Resume
    migrate: Callable[[Checkpoint], Checkpoint] | None
    checkpoints: Checkpoints | None
    checkpoint_id: str | None


class Flow(Generic[State, Services]):
    """Nodes and the routes between them.

    start      the first node
    max_steps  how many nodes may run in one execution: the bound of cycles
    state      the type of the state, where the nodes' annotations do not tell it
    """

    handles_abort = True  # as work it is not interrupted from outside: it stops by itself, leaf by leaf
    resumes_from_kept = True  # as a tool it is handed what an earlier run of the same call has left behind

    def __init__(self, name: str, start: str, *, max_steps: int = MAX_STEPS, state: type[State] | None = None) -> None:
        if max_steps < 1:
            raise UsageError(f"max_steps must be 1 or more, not {max_steps!r}")
        self.name = checked_name(name, "flow")
        self._start = start
        self._max_steps = max_steps
        self._state_type: Any = state
        self._nodes: dict[str, Node] = {}
        self._routes: dict[str, dict[str, Target]] = {}
        self._cleanups: list[Cleanup] = []
        self._graph: Graph | None = None
        self._inside: list[Graph] = []

    @overload
    def node(self, name: F, /) -> F: ...

    @overload
    def node(self, name: str | None = None, /, **options: Unpack[NodeOptions]) -> Callable[[F], F]: ...

    @overload
    def node(self, name: str, fn: F, /, **options: Unpack[NodeOptions]) -> F: ...

    def node(self, name: Any = None, fn: Any = None, /, **options: Unpack[NodeOptions]) -> Any:
        """Add a node: `@flow.node`, `@flow.node(outputs=…)`, or `flow.node("name", function, …)`.

        outputs  what the function may return, by default ("done",); None means the only one
        retry    a Retry: every attempt has a fresh copy of the state
        final    believe its result even if the stop came while it ran; the default for on_abort="finish"
        and every field of a Policy: on_abort, timeout, grace, warn_after, abandon_after, isolation
        """
        if callable(name):
            return self.node(None, name)  # type: ignore[call-overload]
        if fn is None:
            return lambda fn: self.node(name, fn, **options)
        self._add(make_step(name, fn, **options))
        return fn

    def route(self, node: str, target: Target | None = None, /, **targets: Target) -> None:
        """Say where each output of a node leads: another node, END or End("name"). A lone target is for "done"."""
        if target is not None:
            targets["done"] = target
        routes = self._routes.setdefault(node, {})
        for output, to in targets.items():
            if output in routes:
                raise FlowError(f"node {node!r}: output {output!r} has a route already, to {routes[output]!r}")
            if not isinstance(to, str | End):
                raise FlowError(f"node {node!r}: output {output!r} must lead to a node's name or an End, not {to!r}")
            routes[output] = to
        self._graph = None

    def subflow(
        self,
        name: str,
        child: "Flow[Any, Any]",
        *,
        into: Callable[[State], Any] | None = None,
        out: Callable[[State, Any], object] | None = None,
    ) -> None:
        """Add a flow as a node. Its ends are the outputs: END is "done", End("found") is "found".

        into  makes the child's state; without it, the child works on this state
        out   `out(state, child_state)` brings back what the child found
        """
        checked_plain(name, into=into, out=out)
        self._add(Subflow(checked_name(name, "node"), child, into, out))

    def parallel(
        self,
        name: str,
        branches: Mapping[str, "Flow[State, Any] | Callable[..., Any]"],
        *,
        join: Callable[[State, dict[str, State]], object] | None = None,
        on_failure: OnFailure = "interrupt",
    ) -> None:
        """Add several branches that run at once, each a function or a flow, each on its own copy of the state.

        join        `join(state, {branch: its state})`; without it, the fields that each branch changed
        on_failure  "interrupt" the others at once, or let them end and "collect" what there is
        """
        if not branches:
            raise FlowError(f"node {name!r}: a parallel node needs at least one branch")
        checked_plain(name, join=join)
        flows = {key: self._branch(key, body) for key, body in branches.items()}
        self._add(Parallel(checked_name(name, "node"), flows, join, checked_policy(on_failure)))

    def _branch(self, name: str, body: "Flow[State, Any] | Callable[..., Any]") -> "Flow[Any, Any]":
        checked_name(name, "branch")
        if isinstance(body, Flow):
            return body
        flow: Flow[Any, Any] = Flow(name, start=name, state=self._state_type)
        flow.node(name, body)
        flow.route(name, END)
        return flow

    def scatter(
        self,
        name: str,
        *,
        items: Callable[[State], Any] | str,
        body: "Flow[Any, Any] | Callable[..., Any]",
        gather: Callable[[State, list[Any]], object] | None = None,
        concurrency: int = 8,
        on_failure: OnFailure = "interrupt",
        **options: Unpack[NodeOptions],
    ) -> None:
        """Add a node that does the same to many items, so many at once.

        items   `items(state)`, or a field's name: a list, an iterable or an async iterable
        body    `body(item, ctx) -> result`, or a flow whose state the item is and whose last state is the result
        gather  `gather(state, results)`, in the order of the items
        """
        if concurrency < 1:
            raise FlowError(f"node {name!r}: concurrency must be 1 or more, not {concurrency!r}")
        checked_plain(name, items=items, gather=gather)
        part: Step | ChildFlow
        if isinstance(body, Flow):
            if options:
                raise FlowError(f"node {name!r}: its body is a flow: give retry and policies to the nodes in there")
            part = body
        else:
            part = make_step(f"{name}-item", body, **options)
        pull = field(items) if isinstance(items, str) else items
        self._add(Scatter(checked_name(name, "node"), pull, part, gather, concurrency, checked_policy(on_failure)))

    @overload
    def cleanup(self, fn: F, /) -> F: ...

    @overload
    def cleanup(self, fn: None = None, /, *, within: float = 5.0) -> Callable[[F], F]: ...

    def cleanup(self, fn: Any = None, /, *, within: float = 5.0) -> Any:
        """Add a function that runs when the flow is left, on every path: deaf to stops, but bounded.

        It sees a copy of the state; what it writes there is not kept. What it raises becomes a warning.
        """
        check_seconds("within", within)
        if fn is None:
            return lambda fn: self._cleanup(fn, within)
        return self._cleanup(fn, within)

    def _cleanup(self, fn: F, within: float) -> F:
        self._cleanups.append(Cleanup(name_of(fn), adapted(fn), kind_of(fn, Policy()), within))
        self._graph = None
        return fn

    def _add(self, node: Node) -> None:
        if node.name in self._nodes:
            raise FlowError(f"flow {self.name!r} has a node {node.name!r} already: give one of them another name")
        self._nodes[node.name] = node
        self._graph = None

    def graph(self) -> Graph:
        """The flow, checked. Raises: FlowError that lists every problem with its fix."""
        return self._checked(())

    def _checked(self, around: "tuple[Flow[Any, Any], ...]") -> Graph:
        if any(flow is self for flow in around):
            raise FlowError(f"flow {self.name!r} contains itself: a flow cannot be a node inside itself")
        parts = [child for node in self._nodes.values() for child in children(node).values()]
        inside = [part._checked((*around, self)) if isinstance(part, Flow) else part.graph() for part in parts]
        graph = self._graph
        if graph is None or len(inside) != len(self._inside) or any(map(is_not, inside, self._inside)):
            graph = self._compile()
            self._graph, self._inside = graph, inside
        return graph

    def _compile(self) -> Graph:
        routes = {name: dict(self._routes.get(name, {})) for name in {**self._nodes, **self._routes}}
        found = list(problems(self._start, self._nodes, routes))
        if found:
            told = "".join(f"\n  - {problem}" for problem in found)
            raise FlowError(f"flow {self.name!r} does not fit together:{told}")
        return Graph(
            self.name,
            self._start,
            dict(self._nodes),
            routes,
            tuple(self._cleanups),
            self._max_steps,
            self._find_state_type(),
            shape_of(self._nodes, routes),
        )

    def _find_state_type(self) -> Any:
        known = [self._state_type, *get_args(getattr(self, "__orig_class__", None))[:1]]
        for node in self._nodes.values():
            match node:
                case Step(fn=fn):
                    known.append(first_parameter(fn))
                case Subflow(child=child, into=None):
                    known.append(child.graph().state_type)
                case Parallel(branches=branches):
                    known += [child.graph().state_type for child in branches.values()]
                case Subflow(into=fn, out=other) | Scatter(items=fn, gather=other):
                    known += [first_parameter(each) for each in (fn, other) if each is not None]
        known = [kind for kind in known if kind is not None and not isinstance(kind, TypeVar)]
        return next((kind for kind in known if kind is not Any), known[0] if known else None)

    @property
    def input_type(self) -> Any:
        """What it is given as a tool of an agent: the type of the state."""
        return self._find_state_type() or Any

    def to_mermaid(self) -> str:
        """The flow as a picture."""
        return draw(self.graph())

    async def execute(
        self, state: State | None = None, /, **options: Unpack[RunOptions[Services]]
    ) -> FlowResult[State]:
        """Run it and say how it ended. Raises nothing for what a node did; UsageError for a wrong call.

        signal, timeout   either ends it; nodes see one signal
        services          what nodes find in `ctx.services`
        abandon_after     seconds after an abort, nodes that go on are left behind: a hard ceiling
        resume            a Checkpoint to go on from, instead of a state; `migrate` mends one of an older shape; or
                          "auto", beside a state: go on from what the store has, or begin if it has nothing
        checkpoints       a store: a checkpoint is written before the first node and after every node, under
                          `checkpoint_id`, of which this run has the lease until it has ended

        Raises also, before anything is run: CheckpointInUse, CheckpointUnfinished, CheckpointCompleted.
        """
        return await self._run(caller(1), state, options)

    def start(self, state: State | None = None, /, **options: Unpack[RunOptions[Services]]) -> FlowRun[State]:
        """The same, as a FlowRun: its events can be iterated, and it can be stopped at a safe point."""
        return self._run(caller(1), state, options)

    def _run(self, origin: str | None, state: State | None, options: RunOptions[Services]) -> FlowRun[State]:
        graph = self.graph()
        if "deadline" in options:
            take_deadline(cast("dict[str, object]", options), stacklevel=4)
        checked_options(options, RunOptions)
        resume, store, key = options.get("resume"), options.get("checkpoints"), options.get("checkpoint_id")
        _check_resume(state, resume, store)
        if (store is None) != (key is None):
            raise UsageError("checkpoints= and checkpoint_id= belong together: a store, and the name in it")
        if isinstance(resume, Checkpoint):
            place, execution = resume.place_in(graph, options.get("migrate")), resume.execution()
        else:
            place, execution = Position.start(graph, clone(state)), FlowExecution(uuid.uuid4().hex)
        execution.services = options.get("services")
        execution.abandon_after = limit = options.get("abandon_after")
        if limit is not None:
            check_seconds("abandon_after", limit)
        return FlowRun(
            place,
            execution,
            signal=options.get("signal"),
            timeout=options.get("timeout"),
            origin=origin,
            saving=None
            if store is None or key is None
            else CheckpointSaver(store, key, resume, options.get("migrate")),
        )

    async def __call__(self, ctx: Context, value: State | Checkpoint | PartialWork, /) -> State:
        """As work: a state, or the partial of a stopped run. Raises: AbortError with a Checkpoint; what a node raised.

        Given the context of a run, it is that run; given the context of a leaf, it is a run inside. In a tool call it
        also goes on from `ctx.kept`.
        """
        state: State = await run_inside(self.graph(), ctx, value)
        return state


def _check_resume(state: object, resume: object, store: Checkpoints | None) -> None:
    """Raises: UsageError for what does not go together."""
    if resume == "auto":
        if state is None or store is None:
            raise UsageError('resume="auto" needs a state to begin with, checkpoints= and checkpoint_id=')
        return
    if not isinstance(resume, Checkpoint | None):
        raise UsageError(f'resume must be a Checkpoint, such as Checkpoint.load(…), or "auto", not {resume!r}')
    if (state is None) == (resume is None):
        raise UsageError("give a state, or resume=Checkpoint.load(…): one of the two")
