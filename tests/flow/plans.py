"""Flows made up by Hypothesis: every kind of node, nested, each of which says in the state and outside that it ran."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

from safepoint.flow import END, Flow, NodeContext

Source = Literal["list", "generator", "async"]


@dataclass
class Log:
    """A state that remembers who was there, in order."""

    log: list[str] = field(default_factory=list)
    rounds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """A function that waits so often. `breaks`: the first time it fails. `safe`: it has safe points inside."""

    pauses: int = 1
    breaks: bool = False
    safe: bool = False


@dataclass(frozen=True)
class Sub:
    """A flow inside. `mapped`: with a state of its own. `rounds`: it is visited so often, in a cycle."""

    parts: tuple["Part", ...]
    mapped: bool = False
    rounds: int = 1


@dataclass(frozen=True)
class Par:
    """Flows at once."""

    branches: tuple[tuple["Part", ...], ...]
    collect: bool = False


@dataclass(frozen=True)
class Each:
    """The same for so many items. `parts` empty: the body is a function."""

    items: int
    body: Node
    parts: tuple["Part", ...] = ()
    source: Source = "list"
    concurrency: int = 2
    collect: bool = False


Part: TypeAlias = Node | Sub | Par | Each

nodes = st.builds(Node, st.integers(0, 2), st.booleans(), st.booleans())


def _lines(parts: "st.SearchStrategy[Part]", most: int = 3) -> "st.SearchStrategy[tuple[Part, ...]]":
    return st.lists(parts, min_size=1, max_size=most).map(tuple)


def _composites(parts: "st.SearchStrategy[Part]") -> "st.SearchStrategy[Part]":
    sources = st.sampled_from(["list", "generator", "async"])
    return st.one_of(
        st.builds(Sub, _lines(parts), st.booleans(), st.integers(1, 2)),
        st.builds(Par, st.lists(_lines(parts, 2), min_size=1, max_size=3).map(tuple), st.booleans()),
        st.builds(
            Each,
            st.integers(0, 3),
            nodes,
            st.just(()) | _lines(parts, 2),
            sources,
            st.integers(1, 3),
            st.booleans(),
        ),
    )


def size(parts: tuple[Part, ...]) -> int:
    """How many nodes there are, those of composites included."""
    total = 0
    for part in parts:
        total += 1
        match part:
            case Sub(parts=inner):
                total += size(inner)
            case Par(branches=branches):
                total += sum(map(size, branches))
            case Each(parts=inner):
                total += size(inner)
            case Node():
                pass
    return total


plans: "st.SearchStrategy[tuple[Part, ...]]" = _lines(
    st.recursive(nodes, _composites, max_leaves=12),
    4,
).filter(lambda parts: size(parts) <= 30)


class World:
    """What is outside of the state: effects by their key, and who has failed already."""

    def __init__(self, *, breaks: bool, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self.effects: dict[str, str] = {}
        self.ran: dict[str, int] = {}
        self.broken: set[str] = set()
        self._breaks = breaks
        self._pause = pause or _yield

    async def visit(self, name: str, node: Node, ctx: NodeContext[Any]) -> None:
        """What every node does."""
        key = ctx.idempotency_key.partition(":")[2]  # without the run, which differs
        self.ran[key] = self.ran.get(key, 0) + 1
        for _ in range(node.pauses):
            await self._pause()
        if node.safe:
            await ctx.safe_point()
        if node.breaks and self._breaks and key not in self.broken:
            self.broken.add(key)
            raise LookupError(f"{key} is broken for once")
        self.effects.setdefault(key, name)
        for _ in range(node.pauses):
            await self._pause()

    def build(self, parts: tuple[Part, ...], name: str = "flow") -> Flow[Log, Any]:
        """The flow of a plan."""
        flow: Flow[Log, Any] = Flow(name, start=f"{name}.0", state=Log)
        for number, part in enumerate(parts):
            target = f"{name}.{number + 1}" if number + 1 < len(parts) else END
            self._add(flow, f"{name}.{number}", part, target)
        return flow

    def _add(self, flow: Flow[Log, Any], name: str, part: Part, target: Any) -> None:
        match part:
            case Node():
                flow.node(name, self._function(name, part))
                flow.route(name, target)
            case Sub(parts=parts, mapped=mapped, rounds=rounds):
                maps: dict[str, Any] = {"into": lambda state: Log(), "out": _extend} if mapped else {}
                flow.subflow(name, self.build(parts, name), **maps)
                flow.node(f"{name}?", _rounds(name, rounds), outputs=("again", "done"))
                flow.route(name, f"{name}?")
                flow.route(f"{name}?", target, again=name)
            case Par(branches=branches, collect=collect):
                flows = {f"b{number}": self.build(inner, f"{name}b{number}") for number, inner in enumerate(branches)}
                flow.parallel(name, flows, join=_join, on_failure="collect" if collect else "interrupt")
                flow.route(name, target)
            case Each():
                self._scatter(flow, name, part)
                flow.route(name, target)

    def _scatter(self, flow: Flow[Log, Any], name: str, part: Each) -> None:
        body: Any = self._item(name, part.body) if not part.parts else self.build(part.parts, f"{name}i")
        items = [Log() for _ in range(part.items)] if part.parts else list(range(part.items))

        def generate(state: Log) -> Iterator[Any]:
            yield from items

        async def generate_async(state: Log) -> AsyncIterator[Any]:
            for item in items:
                await self._pause()
                yield item

        sources: dict[Source, Any] = {"list": lambda state: items, "generator": generate, "async": generate_async}
        flow.scatter(
            name,
            items=sources[part.source],
            body=body,
            gather=_gather,
            concurrency=part.concurrency,
            on_failure="collect" if part.collect else "interrupt",
        )

    def _function(self, name: str, node: Node) -> Any:
        async def run(state: Log, ctx: NodeContext[Any]) -> None:
            await self.visit(name, node, ctx)
            state.log.append(name)

        return run

    def _item(self, name: str, node: Node) -> Any:
        async def run(item: int, ctx: NodeContext[Any]) -> str:
            await self.visit(f"{name}#{item}", node, ctx)
            return f"{name}#{item}"

        return run


async def _yield() -> None:
    await asyncio.sleep(0)


def _extend(state: Log, child: Log) -> None:
    state.log += child.log


def _join(state: Log, branches: dict[str, Log]) -> None:
    before = len(state.log)
    for name in sorted(branches):
        state.log += branches[name].log[before:]
        state.rounds |= branches[name].rounds


def _gather(state: Log, results: list[Any]) -> None:
    for number, result in enumerate(results):
        state.log += [f"{number}:{entry}" for entry in ([result] if isinstance(result, str) else result.log)]


def _rounds(name: str, rounds: int) -> Any:
    async def check(state: Log) -> str:
        state.rounds[name] = state.rounds.get(name, 0) + 1
        if state.rounds[name] < rounds:
            return "again"
        del state.rounds[name]
        return "done"

    return check
