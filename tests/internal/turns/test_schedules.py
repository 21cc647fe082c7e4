"""Owns the tests that look inside, beside those of `tests/turns/test_schedules.py`.

Owns random schedules of a loop's whole life, on fake time: the laws hold after each step, and all is repeatable.

A schedule is a list of numbers, so that hypothesis can shrink it and a seed can make thousands. Each number is one
command, decided by what is possible at that moment.

"""

import asyncio
import gc
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint import Aborted, AbortError
from safepoint.abort import use_clock
from safepoint.events import Event, TurnEnded, TurnStarted
from safepoint.run import Context, MemoryCheckpoints, StopAt, StopRequest
from safepoint.run.stop import NO_STOP
from safepoint.testing import FakeClock, drain_ready_tasks
from safepoint.turns import InterruptedTurn, PreemptAck, Turn, TurnLoop, TurnPlan
from tests.conftest import TORTURE, counts
from tests.kit.turn_loops import SAFE, balanced


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> Iterator[None]:
    """Garbage is collected after many schedules: what other tests have left in memory is not looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


pytestmark = pytest.mark.timeout(300)  # thousands of steps, on a busy machine too


POINTS = (StopAt.AFTER_MODEL, StopAt.AFTER_TOOLS, StopAt.SAFE_POINT, StopAt.NOW)


WITHIN = (None, None, 0.5, 3.0)


DELAYS = (0.0, 0.0, 1.0, 4.0)


Log = list[tuple[object, ...]]


class World:
    """One loop, and one who commands it by numbers."""

    def __init__(self, clock: FakeClock, numbers: Sequence[int]) -> None:
        self.clock = clock
        self.numbers = iter(numbers)
        self.store = MemoryCheckpoints()
        self.count = 0
        self.accepted: list[int] = []
        self.refused: list[int] = []
        self.acks: list[tuple[PreemptAck, Turn[int] | None, int]] = []
        self.errors: list[Exception] = []
        self.log: Log = []
        self.started: list[str] = []
        self.putting: dict[int, asyncio.Task[Any]] = {}
        self.returned: list[int] = []  # the items of turns whose work gave back a value
        self.told: asyncio.Queue[object] = asyncio.Queue()
        self.planning: asyncio.Queue[str] = asyncio.Queue()
        self.waits = ""  # what the loop waits for: "plan", "work" or nothing
        self.strictest: StopRequest = NO_STOP
        self.committed_after: int | None = None
        limit = (None, 3, 8)[self.number(3)]
        batch = (None, 1, 2)[self.number(3)]
        resume = (self.resume, None)[self.number(2)]
        self.loop: TurnLoop[int] = TurnLoop(
            self.plan,
            resume=resume,
            on_event=self.hear,
            max_items=limit,
            batch=batch,
            checkpoints=self.store,
            checkpoint_id="k",
            item_type=int,
        )
        self.loop.id = "loop"

    def number(self, most: int) -> int:
        return next(self.numbers, 0) % most

    def pick(self, *choices: Any) -> Any:
        return choices[self.number(len(choices))]

    # What the loop calls.

    async def plan(self, items: list[int]) -> TurnPlan[int]:
        return await self._plan((), items)

    async def resume(self, stopped: InterruptedTurn[int], items: list[int]) -> TurnPlan[int]:
        return await self._plan(stopped.items, items)

    async def _plan(self, first: Sequence[int], items: list[int]) -> TurnPlan[int]:
        self.waits = "plan"
        try:
            how = await self.planning.get()
        finally:
            self.waits = ""
        if how == "error":
            raise ValueError("no plan")
        given = [*first, *items]
        if how == "all":
            return TurnPlan(self.work, len(given), timeout=20.0)
        if how == "drop":
            return TurnPlan(self.work, 1, consumed=given[:1], remaining=given[2:])
        return TurnPlan(self.work, 1, consumed=given[-1:], remaining=given[:-1])

    async def work(self, ctx: Context, value: int) -> int:
        self.waits = "work"
        try:
            while True:
                told = await ctx.signal.run(self.told.get())
                if told is SAFE:
                    await ctx.safe_point()
                elif isinstance(told, Exception):
                    raise told
                else:
                    assert self.loop.turn is not None
                    self.returned += self.loop.turn.consumed
                    return value
        except AbortError as error:
            error.partial = {"value": value}
            raise
        finally:
            self.waits = ""
            while not self.told.empty():
                self.told.get_nowait()

    def hear(self, event: Event) -> None:
        if isinstance(event, TurnStarted):
            assert not self.loop._state.committed, "never a turn after a committed stop"
            self.started.append(event.turn_id)
        if isinstance(event, TurnEnded):
            self.log.append(("ended", event.outcome.status, round(self.clock.monotonic(), 3)))
            if isinstance(event.outcome, Aborted) and event.outcome.reason.kind == "preempted":
                seen = [turn for ack, turn, _ in self.acks if ack.status == "submitted" and turn is not None]
                assert any(turn.id == event.turn_id for turn in seen), "a turn made way that nobody had asked"

    # What the commander does.

    def push(self) -> None:
        item, self.count = self.count, self.count + 1
        options: dict[str, Any] = {}
        how = self.number(4)
        if how == 1:
            options = {"preempt": self.pick(*POINTS), "within": self.pick(*WITHIN), "delay": self.pick(*DELAYS)}
        elif how == 2:
            at = self.pick(*POINTS)
            options = {"preempt": lambda turn: at if turn is not None and turn.phase == "active" else None}
        turn = self.loop.turn
        stopped = self.loop._state.committed
        pushed = self.loop.push(item, **options)
        if pushed:
            self.accepted.append(item)
        elif self.loop._state.inbox.closed:
            self.refused.append(item)
        if pushed.ack is not None:
            self.asked(pushed.ack, turn, stopped)
        self.log.append(("push", item, pushed.accepted))

    def asked(self, ack: PreemptAck, turn: Turn[int] | None, stopped: bool) -> None:
        self.acks.append((ack, turn, len(self.started)))
        if stopped:
            assert ack.status == "loop_stopped"
        elif turn is None:
            assert ack.status in ("no_turn", "loop_stopped")

    def put(self) -> None:
        item, self.count = self.count, self.count + 1
        self.putting[item] = asyncio.ensure_future(self.loop.put(item))

    def preempt(self) -> None:
        turn, stopped = self.loop.turn, self.loop._state.committed
        self.asked(
            self.loop.preempt(self.pick(*POINTS), within=self.pick(*WITHIN), delay=self.pick(*DELAYS)), turn, stopped
        )

    def stop(self) -> None:
        if self.number(3):  # rarer than the others: or nothing happens after it
            return
        how = self.number(5)
        if how == 0:
            ack = self.loop.stop(reason=self.pick("", "deploy"))
        elif how == 1:
            ack = self.loop.stop(when_idle_for=self.pick(2.0, 9.0))
        else:
            at = self.pick(None, StopAt.AFTER_TOOLS, StopAt.SAFE_POINT, StopAt.NOW)
            ack = self.loop.stop(at, within=self.pick(*WITHIN))
        self.log.append(("stop", ack.status, self.loop._state.stop.request.at.name))

    def pause(self) -> None:
        self.loop.pause(self.pick(StopAt.TURN_END, StopAt.SAFE_POINT, StopAt.NOW))

    def remove(self) -> None:
        if self.accepted:
            item = self.pick(*self.accepted)
            self.log.append(("remove", item, self.loop.remove(item)))

    def let_plan(self) -> None:
        if self.waits == "plan":
            self.planning.put_nowait(self.pick("one", "one", "all", "one", "drop", "one", "one", "error", "one"))

    def let_work(self) -> None:
        if self.waits == "work":
            self.errors.append(ValueError("broken"))
            self.told.put_nowait(self.pick(SAFE, "done", SAFE, self.errors[-1], "done"))

    async def step(self) -> None:
        do: Callable[[], object] = self.pick(
            *(self.push, self.push, self.push, self.let_plan, self.let_plan, self.let_work, self.let_work),
            *(self.put, self.preempt, self.stop, self.pause, self.loop.resume, self.loop.resume, self.remove),
            *(self.loop.withdraw_idle_stop, lambda: None),
        )
        do()
        if self.number(4) == 0:
            await self.clock.elapse(self.pick(0.5, 1.0, 5.0))
        elif self.number(2):
            await drain_ready_tasks()
        self.look()

    def look(self) -> None:
        """What must hold at every moment."""
        request = self.loop._state.stop.request
        before, self.strictest = self.strictest, request
        assert request.at.includes(before.at), "a stop never becomes weaker"
        assert before.scope == "root" or request.scope == "tree"
        if before.deadline is not None:
            assert request.deadline is not None
            assert request.deadline <= before.deadline
        if self.committed_after is None and self.loop._state.committed:
            self.committed_after = len(self.started)
        if self.committed_after is not None:
            assert len(self.started) == self.committed_after, "never a turn after a committed stop"
        for ack, turn, _ in self.acks:
            if turn is not None and turn.phase == "over":
                assert ack.status is not None, "a turn that is over has answered all"

    async def finish(self) -> None:
        self.loop.stop(at=StopAt.NOW)
        exit = await self.loop.wait(1000)
        for item, task in self.putting.items():
            (self.accepted if (await task).accepted else self.refused).append(item)
        assert exit.reason is None or str(exit.reason) == "no plan"
        balanced(exit, self.accepted)
        assert sorted(exit.late) == sorted(self.refused)
        for ack, _, _ in self.acks:
            async with asyncio.timeout(1):
                await ack
        if self.clock.pending:
            self.acks = [(ack, None, number) for ack, _, number in self.acks]  # they hold turns, with their deadlines
            for error in self.errors:
                error.__traceback__ = None  # and so do the frames of what a turn has failed with
            gc.collect()
        assert self.clock.pending == 0, "a timer is left"
        assert exit.handled == len(self.returned), "work that has returned is handled, whatever came in that moment"
        assert len(set(self.returned)) == len(self.returned), "no item is done twice"
        counts = [exit.handled, exit.unhandled, exit.interrupted, exit.preempted, exit.failed, exit.dropped]
        self.log.append((*counts, exit.late, exit.checkpoint.status, [ack.status for ack, _, _ in self.acks]))
        await self.again(
            [*exit.unhandled, *(self.loop._state.interrupted or InterruptedTurn(())).items], exit.checkpoint.status
        )

    async def again(self, left: list[int], status: str) -> None:
        """The next loop finds exactly what this one left."""
        found: list[int] = []

        async def plan(items: list[int]) -> TurnPlan[int]:
            found.extend(items)
            return TurnPlan(nothing)

        loop: TurnLoop[int] = TurnLoop(plan, checkpoints=self.store, checkpoint_id="k", item_type=int)
        async with loop:
            await drain_ready_tasks()
        if status in ("saved", "none", "deleted"):
            assert sorted(found) == sorted(left)
            assert not {*found} & {*self.returned}, "the checkpoint has an item whose work has returned"


async def nothing(ctx: Context, value: object) -> None:
    """At once."""


async def lived(numbers: Sequence[int], steps: int) -> Log:
    with use_clock(FakeClock()) as clock:
        world = World(clock, numbers)
        start = world.number(4)
        for step in range(steps):
            if step == start:
                world.loop.start()
                await drain_ready_tasks()
            await world.step()
            if world.loop.finished:
                break
        world.loop.start()
        await world.finish()
        return world.log


def run(numbers: Sequence[int], steps: int) -> Log:
    return asyncio.run(lived(numbers, steps))


def seeded(seed: int, steps: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(2520) for _ in range(steps * 8 + 10)]


@settings(max_examples=400 if TORTURE else 60, deadline=None)
@given(st.lists(st.integers(0, 2519), max_size=120))
def test_the_laws_hold_on_any_schedule(numbers: list[int]) -> None:
    run(numbers, 15)


@pytest.mark.parametrize("block", range(counts(4, 20)))
def test_the_laws_hold_on_hundreds_of_long_schedules(block: int) -> None:
    for seed in range(counts(50, 1000)):
        run(seeded(block * 1_000_000 + seed, 40), 40)


def test_the_same_schedule_always_gives_the_same_result() -> None:
    for seed in range(counts(20, 1000)):
        numbers = seeded(seed, 40)
        assert run(numbers, 40) == run(numbers, 40), f"seed {seed}"


def test_the_schedules_reach_every_corner() -> None:
    """Or the laws would hold because nothing happens."""
    seen = [entry for seed in range(200) for entry in run(seeded(seed, 40), 40)]
    endings = {entry[1] for entry in seen if entry[0] == "ended"}
    assert endings == {"completed", "failed", "aborted", "timed_out"}
    books = [entry for entry in seen if len(entry) == 9]
    for bucket in range(7):
        assert any(book[bucket] for book in books), f"bucket {bucket} stayed empty in all schedules"
    assert {book[7] for book in books} >= {"saved", "deleted", "kept", "none"}
    assert {status for book in books for status in book[8]} == {"submitted", "no_turn", "turn_over", "loop_stopped"}  # type: ignore[attr-defined]
    assert {entry[2] for entry in seen if entry[0] == "remove"} == {True, False}
