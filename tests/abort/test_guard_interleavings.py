"""Randomised interleavings of abort, cancel and completion over nested guards: the invariants hold in each."""

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, shield
from tests.conftest import counts

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")

TICKS = 5
ACTS = ("abort a", "abort b", "complete", "cancel")
BODIES = ("wait", "swallow", "clean up", "yield", "group", "timeout", "shield", "raise")


@dataclass
class World:
    """One run: two controllers, one future, the schedule, and what was seen."""

    seed: int
    a: AbortController = field(default_factory=AbortController)
    b: AbortController = field(default_factory=AbortController)
    done: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    cancels: int = 0

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        signals: dict[str, Callable[[], AbortSignal]] = {
            "a": lambda: self.a.signal,
            "b": lambda: self.b.signal,
            "any": lambda: AbortSignal.any([self.a.signal, self.b.signal]),
            "child": lambda: AbortController(self.a.signal).signal,
        }
        self.future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.nesting = [rng.choice(list(signals)) for _ in range(rng.randint(1, 3))]
        self.signals = [signals[name]() for name in self.nesting]
        self.body = rng.choice(BODIES)
        self.schedule = sorted(
            (rng.randint(0, TICKS), rng.random(), act) for act in rng.choices(ACTS, k=rng.randint(1, 4))
        )
        self.catches_inside = rng.random() < 0.3

    def __str__(self) -> str:
        acts = [f"{tick}:{act}" for tick, _, act in self.schedule]
        world = f"seed {self.seed}: guards {self.nesting}, body {self.body!r}, acts {acts}"
        return f"{world}, did {self.done}, saw {self.seen}"

    async def leaf(self) -> str:
        match self.body:
            case "wait":
                return await self.future
            case "swallow":
                try:
                    return await self.future
                except asyncio.CancelledError:
                    return "swallowed"
            case "clean up":
                try:
                    return await self.future
                finally:
                    await asyncio.sleep(0)
            case "yield":
                while not self.future.done():
                    await asyncio.sleep(0)
                return "yielded"
            case "group":
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(self.wait_for_future())
                return task.result()
            case "timeout":
                async with asyncio.timeout(30):
                    return await self.future
            case "shield":
                with shield(30):
                    for _ in range(3):
                        await asyncio.sleep(0)
                return await self.future
            case _:
                try:
                    return await self.future
                except asyncio.CancelledError:
                    raise LookupError("mine") from None

    async def wait_for_future(self) -> str:
        while not self.future.done():
            await asyncio.sleep(0)
        return self.future.result()

    async def guarded(self) -> str:
        with ExitStack() as stack:
            for signal in self.signals[:-1]:
                stack.enter_context(signal.guard())
            try:
                with self.signals[-1].guard():
                    return await self.leaf()
            except AbortError:
                self.seen.append("inner abort")
                await asyncio.sleep(0)  # clean-up between two guards
                if self.catches_inside:
                    return "caught"
                raise

    async def victim(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            self.seen.append("value " + await self.guarded())
        except AbortError:
            self.seen.append("abort")
        except LookupError:
            self.seen.append("error")
        except asyncio.CancelledError:
            self.seen.append("cancelled")
        assert task.cancelling() == self.cancels, f"unbalanced counter: {self}"
        for _ in range(4):
            try:
                await asyncio.sleep(0)  # a stale cancellation would land here
            except asyncio.CancelledError:
                self.seen.append("cancelled")

    async def drive(self) -> None:
        task = asyncio.ensure_future(self.victim())
        await asyncio.sleep(0)  # it is inside its guards now
        schedule = list(self.schedule)
        for tick in range(TICKS + 1):
            while schedule and schedule[0][0] == tick:
                self.act(schedule.pop(0)[2], task)
            await asyncio.sleep(0)
        for _ in range(12):
            await asyncio.sleep(0)
        if not task.done() and not self.future.done():
            assert not self.must_have_ended(), f"a wake-up was lost: {self}"
            self.future.set_result("late")
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def act(self, act: str, task: "asyncio.Task[None]") -> None:
        match act:
            case "abort a":
                self.a.abort("a")
            case "abort b":
                self.b.abort("b")
            case "complete":
                if not self.future.done():
                    self.future.set_result("completed")
            case _:
                if not task.done():
                    self.cancels += task.cancel()
        self.done.append(act)

    def must_have_ended(self) -> bool:
        return self.cancels > 0 or any(signal.aborted for signal in self.signals)

    def check(self) -> None:
        aborted = any(signal.aborted for signal in self.signals)
        assert ("cancelled" in self.seen) <= (self.cancels > 0), f"CancelledError without an outer cancel: {self}"
        if self.cancels and self.body not in ("swallow", "raise"):
            assert "cancelled" in self.seen, f"an outer cancel was lost: {self}"
        if self.done[0] == "complete" and self.body == "wait" and not self.cancels:
            assert self.seen[0] == "value completed", f"a result was lost: {self}"
        if not self.cancels and not aborted:
            assert self.seen[0].startswith("value"), f"an interruption without an abort: {self}"
        assert self.a.signal.observers == self.b.signal.observers == 0, f"an entry was left: {self}"


async def run_one(seed: int) -> None:
    world = World(seed)
    await world.drive()
    world.check()


async def test_random_schedules_keep_the_invariants():
    for seed in range(counts(10_000, 200_000)):
        await run_one(seed)


async def test_a_guard_exit_that_races_an_abort_in_a_thread_keeps_the_invariants():
    import threading

    task: Any = asyncio.current_task()
    go, stop = threading.Event(), threading.Event()
    box: list[AbortController] = []

    def aborter() -> None:
        while not stop.is_set():
            if go.wait(1):
                go.clear()
                box[0].abort("race")

    thread = threading.Thread(target=aborter)
    thread.start()
    rng = random.Random(1)
    outcomes = {"value": 0, "abort": 0}
    try:
        for _ in range(counts(2_000, 50_000)):
            controller = AbortController()
            box[:] = [controller]
            go.set()
            try:
                with controller.signal.guard():
                    for _ in range(rng.randint(0, 6)):
                        await asyncio.sleep(0)
                outcomes["value"] += 1
            except AbortError:
                outcomes["abort"] += 1
            assert task.cancelling() == 0
            await controller.signal.wait_async()  # no abort is ever lost
            await asyncio.sleep(0)
            assert controller.signal.observers == 0
    finally:
        stop.set()
        go.set()
        thread.join(10)
    assert min(outcomes.values()) > 0, f"the race was not run both ways: {outcomes}"
