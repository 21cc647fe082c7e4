"""Owns three graphs, each written for Safepoint, LangGraph and pydantic-graph: a row, a fork that is passed again and
again, and a fan-out. The state is the same everywhere, and so is what a node does: it counts.

Peers run at their cheapest: LangGraph without a checkpointer, pydantic-graph without spans.
"""

import asyncio
import operator
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import langgraph.graph as lang
import pydantic_graph as pydantic
from langgraph.types import Send

from safepoint.flow import END, Flow

from ..measure import Contender, cpu

__all__ = [
    "FORKED",
    "fan",
    "fork",
    "lang_fan",
    "lang_fork",
    "lang_row",
    "pydantic_fan",
    "pydantic_fork",
    "pydantic_row",
    "row",
]

# Runs a graph once and returns the state's count.
Run: TypeAlias = Callable[[], Awaitable[int]]

FORKED = 101  # nodes until the fork is left: it is every second one


@dataclass
class State:
    """Of a usual size: a few fields, a list and a dict."""

    count: int = 0
    found: Annotated[list[int], operator.add] = field(default_factory=list)  # LangGraph's way to say: append
    title: str = "what is known about owls"
    notes: list[str] = field(default_factory=lambda: [f"note {number}" for number in range(20)])
    scores: dict[str, float] = field(default_factory=lambda: {f"owl {number}": 0.5 for number in range(10)})


def once(run: Run, nodes: int, count: int) -> Contender:
    """The CPU seconds that one of `nodes` costs. The graph must have counted to `count`: else it did not run."""

    async def measured() -> float:
        start = cpu()
        counted = await run()
        seconds = cpu() - start
        if counted != count:
            raise AssertionError(f"the graph counted to {counted}, not to {count}")
        return seconds / nodes

    return lambda: asyncio.run(measured())


def way(count: int) -> str:
    """Where the fork leads."""
    return "end" if count >= FORKED else "left" if count % 4 == 1 else "right"


# Safepoint


def row(size: int, notes: int = 20) -> Contender:
    """`size` different nodes, one after the other."""
    flow: Flow[State, None] = Flow("row", start="0")

    async def step(state: State) -> None:
        state.count += 1

    for number in range(size):
        flow.node(str(number), step)
        flow.route(str(number), END if number + 1 == size else str(number + 1))
    flow.graph()
    state = State(notes=[f"note {number}" for number in range(notes)])
    return once(lambda: executed(flow, state), size, size)


def fork() -> Contender:
    """A node with three ways out, two of which lead back to it."""
    flow: Flow[State, None] = Flow("fork", start="fork")

    async def choose(state: State) -> str:
        state.count += 1
        return way(state.count)

    async def step(state: State) -> None:
        state.count += 1

    flow.node("fork", choose, outputs=("left", "right", "end"))
    for name in ("left", "right"):
        flow.node(name, step)
        flow.route(name, "fork")
    flow.route("fork", left="left", right="right", end=END)
    return once(lambda: executed(flow, State()), FORKED, FORKED)


def fan(size: int, *, concurrency: int, gather: bool = True) -> Contender:
    """`size` items, each done by a node of its own; then their sum."""
    flow: Flow[State, None] = Flow("fan", start="fan")

    def total(state: State, results: list[int]) -> None:
        state.count = sum(results)

    flow.scatter(
        "fan",
        items=lambda state: range(size),
        body=item,
        concurrency=concurrency,
        gather=total if gather else None,
    )
    flow.route("fan", END)
    return once(lambda: executed(flow, State()), size, sum(range(1, size + 1)) if gather else 0)


async def item(number: int) -> int:
    await asyncio.sleep(0)  # so that items really are side by side
    return number + 1


async def executed(flow: Flow[State, None], state: State) -> int:
    return (await flow.execute(state)).outcome.unwrap().count


# LangGraph


def lang_row(size: int) -> Contender:
    graph = lang.StateGraph(State)
    last = lang.START
    for number in range(size):
        graph.add_node(str(number), lang_step)
        graph.add_edge(last, str(number))
        last = str(number)
    graph.add_edge(last, lang.END)
    return once(lang_run(graph), size, size)


def lang_fork() -> Contender:
    graph = lang.StateGraph(State)
    for name in ("fork", "left", "right"):
        graph.add_node(name, lang_step)
    graph.add_edge(lang.START, "fork")
    graph.add_conditional_edges(
        "fork", lambda state: way(state.count), {"left": "left", "right": "right", "end": lang.END}
    )
    graph.add_edge("left", "fork")
    graph.add_edge("right", "fork")
    return once(lang_run(graph), FORKED, FORKED)


def lang_fan(size: int) -> Contender:
    graph = lang.StateGraph(State)

    async def one(number: int) -> dict[str, list[int]]:
        return {"found": [await item(number)]}

    async def total(state: State) -> dict[str, int]:
        return {"count": sum(state.found)}

    nodes: Any = graph  # its types expect that every node takes the state; an item of Send is one's own choice
    nodes.add_node("item", one)
    nodes.add_node("total", total)
    graph.add_conditional_edges(lang.START, lambda state: [Send("item", number) for number in range(size)], ["item"])
    graph.add_edge("item", "total")
    graph.add_edge("total", lang.END)
    return once(lang_run(graph), size, sum(range(1, size + 1)))


async def lang_step(state: State) -> dict[str, int]:
    return {"count": state.count + 1}


def lang_run(graph: Any) -> Run:
    compiled = graph.compile()

    async def run() -> int:
        return int((await compiled.ainvoke(State(), {"recursion_limit": 1_000_000}))["count"])

    return run


# pydantic-graph


def pydantic_row(size: int) -> Contender:
    graph: Any = pydantic.GraphBuilder(state_type=State, auto_instrument=False)
    last = graph.start_node
    for number in range(size):
        step = graph.step(pydantic_step, node_id=str(number))
        graph.add(graph.edge_from(last).to(step))
        last = step
    graph.add(graph.edge_from(last).to(graph.end_node))
    return once(pydantic_run(graph), size, size)


def pydantic_fork() -> Contender:
    graph: Any = pydantic.GraphBuilder(state_type=State, auto_instrument=False)

    async def choose(ctx: Any) -> str:
        ctx.state.count += 1
        return way(ctx.state.count)

    fork = graph.step(choose, node_id="fork")
    left, right = (graph.step(pydantic_step, node_id=name) for name in ("left", "right"))
    ways = graph.decision()
    for output, target in ((Literal["left"], left), (Literal["right"], right), (Literal["end"], graph.end_node)):
        ways = ways.branch(graph.match(output).to(target))
    graph.add(
        graph.edge_from(graph.start_node).to(fork),
        graph.edge_from(fork).to(ways),
        graph.edge_from(left, right).to(fork),
    )
    return once(pydantic_run(graph), FORKED, FORKED)


def pydantic_fan(size: int) -> Contender:
    graph: Any = pydantic.GraphBuilder(state_type=State, auto_instrument=False)

    async def plan(ctx: Any) -> range:
        return range(size)

    async def one(ctx: Any) -> int:
        return await item(ctx.inputs)

    async def total(ctx: Any) -> None:
        ctx.state.count = sum(ctx.inputs)

    steps = [graph.step(fn, node_id=fn.__name__) for fn in (plan, one, total)]
    join = graph.join(pydantic.reduce_list_append, initial_factory=list)
    graph.add(
        graph.edge_from(graph.start_node).to(steps[0]),
        graph.edge_from(steps[0]).map().to(steps[1]),
        graph.edge_from(steps[1]).to(join),
        graph.edge_from(join).to(steps[2]),
        graph.edge_from(steps[2]).to(graph.end_node),
    )
    return once(pydantic_run(graph), size, sum(range(1, size + 1)))


async def pydantic_step(ctx: Any) -> None:
    ctx.state.count += 1


def pydantic_run(graph: Any) -> Run:
    built = graph.build()

    async def run() -> int:
        state = State()
        await built.run(state=state)
        return state.count

    return run
