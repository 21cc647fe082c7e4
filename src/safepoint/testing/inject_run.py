"""Owns one run of a scenario: on a loop of its own, with an abort at one point or none, until its record is complete.

Knows nothing of laws and reports.
"""

import asyncio
import gc
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..abort import AbortReason, use_clock
from ..abort.guard import discard
from .clock import FakeClock
from .inject_chain import shown, suspended
from .inject_left import Left, Stock, left_since, take_stock
from .inject_loop import Hang, RunLoop
from .inject_points import AWAIT, UNNAMED, Mode, Point, Points, chunks_are_points, recording
from .inject_probe import Probe
from .inject_watch import Watch
from .laws import Ending, Run, ending_of, ending_of_error

__all__ = ["Bounds", "Scenario", "run_scenario"]

Scenario: TypeAlias = Callable[[Probe], Awaitable[object]]

# Threads, processes and sockets need a moment to be gone; what is left after it is left.
LINGER_SECONDS = 1.0
# What is left is ended by force, so that it does not disturb the next run.
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """On which clock the runs are, how long one may take in real time, and who watches that."""

    clock: Callable[[], FakeClock] | None
    seconds: float
    watch: Watch


class Attempt:
    """One run in progress: its loop, its probe, its points."""

    def __init__(self, loop: RunLoop, point: Point | None, mode: Mode | None) -> None:
        self.loop = loop
        self.point = point
        self.mode = mode
        self.main: asyncio.Task[object] | None = None
        self.late = False
        self.points = Points(point, self._act)
        self.probe = Probe(lambda: self.points.passing("event"))
        self.reason: AbortReason | None = None
        if point is not None and mode != "cancel":
            self.reason = AbortReason("user", f"abort_everywhere, point {point.number}", point.place)

    async def play(self, scenario: Scenario) -> object:
        """The main task."""
        self.main = asyncio.current_task()
        if self.main is not None:
            self.main.set_name("main")
        try:
            return await scenario(self.probe)
        finally:
            self.points.over = True

    @property
    def reached(self) -> bool:
        """True: it was done what was to be done, while there was somebody to feel it."""
        return self.points.reached and not self.late

    def _act(self) -> None:
        """At the point: now, or right after the suspension, as the mode says."""
        assert self.point is not None
        if self.mode == "inside" or self.point.what != AWAIT:
            self._strike()
        else:
            self.loop.call_soon(self._strike)

    def _strike(self) -> None:
        if self.main is None or self.main.done():
            self.late = True
        elif self.mode == "cancel":
            discard(self.main)
        else:
            self.probe.abort(self.reason)
            if self.mode == "twice":
                self.points.then = lambda: self.probe.abort("abort_everywhere, the second abort")


def run_scenario(
    scenario: Scenario, bounds: Bounds, point: Point | None = None, mode: Mode | None = None, *, plain: bool = False
) -> tuple[Run, Attempt]:
    """Run it once. `plain`: nothing is watched but how it ends."""
    clock = None if bounds.clock is None else bounds.clock()
    loop = RunLoop(clock, bounds.seconds)
    attempt = Attempt(loop, point, mode)
    attempt.points.over = plain
    if not plain:
        loop.show_suspensions(attempt.points.suspension)
    with ExitStack() as around:
        if clock is not None:
            around.enter_context(use_clock(clock))
        around.enter_context(recording(attempt.points))
        around.enter_context(chunks_are_points())
        runner = asyncio.Runner(loop_factory=lambda: loop)
        runner.get_loop()  # made here, so that it has the clock and the points in its context
        around.callback(_close, runner, loop)
        before = None if plain else take_stock()
        ending = _play(runner, attempt, scenario, bounds.watch)
        return _record(runner, attempt, ending, before), attempt


def _play(runner: asyncio.Runner, attempt: Attempt, scenario: Scenario, watch: Watch) -> Ending:
    try:
        watch.loop = attempt.loop
        value = runner.run(attempt.play(scenario))
        watch.loop = None
        return ending_of(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except Hang as hang:
        return Ending("hung", error=hang)
    except BaseException as error:
        return ending_of_error(error)
    finally:
        watch.loop = None
        attempt.points.over = True


def _record(runner: asyncio.Runner, attempt: Attempt, ending: Ending, before: Stock | None) -> Run:
    """Write down what is left, before anything of it is cleared away."""
    loop, probe = attempt.loop, attempt.probe
    run = Run(point=attempt.point, mode=attempt.mode, reason=attempt.reason, ending=ending)
    tasks = tuple(sorted(describe(task) for task in asyncio.all_tasks(loop) if not _closes_generator(task)))
    streams = tuple(loop.open_generators())
    _forget_frames(ending.error)
    if before is None or ending.status == "hung":
        return replace(run, tasks=tasks)
    timers = _armed_timers(loop)
    left = _linger(runner, loop, before)
    return replace(
        run,
        heard=probe.heard,
        interrupted=probe.interrupted,
        events=tuple(probe.events),
        effects=tuple(probe.effects),
        tasks=tasks,
        threads=left.threads,
        processes=left.processes,
        descriptors=left.descriptors,
        streams=streams,
        timers=timers,
        listeners=sum(signal.observers for signal in probe.watched),
    )


def describe(task: "asyncio.Task[Any]") -> str:
    """A task's name, or its function's if it was given none, and its chain of awaits, one line each."""
    name, coroutine = task.get_name(), task.get_coro()
    if UNNAMED.fullmatch(name):
        name = getattr(coroutine, "__qualname__", name)
    return "\n".join([f"task {name}", *(f"  {line}" for line in shown(suspended(coroutine)))])


def _closes_generator(task: "asyncio.Task[Any]") -> bool:
    """True for what the loop itself starts when a generator is collected: the generator is in the record already."""
    coroutine = task.get_coro()
    return type(getattr(coroutine, "coroutine", coroutine)).__name__ == "async_generator_athrow"


def _armed_timers(loop: RunLoop) -> tuple[str, ...]:
    """The timers that are left. A deadline nobody holds takes its timer with it, once it is collected."""
    for generation in range(3):
        if not loop.armed_timers():
            break
        gc.collect(generation)
    return tuple(loop.armed_timers())


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold on to: signals, generators, files."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if error.__traceback__ is not None:
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
        waiting += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions


def _linger(runner: asyncio.Runner, loop: RunLoop, before: Stock) -> Left:
    """What is left when everything had its turn, and a moment of real time."""
    until = time.monotonic() + LINGER_SECONDS
    loop.allow(2 * LINGER_SECONDS)
    while (left := left_since(before, executor_idle=not loop.in_executor)) and time.monotonic() < until:
        runner.run(asyncio.sleep(0))
        time.sleep(0.001)
    return left


def _close(runner: asyncio.Runner, loop: RunLoop) -> None:
    """End by force what is left. Whatever it says about that has no one to say it to."""
    loop.set_exception_handler(lambda loop, context: None)
    loop.allow(CLOSE_SECONDS)
    if loop.in_executor:  # a function that does not end: nobody waits for its thread
        loop.forget_executor()
    left = asyncio.all_tasks(loop)
    try:
        runner.close()
    except Hang:
        pass
    for task in left:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is in the report already
