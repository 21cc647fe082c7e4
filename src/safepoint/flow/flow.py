"""Owns the definition of flows by users: nodes, routes, composites, clean-ups, and how a run is started.

A flow is Work: it can be a tool, a turn, or a node of another flow. Knows nothing of how nodes run.
"""

import uuid
from collections.abc import Callable, Mapping
from operator import is_not
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args, overload

from ..abort import AbortSignal
from ..abort.clock import check_seconds
from ..abort.reason import caller
from ..abort.renamed_arguments import take_deadline
from ..errors import UsageError
from ..run.context import Context
from ..run.leaf import kind_of, name_of
from ..run.partial_work import PartialWork
from ..run.policy import Policy
from ..storage.checkpoints import Checkpoints
from .checkpoint import Checkpoint
from .checkpoint_saver import CheckpointSaver, Resume
from .execution import FlowExecution
from .flow_run import FlowResult, FlowRun, run_inside
from .graph import (
    END,
    ChildFlow,
    Cleanup,
    End,
    FlowError,
    Graph,
    Items,
    Node,
    NodeOptions,
    OnFailure,
    Parallel,
    Scatter,
    Step,
    Subflow,
    Target,
    as_work,
    checked_name,
    checked_on_failure,
    children,
    field_reader,
    make_step,
    problems,
    require_known_options,
    require_sync,
    shape_of,
)
from .mermaid import draw
from .position import Position
from .state import clone, first_parameter

__all__ = ["Flow"]

State = TypeVar("State")
Services = TypeVar("Services")
ChildState = TypeVar("ChildState")
F = TypeVar("F", bound=Callable[..., object])
MAX_STEPS = 100_000


class RunOptions(TypedDict, Generic[Services], total=False):
    """The options of a run: see `Flow.execute`."""

    signal: AbortSignal | None
    timeout: float | None
    services: Services
    abandon_after: float | None
    resume: Resume
    migrate: Callable[[Checkpoint], Checkpoint] | None
    checkpoints: Checkpoints | None
    checkpoint_id: str | None


class Flow(Generic[State, Services]):
    """Nodes and the routes between them."""

    # When it runs as Work, nothing interrupts it from outside: it stops by itself, leaf by leaf.
    handles_abort = True
    # As a tool it gets what an earlier, stopped run of the same call has kept.
    resumes_from_kept = True

    def __init__(self, name: str, start: str, *, max_steps: int = MAX_STEPS, state: type[State] | None = None) -> None:
        """Make a flow without nodes.

        Args:
            name: The name in events, receipts and checkpoints.
            start: The first node.
            max_steps: How many nodes may run in one execution, so that a cycle cannot run forever.
            state: The type of the state, if the annotations of the nodes do not say it.

        Raises:
            UsageError: An argument is wrong.
        """
        if max_steps < 1:
            raise UsageError(f"max_steps must be 1 or more, not {max_steps!r}")
        self.name = checked_name(name, "flow")
        self._start = start
        self._max_steps = max_steps
        self._state_type: object = state
        self._nodes: dict[str, Node] = {}
        self._routes: dict[str, dict[str, Target]] = {}
        self._cleanups: list[Cleanup] = []
        self._graph: Graph | None = None
        self._inner_graphs: list[Graph] = []

    @overload
    def node(self, name: F, /) -> F: ...

    @overload
    def node(self, name: str | None = None, /, **options: Unpack[NodeOptions]) -> Callable[[F], F]: ...

    @overload
    def node(self, name: str, fn: F, /, **options: Unpack[NodeOptions]) -> F: ...

    def node(self, name: Any = None, fn: Any = None, /, **options: Unpack[NodeOptions]) -> object:
        """Add a node: `@flow.node`, `@flow.node(outputs=…)`, or `flow.node("name", function, …)`.

        Args:
            name: The name of the node; by default that of the function.
            fn: The function: `fn(state)` or `fn(state, ctx)`, sync or async. It returns one of the outputs.
            **options: Any of these, and every field of a Policy (`on_abort`, `timeout`, `grace`, …):
                outputs: What the function may return, by default ("done",). None stands for the only one.
                retry: A Retry. Every attempt gets a fresh copy of the state.
                final: True if the result counts even when a stop came while the node ran. The default for
                    on_abort="finish".

        Returns:
            The function; without one, a decorator.

        Raises:
            FlowError: The name, the function or an option is wrong.
        """
        if callable(name):
            name, fn = None, name
        if fn is None:
            return lambda fn: self.node(name, fn, **options)
        self._add(make_step(name, fn, **options))
        return fn

    def route(self, node: str, target: Target | None = None, /, **targets: Target) -> None:
        """Set where the outputs of a node lead.

        Args:
            node: The name of the node.
            target: Where "done" leads: the name of another node, END or End("name").
            **targets: Where other outputs lead.

        Raises:
            FlowError: An output has a route already, or a target is neither a name nor an End.
        """
        if target is not None:
            targets["done"] = target
        routes = self._routes.setdefault(node, {})
        for output, leads_to in targets.items():
            if output in routes:
                raise FlowError(f"node {node!r}: output {output!r} has a route already, to {routes[output]!r}")
            if not isinstance(leads_to, str | End):
                raise FlowError(
                    f"node {node!r}: output {output!r} must lead to a node's name or an End, not {leads_to!r}"
                )
            routes[output] = leads_to
        self._graph = None

    def subflow(
        self,
        name: str,
        child: "Flow[ChildState, Any]",
        *,
        into: Callable[[State], ChildState] | None = None,
        out: Callable[[State, ChildState], object] | None = None,
    ) -> None:
        """Add a flow as a node. Its ends are the outputs: END is "done", End("found") is "found".

        Args:
            name: The name of the node.
            child: The flow.
            into: Makes the child's state; without it, the child works on this flow's state.
            out: `out(state, child_state)` brings back what the child found.

        Raises:
            FlowError: An argument is wrong.
        """
        require_sync(name, into=into, out=out)
        self._add(Subflow(checked_name(name, "node"), child, into, out))

    def parallel(
        self,
        name: str,
        branches: Mapping[str, "Flow[State, Any] | Callable[..., object]"],
        *,
        join: Callable[[State, dict[str, State]], object] | None = None,
        on_failure: OnFailure = "interrupt",
    ) -> None:
        """Add a node of several branches that run at once, each on its own copy of the state.

        Args:
            name: The name of the node.
            branches: A function or a flow for each branch.
            join: `join(state, {branch: its state})` brings back what the branches did. Without it, the state gets the
                fields that they changed.
            on_failure: What happens to the other branches if one fails: "interrupt" them at once, or let them end and
                "collect" what there is.

        Raises:
            FlowError: An argument is wrong.
        """
        if not branches:
            raise FlowError(f"node {name!r}: a parallel node needs at least one branch")
        require_sync(name, join=join)
        flows = {key: self._branch(key, body) for key, body in branches.items()}
        self._add(Parallel(checked_name(name, "node"), flows, join, checked_on_failure(on_failure)))

    def _branch(self, name: str, body: "Flow[State, Any] | Callable[..., object]") -> "AnyFlow":
        checked_name(name, "branch")
        if isinstance(body, Flow):
            return body
        flow: AnyFlow = Flow(name, start=name)
        flow._state_type = self._state_type
        flow.node(name, body)
        flow.route(name, END)
        return flow

    def scatter(
        self,
        name: str,
        *,
        items: Callable[[State], Items] | str,
        body: "AnyFlow | Callable[..., object]",
        gather: Callable[[State, list[Any]], object] | None = None,
        concurrency: int = 8,
        on_failure: OnFailure = "interrupt",
        **options: Unpack[NodeOptions],
    ) -> None:
        """Add a node that does the same to many items, several at once.

        Args:
            name: The name of the node.
            items: `items(state)`, or the name of a field: a list, an iterable or an async iterable.
            body: `body(item, ctx) -> result`, or a flow that has the item as its state and whose last state is the
                result.
            gather: `gather(state, results)` brings back the results, in the order of the items.
            concurrency: How many items run at once.
            on_failure: What happens to the other items if one fails: "interrupt" them at once, or let them end and
                "collect" what there is.
            **options: For a function as the body: those of `node`.

        Raises:
            FlowError: An argument is wrong.
        """
        if concurrency < 1:
            raise FlowError(f"node {name!r}: concurrency must be 1 or more, not {concurrency!r}")
        require_sync(name, items=items, gather=gather)
        step_or_flow: Step | ChildFlow
        if isinstance(body, Flow):
            if options:
                raise FlowError(f"node {name!r}: its body is a flow: give retry and policies to the nodes in there")
            step_or_flow = body
        else:
            step_or_flow = make_step(f"{name}-item", body, **options)
        read_items = field_reader(items) if isinstance(items, str) else items
        self._add(
            Scatter(
                checked_name(name, "node"),
                read_items,
                step_or_flow,
                gather,
                concurrency,
                checked_on_failure(on_failure),
            )
        )

    @overload
    def cleanup(self, fn: F, /) -> F: ...

    @overload
    def cleanup(self, fn: None = None, /, *, within: float = 5.0) -> Callable[[F], F]: ...

    def cleanup(self, fn: Any = None, /, *, within: float = 5.0) -> object:
        """Add a function that runs when the flow ends, on every path. Stops do not interrupt it.

        It gets a copy of the state, and what it writes there is not kept. What it raises becomes a warning.

        Args:
            fn: The function: `fn(state)` or `fn(state, ctx)`, sync or async.
            within: How many seconds it may take.

        Returns:
            The function; without one, a decorator.
        """
        check_seconds("within", within)
        if fn is None:
            return lambda fn: self._cleanup(fn, within)
        return self._cleanup(fn, within)

    def _cleanup(self, fn: F, within: float) -> F:
        self._cleanups.append(Cleanup(name_of(fn), as_work(fn), kind_of(fn, Policy()), within))
        self._graph = None
        return fn

    def _add(self, node: Node) -> None:
        if node.name in self._nodes:
            raise FlowError(f"flow {self.name!r} has a node {node.name!r} already: give one of them another name")
        self._nodes[node.name] = node
        self._graph = None

    def graph(self) -> Graph:
        """Return the checked definition. Raises: FlowError that lists every problem with its fix."""
        return self._checked(())

    def _checked(self, enclosing: "tuple[AnyFlow, ...]") -> Graph:
        if any(flow is self for flow in enclosing):
            raise FlowError(f"flow {self.name!r} contains itself: a flow cannot be a node inside itself")
        parts = [child for node in self._nodes.values() for child in children(node).values()]
        inner = [part._checked((*enclosing, self)) if isinstance(part, Flow) else part.graph() for part in parts]
        graph = self._graph
        if graph is None or len(inner) != len(self._inner_graphs) or any(map(is_not, inner, self._inner_graphs)):
            graph = self._compile()
            self._graph, self._inner_graphs = graph, inner
        return graph

    def _compile(self) -> Graph:
        routes = {name: dict(self._routes.get(name, {})) for name in {**self._nodes, **self._routes}}
        found = list(problems(self._start, self._nodes, routes))
        if found:
            text = "".join(f"\n  - {problem}" for problem in found)
            raise FlowError(f"flow {self.name!r} does not fit together:{text}")
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

    def _find_state_type(self) -> object:
        """Return the type of the state: as given, or as the nodes annotate it; None if nothing says it."""
        known: list[object] = [self._state_type, *get_args(getattr(self, "__orig_class__", None))[:1]]
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
        return next((kind for kind in known if kind is not object), known[0] if known else None)

    @property
    def input_type(self) -> object:
        """The type of its input as a tool of an agent: that of the state."""
        return self._find_state_type() or object

    def to_mermaid(self) -> str:
        """Return the flow as a Mermaid chart."""
        return draw(self.graph())

    async def execute(
        self, state: State | None = None, /, **options: Unpack[RunOptions[Services]]
    ) -> FlowResult[State]:
        """Run the flow and return how it ended. What a node raises is in the result.

        Args:
            state: The state to begin with.
            **options: Any of these:
                signal: Stops the run.
                timeout: Seconds after which the run is stopped. Nodes see one signal for both.
                services: What nodes find in `ctx.services`.
                abandon_after: Seconds after an abort at which nodes that still run are abandoned.
                resume: A Checkpoint to continue from, instead of a state. Or "auto", beside a state: continue from
                    what the store has, or begin if it has nothing.
                migrate: Turns a checkpoint of an older shape of the flow into one of today's.
                checkpoints: A store. A checkpoint is written before the first node and after every node.
                checkpoint_id: The name of the checkpoint in the store. The run holds its lease until it has ended.

        Raises:
            UsageError: The options do not go together.
            CheckpointInUse: Another run has this checkpoint id. Nothing was run, as for the next two.
            CheckpointUnfinished: The run would overwrite one that has not completed.
            CheckpointCompleted: The run has completed before, and its result is not available.
        """
        return await self._run(caller(1), state, options)

    def start(self, state: State | None = None, /, **options: Unpack[RunOptions[Services]]) -> FlowRun[State]:
        """Make a run with the options of `execute`, and return its handle: to stop it and to iterate its events."""
        return self._run(caller(1), state, options)

    def _run(self, origin: str | None, state: State | None, options: RunOptions[Services]) -> FlowRun[State]:
        graph = self.graph()
        if "deadline" in options:
            take_deadline(cast("dict[str, object]", options), stacklevel=4)
        require_known_options(options, RunOptions)
        resume, store, key = options.get("resume"), options.get("checkpoints"), options.get("checkpoint_id")
        _check_resume(state, resume, store)
        if (store is None) != (key is None):
            raise UsageError("checkpoints= and checkpoint_id= belong together: a store, and the name in it")
        if isinstance(resume, Checkpoint):
            position, execution = resume.position_in(graph, options.get("migrate")), resume.execution()
        else:
            position, execution = Position.start(graph, clone(state)), FlowExecution(uuid.uuid4().hex)
        execution.services = options.get("services")
        execution.abandon_after = limit = options.get("abandon_after")
        if limit is not None:
            check_seconds("abandon_after", limit)
        saver = None
        if store is not None and key is not None:
            saver = CheckpointSaver(store, key, resume, options.get("migrate"))
        return FlowRun(
            position,
            execution,
            signal=options.get("signal"),
            timeout=options.get("timeout"),
            origin=origin,
            saver=saver,
        )

    async def __call__(self, ctx: Context, value: State | Checkpoint | PartialWork, /) -> State:
        """Run the flow as Work.

        Args:
            ctx: The context of a run, which this then is, or of a leaf, in which this becomes a child run.
            value: A state, or what a stopped run left behind: its `partial`, or the `ctx.kept` of a tool call.

        Raises:
            AbortError: The run was stopped. Its `partial` is a Checkpoint.
            Exception: What a node raised.
        """
        state: State = await run_inside(self.graph(), ctx, value)
        return state


# A flow whose state and services this module does not know.
AnyFlow: TypeAlias = Flow[Any, Any]


def _check_resume(state: object, resume: object, store: Checkpoints | None) -> None:
    """Raises: UsageError if the arguments do not go together."""
    if resume == "auto":
        if state is None or store is None:
            raise UsageError('resume="auto" needs a state to begin with, checkpoints= and checkpoint_id=')
        return
    if not isinstance(resume, Checkpoint | None):
        raise UsageError(f'resume must be a Checkpoint, such as Checkpoint.load(…), or "auto", not {resume!r}')
    if (state is None) == (resume is None):
        raise UsageError("give a state, or resume=Checkpoint.load(…): one of the two")
