"""Flows for tests: nodes that record that they ran, and that wait or fail where the test wants it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from safepoint.flow import END, Checkpoint, End, Flow, FlowResult, FlowRun, NodeContext

FOREVER = 3600.0


@dataclass
class Trail:
    """A state that remembers who was there."""

    notes: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)


class NodeRecorder:
    """Makes nodes. `ran`: those that began, in order; `keys`: with which idempotency keys.

    Those in `stuck` wait for ever, once, and say so with `reached`; those in `broken` raise; those in `after` wait.
    """

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.keys: dict[str, list[str]] = {}
        self.stuck: set[str] = set()
        self.broken: set[str] = set()
        self.reached = asyncio.Event()
        self.after: dict[str, asyncio.Event] = {}

    async def visit(self, name: str, ctx: NodeContext[Any]) -> None:
        self.ran.append(name)
        self.keys.setdefault(name, []).append(ctx.idempotency_key)
        if name in self.after:
            await self.after[name].wait()
        if name in self.stuck:
            self.stuck.remove(name)
            self.reached.set()
            await asyncio.get_running_loop().create_future()
        if name in self.broken:
            raise LookupError(f"{name} is broken")

    def node(self, name: str) -> Callable[..., Any]:
        async def node(state: Trail, ctx: NodeContext[Any]) -> None:
            await self.visit(name, ctx)
            state.notes.append(name)

        return node

    def line(self, flow_name: str, *names: str, end: End = END) -> Flow[Trail, Any]:
        """A flow of these nodes, one after the other."""
        flow: Flow[Trail, Any] = Flow(flow_name, start=names[0])
        targets: list[str | End] = [*names[1:], end]
        for name, target in zip(names, targets, strict=True):
            flow.node(name, self.node(name))
            flow.route(name, target)
        return flow

    async def item(self, item: str, ctx: NodeContext[Any]) -> str:
        """The body of a scatter."""
        await self.visit(item, ctx)
        return item.upper()

    async def stop_in(self, name: str, run: FlowRun[Any], reason: str = "enough") -> FlowResult[Any]:
        """Abort a run when it is inside this node."""
        self.stuck.add(name)
        self.reached.clear()
        async with run:
            await self.reached.wait()
            run.abort(reason)
            return await run


def again(result: FlowResult[Any]) -> Checkpoint:
    """The checkpoint of a result, as another process would read it."""
    return Checkpoint.from_json(Checkpoint.from_result(result).to_json())


def one(fn: Callable[..., Any], /, state: Any = None, **options: Any) -> Flow[Any, Any]:
    """A flow of one node, `it`."""
    flow: Flow[Any, Any] = Flow("flow", start="it", state=state)
    flow.node("it", fn, **options)
    flow.route("it", **dict.fromkeys(options.get("outputs", ("done",)), END))
    return flow
