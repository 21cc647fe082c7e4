"""A turn loop whose turns do what the test says, and a check that every accepted item is in exactly one bucket."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from safepoint import AbortError
from safepoint.events import Event, TurnEnded
from safepoint.run import Context, Outcome
from safepoint.testing import drain_ready_tasks
from safepoint.turns import LoopExit, Pushed, TurnLoop, TurnPlan

SAFE = object()
Told = Callable[[], object]


class ControlledTurns:
    """A loop with one item per turn. A turn waits to be told: `step` (a safe point), `finish`, `fail`."""

    def __init__(self, **options: Any) -> None:
        self.events: list[Event] = []
        self.planned: list[list[str]] = []
        self.began: list[str] = []
        self.stopped: dict[str, str] = {}
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self._told: defaultdict[str, asyncio.Queue[object]] = defaultdict(asyncio.Queue)
        self.auto = False  # turns end by themselves
        self.hold: asyncio.Event | None = None  # planning waits for this
        options.setdefault("on_event", self.events.append)
        self.loop: TurnLoop[str] = TurnLoop(options.pop("plan", self.plan), **options)

    async def plan(self, items: list[str]) -> TurnPlan[str]:
        self.planned.append(list(items))
        if self.hold is not None:
            await self.hold.wait()
        return TurnPlan(self.work, items[0], consumed=items[:1], remaining=items[1:])

    async def work(self, ctx: Context, item: str) -> str:
        self.began.append(item)
        try:
            while not self.auto:
                told = await ctx.signal.run(self._told[item].get())
                if told is SAFE:
                    await ctx.safe_point()
                elif isinstance(told, BaseException):
                    raise told
                else:
                    break
        except AbortError as error:
            self.stopped[item] = error.reason.kind
            raise
        return f"did {item}"

    def push(self, item: str, **options: Any) -> Pushed:
        pushed = self.loop.push(item, **options)
        (self.accepted if pushed else self.refused).append(item)
        return pushed

    async def running(self, item: str) -> None:
        """Wait until the turn of this item runs."""
        for _ in range(1000):
            if item in self.began:
                return
            await drain_ready_tasks()
        raise AssertionError(f"the turn of {item!r} did not begin; these did: {self.began}")

    async def step(self, item: str) -> None:
        self._told[item].put_nowait(SAFE)
        await drain_ready_tasks()

    async def finish(self, item: str) -> None:
        self._told[item].put_nowait("done")
        await drain_ready_tasks()

    async def fail(self, item: str, error: BaseException) -> None:
        self._told[item].put_nowait(error)
        await drain_ready_tasks()

    @property
    def outcomes(self) -> list[Outcome[Any]]:
        return [event.outcome for event in self.events if isinstance(event, TurnEnded)]

    def kinds(self) -> list[str]:
        """The events of the loop itself, by kind."""
        return [event.kind for event in self.events if event.kind.startswith(("turn_", "loop_"))]

    async def exit(self, loaded: Iterable[str] = ()) -> LoopExit[str]:
        """How it ended, with books that balance."""
        ended = await self.loop.wait(1000)
        balanced(ended, [*loaded, *self.accepted])
        assert ended.late == self.refused, "what was refused is late, and nothing else is"
        return ended


def balanced(ended: LoopExit[Any], accepted: Iterable[object]) -> None:
    """Every accepted item is in exactly one bucket, or was handled."""
    left = Counter(accepted)
    for bucket in (ended.unhandled, ended.interrupted, ended.preempted, ended.failed, ended.dropped):
        for item in bucket:
            assert left[item] > 0, f"{item!r} is in two buckets, or was never accepted: {ended}"
            left[item] -= 1
    assert left.total() == ended.handled, f"accepted and not in the books: {+left}; handled: {ended.handled}"
