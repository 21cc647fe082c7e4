"""Owns the node that does one thing to many items: so many at a time, each acknowledged when it has reached its end.

Items are pulled only when there is room for them. Knows nothing of how a flow inside is walked: it is handed the walk.
"""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..abort.guard import external_cancel_count
from ..run.context import Context
from ..run.leaf import leaf
from ..run.policy import Policy
from ..run.settle import run_cleanup
from ..run.stop import StopAt
from .composite import BranchGroup, Walk
from .execution import FlowExecution
from .graph import Graph, Scatter, Step
from .node_results import BodyReturned, NodeDone, NodeEnd, NodeFailed, NodeInterrupted, StepEnd, WalkFinished
from .position import Position, ScatterAt
from .state import clone
from .step import Attempts, disruption

__all__ = ["run_scatter"]

# How long a source may take to close before the flow goes on without it.
CLOSE_SECONDS = 5.0
NO_MORE = object()


async def run_scatter(execution: FlowExecution, ctx: Context, place: Position, node: Scatter, walk: Walk) -> NodeEnd:
    """Do all items that are not done yet, then gather the results in the order of the items."""
    at = place.inside
    if not isinstance(at, ScatterAt):
        at = place.inside = ScatterAt()
    siblings = BranchGroup(ctx, node.name, node.on_failure)
    source = ItemSource(node.items(clone(place.state)), at, siblings.ctx, execution.abandon_after)
    work = Items(execution, siblings, place, node, at, source, walk)
    workers = node.concurrency if source.total is None else min(node.concurrency, source.total - at.done)
    passing: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(work.until_empty(), name=f"{siblings.ctx.operation}#{number}")
    finally:
        if source.close is not None:
            passing = await run_cleanup(siblings.ctx, source.close, CLOSE_SECONDS)
    if passing is not None:
        raise passing
    ended = siblings.verdict(execution.operation(ctx, node.name))
    if isinstance(ended, NodeInterrupted) or (ended is not None and node.on_failure == "interrupt"):
        return ended
    state = clone(place.state)
    if node.gather is not None:
        # Copies: it may fail half-way, and is called again then.
        node.gather(state, [clone(at.results[index]) for index in sorted(at.results)])
    return NodeDone("done", state) if ended is None else replace(ended, kept=state)


class Items:
    """The items of one scatter, on their way."""

    def __init__(
        self,
        execution: FlowExecution,
        siblings: BranchGroup,
        place: Position,
        node: Scatter,
        at: ScatterAt,
        source: "ItemSource",
        walk: Walk,
    ) -> None:
        # What runs inside an item is not listed one by one: there may be a hundred thousand of them.
        self._execution = replace(execution, executed=[], in_item=True)
        self._siblings = siblings
        self._place = place
        self._gathers = node.gather is not None
        self._body: Step | Graph = node.body if isinstance(node.body, Step) else node.body.graph()
        self._at = at
        self._source = source
        self._walk = walk
        self._ctx = siblings.ctx

    async def until_empty(self) -> None:
        """What one worker does. Between two items is a safe point."""
        ctx = self._ctx
        while not self._source.exhausted:
            if ctx.signal.aborted or ctx.stop.due(StopAt.SAFE_POINT):
                self._siblings.ended(NodeInterrupted())
                return
            before = external_cancel_count()
            try:
                pulled = await self._source.pull()
            except (Exception, asyncio.CancelledError) as error:
                self._siblings.ended(self._failed(error, before))
                return
            if pulled is not None and not ctx.stop.due(StopAt.SAFE_POINT):
                self._siblings.ended(await self._item(*pulled))

    def _failed(self, error: Exception | asyncio.CancelledError, before: int) -> NodeInterrupted | NodeFailed:
        """The source has. Raises: a cancellation of this task."""
        operation = self._execution.operation(self._ctx, "items")
        if isinstance(error, asyncio.CancelledError):
            error = disruption(error, before, operation)
        return NodeInterrupted(error) if self._ctx.signal.aborted else NodeFailed(error, operation)

    async def _item(self, index: int, item: Any) -> StepEnd:
        operation = self._execution.operation(self._ctx, str(index))
        try:
            ended = await self._one(index, item, operation)
        except Exception as error:  # the item cannot be copied
            return NodeFailed(error, operation)
        if isinstance(ended, BodyReturned):
            self._done(index, ended.value)
            failure = await self._execution.save(self._ctx)
            return ended if failure is None else NodeFailed(failure, operation)
        return ended

    async def _one(self, index: int, item: Any, operation: str) -> StepEnd:
        if isinstance(self._body, Step):
            attempts = Attempts(self._execution, self._ctx, self._body, operation, self._place.visit)
            attempts.value = item
            return await attempts.run()
        place = self._at.places.get(index)
        if place is None:
            place = self._at.places[index] = Position.start(self._body, clone(item), self._place.within)
        match await self._walk(self._execution, self._ctx.child(str(index)), place):
            case WalkFinished():
                return BodyReturned(place.state)
            case NodeInterrupted() | NodeFailed() as ended:
                return ended

    def _done(self, index: int, value: Any) -> None:
        at, ctx = self._at, self._ctx
        if self._gathers:
            at.results[index] = value
        at.acknowledge(index)
        if ctx.has_listener:
            total = self._source.total
            ctx.progress(f"{at.done} of {total or '?'} items", at.done / total if total else None)


class ItemSource:
    """Where the items come from, sync or async, one at a time. Those that are done are passed over."""

    def __init__(self, items: Any, at: ScatterAt, ctx: Context, abandon_after: float | None) -> None:
        self.total = len(items) if hasattr(items, "__len__") else None
        self.exhausted = False
        self._async = hasattr(items, "__aiter__")
        self._items: Any = aiter(items) if self._async else iter(items)
        close = getattr(self._items, "aclose" if self._async else "close", None)
        self.close: Callable[[], object] | None = close if close is None or self._async else _on_loop(close)
        self._at = at
        self._ctx = ctx
        self._policy = Policy(abandon_after=abandon_after)
        self._index = -1
        self._turn = asyncio.Lock()

    async def pull(self) -> tuple[int, Any] | None:
        """The next item with its number; None: there are no more. Raises: what the source raises; AbortError."""
        if self._async:
            async with self._turn:  # an async generator cannot be asked twice at once
                return await self._pull_async()
        for item in self._items:
            if (index := self._count()) is not None:
                return index, item
        self.exhausted = True
        return None

    async def _pull_async(self) -> tuple[int, Any] | None:
        while not self.exhausted:
            item = await leaf(self._ctx, self._next, name="items", policy=self._policy)
            if item is NO_MORE:
                self.exhausted = True
            elif (index := self._count()) is not None:
                return index, item
        return None

    async def _next(self, ctx: Context, value: object) -> Any:
        return await anext(self._items, NO_MORE)

    def _count(self) -> int | None:
        self._index += 1
        if self._at.is_done(self._index):
            return None
        self._at.pulled = max(self._at.pulled, self._index + 1)
        return self._index


def _on_loop(close: Callable[[], object]) -> Callable[[], object]:
    """As an async function, so that it runs where its items were asked for: a database cursor in it expects that."""

    @functools.wraps(close)
    async def on_loop() -> None:
        close()

    return on_loop
