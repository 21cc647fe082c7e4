"""Owns the node that does one thing to many items: several at a time, each acknowledged when it is done.

An item is taken from the source only when a worker is free. Knows nothing of how a flow inside runs: it is given a
function for that.
"""

import asyncio
import functools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sized
from dataclasses import replace

from ..abort.guard import external_cancel_count
from ..run.context import Context
from ..run.leaf import leaf
from ..run.policy import Policy
from ..run.settle import run_cleanup
from ..run.stop import StopAt
from .composite import BranchGroup, RunGraph
from .execution import (
    BodyReturned,
    FlowExecution,
    GraphFinished,
    NodeDone,
    NodeEnd,
    NodeFailed,
    NodeInterrupted,
    StepEnd,
)
from .graph import Graph, Items, Scatter, Step
from .position import Position, ScatterPosition
from .state import clone
from .step import Attempts, disruption_error

__all__ = ["run_scatter"]

# How long a source may take to close before the flow goes on without it.
CLOSE_SECONDS = 5.0
EXHAUSTED = object()


async def run_scatter(
    execution: FlowExecution, ctx: Context, position: Position, node: Scatter, run_graph: RunGraph
) -> NodeEnd:
    """Do all items that are not done yet, then gather the results in the order of the items."""
    progress = position.inside
    if not isinstance(progress, ScatterPosition):
        progress = position.inside = ScatterPosition()
    items = BranchGroup(ctx, node.name, node.on_failure)
    source = ItemSource(node.items(clone(position.state)), progress, items.ctx, execution.abandon_after)
    workers = ItemWorkers(execution, items, position, node, source, run_graph)
    number_of_workers = (
        node.concurrency if source.total is None else min(node.concurrency, source.total - progress.done)
    )
    passing: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(number_of_workers):
                group.create_task(workers.run_worker(), name=f"{items.ctx.operation}#{number}")
    finally:
        if source.close is not None:
            passing = await run_cleanup(items.ctx, source.close, CLOSE_SECONDS)
    if passing is not None:
        raise passing
    ended = items.combined(execution.operation(ctx, node.name))
    if isinstance(ended, NodeInterrupted) or (ended is not None and node.on_failure == "interrupt"):
        return ended
    state = clone(position.state)
    if node.gather is not None:
        # It gets copies: if it fails half-way, it is called again.
        node.gather(state, [clone(progress.results[index]) for index in sorted(progress.results)])
    return NodeDone("done", state) if ended is None else replace(ended, kept=state)


class ItemWorkers:
    """Runs the items of one scatter."""

    def __init__(
        self,
        execution: FlowExecution,
        group: BranchGroup,
        position: Position,
        node: Scatter,
        source: "ItemSource",
        run_graph: RunGraph,
    ) -> None:
        # The nodes inside an item are not listed one by one: there may be a hundred thousand items.
        self._execution = replace(execution, executed=[], in_item=True)
        self._group = group
        self._position = position
        self._gathers = node.gather is not None
        self._body: Step | Graph = node.body if isinstance(node.body, Step) else node.body.graph()
        self._progress = source.progress
        self._source = source
        self._run_graph = run_graph
        self._ctx = group.ctx

    async def run_worker(self) -> None:
        """Take items from the source and run them until there are no more. Between two items is a safe point."""
        ctx = self._ctx
        while not self._source.exhausted:
            if ctx.signal.aborted or ctx.stop.due(StopAt.SAFE_POINT):
                self._group.record(NodeInterrupted())
                return
            cancels_before = external_cancel_count()
            try:
                pulled = await self._source.pull()
            except (Exception, asyncio.CancelledError) as error:
                self._group.record(self._source_failed(error, cancels_before))
                return
            if pulled is not None and not ctx.stop.due(StopAt.SAFE_POINT):
                self._group.record(await self._run_item(*pulled))

    def _source_failed(
        self, error: Exception | asyncio.CancelledError, cancels_before: int
    ) -> NodeInterrupted | NodeFailed:
        """Return the end for an error of the source. Raises: a cancellation of this task."""
        operation = self._execution.operation(self._ctx, "items")
        if isinstance(error, asyncio.CancelledError):
            error = disruption_error(error, cancels_before, operation)
        return NodeInterrupted(error) if self._ctx.signal.aborted else NodeFailed(error, operation)

    async def _run_item(self, index: int, item: object) -> StepEnd:
        operation = self._execution.operation(self._ctx, str(index))
        try:
            ended = await self._run_body(index, item, operation)
        except Exception as error:  # the item cannot be copied
            return NodeFailed(error, operation)
        if isinstance(ended, BodyReturned):
            self._acknowledge(index, ended.value)
            if self._execution.once:
                self._execution.forget_parts(operation, self._position.visit)
            failure = await self._execution.save(self._ctx)
            return ended if failure is None else NodeFailed(failure, operation)
        return ended

    async def _run_body(self, index: int, item: object, operation: str) -> StepEnd:
        if isinstance(self._body, Step):
            attempts = Attempts(self._execution, self._ctx, self._body, operation, self._position.visit)
            attempts.value = item
            return await attempts.run()
        position = self._progress.positions.get(index)
        if position is None:
            position = Position.start(self._body, clone(item), self._position.inner_prefix)
            self._progress.positions[index] = position
        match await self._run_graph(self._execution, self._ctx.child(str(index)), position):
            case GraphFinished():
                return BodyReturned(position.state)
            case NodeInterrupted() | NodeFailed() as ended:
                return ended

    def _acknowledge(self, index: int, value: object) -> None:
        progress, ctx = self._progress, self._ctx
        if self._gathers:
            progress.results[index] = value
        progress.acknowledge(index)
        if ctx.has_listener:
            total = self._source.total
            ctx.progress(f"{progress.done} of {total or '?'} items", progress.done / total if total else None)


class ItemSource:
    """The items of a scatter, sync or async, one at a time. Items that are done already are skipped.

    Attributes:
        progress: Which items are done.
        total: How many items there are, if that is known.
        exhausted: Whether there are no more items.
        close: Closes the source, if it can be closed.
    """

    def __init__(self, items: Items, progress: ScatterPosition, ctx: Context, abandon_after: float | None) -> None:
        self.progress = progress
        self.total = len(items) if isinstance(items, Sized) else None
        self.exhausted = False
        self._items: Iterator[object] | None = None
        self._async_items: AsyncIterator[object] | None = None
        self.close: Callable[[], object] | None = None
        if isinstance(items, AsyncIterable):
            self._async_items = aiter(items)
            self.close = getattr(self._async_items, "aclose", None)
        else:
            self._items = iter(items)
            close = getattr(self._items, "close", None)
            self.close = None if close is None else _on_loop(close)
        self._ctx = ctx
        self._policy = Policy(abandon_after=abandon_after)
        self._index = -1
        self._lock = asyncio.Lock()

    async def pull(self) -> tuple[int, object] | None:
        """Return the next item with its number, or None if there are no more.

        Raises:
            AbortError: The run was stopped.
            Exception: What the source raised.
        """
        if self._items is None:
            async with self._lock:  # an async generator must not be asked twice at once
                return await self._pull_async()
        for item in self._items:
            if (index := self._next_index()) is not None:
                return index, item
        self.exhausted = True
        return None

    async def _pull_async(self) -> tuple[int, object] | None:
        while not self.exhausted:
            item = await leaf(self._ctx, self._next_item, name="items", policy=self._policy)
            if item is EXHAUSTED:
                self.exhausted = True
            elif (index := self._next_index()) is not None:
                return index, item
        return None

    async def _next_item(self, ctx: Context, value: None) -> object:
        assert self._async_items is not None  # only an async source gets here
        return await anext(self._async_items, EXHAUSTED)

    def _next_index(self) -> int | None:
        """Count an item, and return its number unless it is done already."""
        self._index += 1
        if self.progress.is_done(self._index):
            return None
        self.progress.pulled = max(self.progress.pulled, self._index + 1)
        return self._index


def _on_loop(close: Callable[[], object]) -> Callable[[], object]:
    """Return `close` as an async function, which a clean-up calls in the thread of the event loop.

    A source with a database cursor, for example, must be closed in the thread in which it was read.
    """

    @functools.wraps(close)
    async def on_loop() -> None:
        close()

    return on_loop
