"""Owns one run of a scenario: on a loop of its own, with an abort at one point or none, until its record is complete.

Knows nothing of laws and reports.
"""

import asyncio
import gc
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..abort import AbortReason, use_clock
from ..abort.guard import discard
from .clock import FakeClock
from .inject_chain import shown, suspended
from .inject_ignore import Ignored
from .inject_left import Leftover, LeftoverReport, ResourceSnapshot, leftovers_since, take_snapshot
from .inject_loop import Hang, RunLoop
from .inject_points import AWAIT, UNNAMED, Mode, Point, Points, chunks_are_points, recording
from .inject_probe import Probe
from .inject_watch import BlockWatch
from .laws import RecordedRun, RunEnding, ending_of, ending_of_error

__all__ = ["Attempt", "Bounds", "Scenario", "run_scenario"]

Scenario: TypeAlias = Callable[[Probe], Awaitable[object]]

# Tasks, threads, processes and sockets need a moment to be gone; what is left after it is left. It is a second of the
# clock of the run, and a second of real time at most.
LINGER_SECONDS = 1.0
# After so many turns of the loop in that moment garbage is collected.
COLLECTIONS = (4, 16, 64, 256)
# What is left is ended by force, so that it does not disturb the next run.
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """On which clock the runs are, how long one may take in real time, who watches that, and what does not count."""

    clock: Callable[[], FakeClock] | None
    seconds: float
    watch: BlockWatch
    ignored: Ignored = field(default_factory=Ignored)


class Attempt:
    """One run in progress: its loop, its probe, its points."""

    def __init__(self, loop: RunLoop, point: Point | None, mode: Mode | None) -> None:
        self.loop = loop
        self.point = point
        self.mode: Mode | None = mode
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
) -> tuple[RecordedRun, Attempt]:
    """Run it once. `plain`: nothing is watched but how it ends."""
    clock = None if bounds.clock is None else bounds.clock()
    loop = RunLoop(clock, bounds.seconds, lambda thread: bounds.ignored.covers("threads", thread, point))
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
        around.callback(_close, runner, attempt)
        before = None if plain else take_snapshot()
        ending = _play(runner, attempt, scenario, bounds.watch)
        return _record(runner, attempt, ending, before, bounds.ignored), attempt


def _play(runner: asyncio.Runner, attempt: Attempt, scenario: Scenario, watch: BlockWatch) -> RunEnding:
    try:
        watch.loop = attempt.loop
        value = runner.run(attempt.play(scenario))
        watch.loop = None
        return ending_of(value)
    except (KeyboardInterrupt, SystemExit):
        raise
    except Hang as hang:
        return RunEnding("hung", error=hang)
    except BaseException as error:
        return ending_of_error(error)
    finally:
        watch.loop = None
        attempt.points.over = True


def _record(
    runner: asyncio.Runner, attempt: Attempt, ending: RunEnding, before: ResourceSnapshot | None, ignored: Ignored
) -> RecordedRun:
    """Write down what is left, before anything of it is cleared away."""
    loop, probe = attempt.loop, attempt.probe
    run = RecordedRun(point=attempt.point, mode=attempt.mode, reason=attempt.reason, ending=ending)
    _forget_frames(ending.error)
    if before is None or ending.status == "hung":
        return replace(run, tasks=_tasks_left(loop))
    left = _Leaving(runner, attempt, before, ignored).linger()
    return replace(
        run,
        heard=probe.heard,
        interrupted=probe.interrupted,
        events=tuple(probe.events),
        effects=tuple(probe.effects),
        tasks=_tasks_left(loop),
        threads=left.threads,
        processes=left.processes,
        descriptors=left.descriptors,
        streams=tuple(loop.open_generators()),
        timers=_armed_timers(loop),
        listeners=sum(signal.observers for signal in probe.watched),
    )


def _tasks_left(loop: RunLoop) -> tuple[Leftover, ...]:
    return tuple(sorted(describe(task) for task in asyncio.all_tasks(loop) if not _closes_generator(task)))


def describe(task: "asyncio.Task[Any]") -> Leftover:
    """A task's name, or its function's if it was given none, and its chain of awaits, one line each."""
    name, coroutine = task.get_name(), task.get_coro()
    if UNNAMED.fullmatch(name):
        name = getattr(coroutine, "__qualname__", name)
    lines = shown(suspended(coroutine))
    return Leftover("\n".join([f"task {name}", *(f"  {line}" for line in lines)]), name, *lines)


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


class _Leaving:
    """What is on its way out when the scenario is over: everything has its turn, and a moment, before it counts."""

    def __init__(self, runner: asyncio.Runner, attempt: Attempt, before: ResourceSnapshot, ignored: Ignored) -> None:
        self._runner = runner
        self._loop = attempt.loop
        self._point = attempt.point
        self._before = before
        self._ignored = ignored
        self._until = attempt.loop.time() + LINGER_SECONDS
        # Nobody else may hold a task that waits for ever. Collected in the meantime, it would look as if it had ended.
        self._held = asyncio.all_tasks(attempt.loop)

    def linger(self) -> LeftoverReport:
        """What is left of threads, processes and descriptors after the moment. Tasks have had the same one."""
        ends_at = time.monotonic() + LINGER_SECONDS
        turns = 0
        while (left := self._left()) or self._counted("tasks", _tasks_left(self._loop)):
            slow = bool(left.processes or left.descriptors)  # these need neither a task nor a thread to be gone
            if time.monotonic() >= ends_at or not (self._go_on() or slow):
                break
            time.sleep(0.001 if slow else 0)
            turns += 1
            if slow and turns in COLLECTIONS:
                # Sockets that nobody holds any more are closed when they are collected, sooner or later: always here,
                # so that what is reported does not depend on when the collector happens to run.
                gc.collect()
        return leftovers_since(self._before, executor_idle=not self._loop.in_executor)

    def _left(self) -> LeftoverReport:
        left = leftovers_since(self._before, executor_idle=not self._loop.in_executor)
        return LeftoverReport(
            self._counted("threads", left.threads),
            self._counted("processes", left.processes),
            self._counted("descriptors", left.descriptors),
        )

    def _counted(self, kind: str, things: tuple[Leftover, ...]) -> tuple[Leftover, ...]:
        return tuple(thing for thing in things if not self._ignored.covers(kind, thing, self._point))

    def _go_on(self) -> bool:
        """Let the loop run for a turn, and a little time pass. False: no task and no thread can go on any more."""
        loop = self._loop
        loop.allow(2 * LINGER_SECONDS)
        try:
            self._runner.run(asyncio.sleep(0))
        except Hang:  # something has held up this one turn for as long as that: what is left is left
            return False
        self._held |= asyncio.all_tasks(loop)
        if loop._ready:  # type: ignore[attr-defined]
            return True
        if loop.clock is not None and not loop.others_pending():
            due = loop.next_timer()
            if due is not None and due <= self._until:
                loop.clock.advance(max(0.0, due - loop.clock.monotonic()))
                return True
            if not loop.outside.resting:
                return False
        time.sleep(0.001)
        return True


def _close(runner: asyncio.Runner, attempt: Attempt) -> None:
    """End by force what is left. Whatever it says about that has no one to say it to."""
    loop = attempt.loop
    if any(wait.clock is loop.clock for wait in FakeClock.waiting_threads()):
        attempt.probe.abort("abort_everywhere, the run is over")  # its time will not move any more for these threads
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
