"""Owns the node that does one thing to many items: so many at a time, each acknowledged when it has reached its end.

Items are pulled only when there is room for them. Knows nothing of how a flow inside is walked: it is handed the walk.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

from ..abort import AbortSignal
from ..run.context import Context
from ..run.stop import StopAt
from .composite import Siblings, Walk
from .graph import Graph, Scatter, Step
from .journey import Journey
from .place import Place, ScatterAt
from .state import clone
from .step import Attempts
from .walked import Arrived, Broken, Interrupted, Left, NodeEnd, Returned, StepEnd

__all__ = ["run_scatter"]


async def run_scatter(journey: Journey, ctx: Context, place: Place, node: Scatter, walk: Walk) -> NodeEnd:
    """Do all items that are not done yet, then gather the results in the order of the items."""
    at = place.inside
    if not isinstance(at, ScatterAt):
        at = place.inside = ScatterAt()
    siblings = Siblings(ctx, node.name, node.on_failure)
    source = Source(node.items(clone(place.state)), at, siblings.ctx.signal)
    work = Items(journey, siblings, place.step, node, at, source, walk)
    workers = node.concurrency if source.total is None else min(node.concurrency, source.total - at.done)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(work.until_empty(), name=f"{siblings.ctx.operation}#{number}")
    finally:
        await source.close()
    ended = siblings.verdict(journey.operation(ctx, node.name))
    if ended is None and workers > 0 and not source.exhausted:
        ended = Interrupted()
    if isinstance(ended, Interrupted) or (ended is not None and node.on_failure == "interrupt"):
        return ended
    state = clone(place.state)
    if node.gather is not None:
        node.gather(state, [at.results[index] for index in sorted(at.results)])
    return Left("done", state) if ended is None else replace(ended, kept=state)


class Items:
    """The items of one scatter, on their way."""

    def __init__(
        self,
        journey: Journey,
        siblings: Siblings,
        visit: int,
        node: Scatter,
        at: ScatterAt,
        source: "Source",
        walk: Walk,
    ) -> None:
        # What runs inside an item is not listed one by one: there may be a hundred thousand of them.
        self._journey = replace(journey, executed=[])
        self._siblings = siblings
        self._visit = visit
        self._gathers = node.gather is not None
        self._body: Step | Graph = node.body if isinstance(node.body, Step) else node.body.graph()
        self._at = at
        self._source = source
        self._walk = walk
        self._ctx = siblings.ctx

    async def until_empty(self) -> None:
        """What one worker does. Between two items is a safe point."""
        ctx = self._ctx
        while not ctx.signal.aborted and not ctx.stop.due(StopAt.SAFE_POINT):
            try:
                pulled = await self._source.pull()
            except Exception as error:
                if not ctx.signal.aborted:
                    self._siblings.ended(Broken(error, self._journey.operation(ctx, "items")))
                return
            if pulled is None:
                return
            ended = await self._one(*pulled)
            self._siblings.ended(ended)
            if isinstance(ended, Returned):
                await self._done(pulled[0], ended.value)

    async def _one(self, index: int, item: Any) -> StepEnd:
        if isinstance(self._body, Step):
            operation = self._journey.operation(self._ctx, str(index))
            attempts = Attempts(self._journey, self._ctx, self._body, operation, self._visit)
            attempts.value = item
            return await attempts.run()
        place = self._at.places.setdefault(index, Place.start(self._body, clone(item)))
        match await self._walk(self._journey, self._ctx.child(str(index)), place):
            case Arrived():
                return Returned(place.state)
            case Interrupted() | Broken() as ended:
                return ended

    async def _done(self, index: int, value: Any) -> None:
        at, ctx = self._at, self._ctx
        if self._gathers:
            at.results[index] = value
        at.acknowledge(index)
        if ctx.listened:
            total = self._source.total
            ctx.progress(f"{at.done} of {total or '?'} items", at.done / total if total else None)
        if self._journey.saver is not None:
            await self._journey.saver.save_item(ctx.clock.monotonic())


class Source:
    """Where the items come from, sync or async, one at a time. Those that are done are passed over."""

    def __init__(self, items: Any, at: ScatterAt, signal: AbortSignal) -> None:
        self.total = len(items) if hasattr(items, "__len__") else None
        self.exhausted = False
        self._items: Iterator[Any] | AsyncIterator[Any] = aiter(items) if hasattr(items, "__aiter__") else iter(items)
        self._at = at
        self._signal = signal
        self._index = -1
        self._turn = asyncio.Lock()

    async def pull(self) -> tuple[int, Any] | None:
        """The next item with its number; None: there are no more. Raises: what the source raises; AbortError."""
        if isinstance(self._items, AsyncIterator):
            async with self._turn:  # an async generator cannot be asked twice at once
                return await self._pull_async(self._items)
        for item in self._items:
            if (index := self._count()) is not None:
                return index, item
        self.exhausted = True
        return None

    async def _pull_async(self, items: AsyncIterator[Any]) -> tuple[int, Any] | None:
        while not self.exhausted:
            try:
                item = await self._signal.run(anext(items))
            except StopAsyncIteration:
                self.exhausted = True
                break
            if (index := self._count()) is not None:
                return index, item
        return None

    def _count(self) -> int | None:
        self._index += 1
        if self._at.is_done(self._index):
            return None
        self._at.pulled = max(self._at.pulled, self._index + 1)
        return self._index

    async def close(self) -> None:
        """No more is wanted."""
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()
