"""Owns one run of a scenario: on a loop of its own, with an abort at one point or none, until it is fully recorded.

Knows nothing of laws and reports.
"""

import asyncio
import gc
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...abort import AbortReason, use_clock
from ...abort.guard import discard
from ..clock import FakeClock
from ..laws import RecordedRun, RunEnding, ending_of, ending_of_error
from .chain import shown, suspended
from .left import Leftover, LeftoverReport, ResourceSnapshot, leftovers_since, take_snapshot
from .loop import Hang, RunLoop
from .pending import STILL_SECONDS
from .points import AWAIT, UNNAMED, Mode, Point, Points, chunks_are_points, recording
from .probe import Probe
from .report import Ignored
from .watch import BlockWatch

__all__ = ["Attempt", "Bounds", "RunTimings", "Scenario", "run_scenario"]

Scenario: TypeAlias = Callable[[Probe], Awaitable[object]]

# Tasks, threads, processes and sockets need a moment to end. What exists after this time is a leftover. It is measured
# by the clock of the run, and is at most as much real time.
LINGER_SECONDS = 1.0
# The turns of the loop in that time after which garbage is collected.
COLLECTIONS = (4, 16, 64, 256)
# How long ending the leftovers may take, so that they do not disturb the next run.
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimings:
    """How long each run of a scenario waits, in seconds.

    Attributes:
        still: A thread, process or connection outside the loop that has not moved for so much real time does not delay
            a jump of fake time any more.
        linger: What exists so long after the scenario is a leftover: by the clock of the run, and at most as much real
            time.
        close: How much real time ending the leftovers may take.
    """

    still: float = STILL_SECONDS
    linger: float = LINGER_SECONDS
    close: float = CLOSE_SECONDS


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all runs of a campaign have in common.

    Attributes:
        clock: Makes the clock of a run; None for real time.
        seconds: How much real time a run may take.
        watch: Ends a run that blocks its thread.
        ignored: What does not count.
        timings: How long a run waits.
    """

    clock: Callable[[], FakeClock] | None
    seconds: float
    watch: BlockWatch
    ignored: Ignored = field(default_factory=Ignored)
    timings: RunTimings = RunTimings()


class Attempt:
    """One run in progress: its loop, its probe and its points.

    Args:
        loop: The loop of the run.
        point: Where to abort; None for a run without an abort.
        mode: How to abort.
    """

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
        """Run the scenario as the main task."""
        self.main = asyncio.current_task()
        if self.main is not None:
            self.main.set_name("main")
        try:
            return await scenario(self.probe)
        finally:
            self.points.over = True

    @property
    def reached(self) -> bool:
        """Whether the abort was delivered while the scenario was still running."""
        return self.points.reached and not self.late

    def _act(self) -> None:
        """Abort at the point: at once, or in a callback right after the suspension, as the mode demands."""
        assert self.point is not None
        if self.mode == "inside" or self.point.what != AWAIT:
            self._inject()
        else:
            self.loop.call_soon(self._inject)

    def _inject(self) -> None:
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
    """Run the scenario once.

    Args:
        scenario: The scenario.
        bounds: What all runs have in common.
        point: Where to abort; None for a run without an abort.
        mode: How to abort.
        plain: Record only how it ends, and not its points and leftovers.
    """
    clock = None if bounds.clock is None else bounds.clock()
    timings = bounds.timings
    loop = RunLoop(
        clock,
        bounds.seconds,
        lambda thread: bounds.ignored.covers("threads", thread, point),
        still=timings.still,
    )
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
        runner.get_loop()  # made now, so that its context contains the clock and the points
        around.callback(_close, runner, attempt, timings.close)
        before = None if plain else take_snapshot()
        ending = _play(runner, attempt, scenario, bounds.watch)
        return _record(runner, attempt, ending, before, bounds), attempt


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
    runner: asyncio.Runner, attempt: Attempt, ending: RunEnding, before: ResourceSnapshot | None, bounds: Bounds
) -> RecordedRun:
    """Record the leftovers, before any of them is ended."""
    loop, probe = attempt.loop, attempt.probe
    run = RecordedRun(point=attempt.point, mode=attempt.mode, reason=attempt.reason, ending=ending)
    _forget_frames(ending.error)
    if before is None or ending.status == "hung":
        return replace(run, tasks=_tasks_left(loop))
    left = _Leaving(runner, attempt, before, bounds).linger()
    return replace(
        run,
        observed=probe.observed,
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


def describe(task: "asyncio.Task[object]") -> Leftover:
    """The name of a task, or of its function if it was given none, and its chain of awaits, one line each."""
    name, coroutine = task.get_name(), task.get_coro()
    if UNNAMED.fullmatch(name):
        name = getattr(coroutine, "__qualname__", name)
    lines = shown(suspended(coroutine))
    return Leftover("\n".join([f"task {name}", *(f"  {line}" for line in lines)]), name, *lines)


def _closes_generator(task: "asyncio.Task[object]") -> bool:
    """Whether the loop has started the task to close a generator, which is in the record already."""
    coroutine = task.get_coro()
    return type(getattr(coroutine, "coroutine", coroutine)).__name__ == "async_generator_athrow"


def _armed_timers(loop: RunLoop) -> tuple[str, ...]:
    """The armed timers. Garbage is collected first, because a deadline without references disarms its timer then."""
    for generation in range(3):
        if not loop.armed_timers():
            break
        gc.collect(generation)
    return tuple(loop.armed_timers())


def _forget_frames(error: BaseException | None) -> None:
    """Clear the frames of an error, which keep signals, generators and files alive."""
    seen: set[int] = set()
    pending = [error]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if error.__traceback__ is not None:
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = None
        pending += [error.__cause__, error.__context__]
        if isinstance(error, BaseExceptionGroup):
            pending += error.exceptions


class _Leaving:
    """The time after a scenario in which tasks, threads and processes may still end before they count as leftovers."""

    def __init__(self, runner: asyncio.Runner, attempt: Attempt, before: ResourceSnapshot, bounds: Bounds) -> None:
        self._runner = runner
        self._loop = attempt.loop
        self._point = attempt.point
        self._before = before
        self._ignored = bounds.ignored
        self._seconds = bounds.timings.linger
        self._until = attempt.loop.time() + self._seconds
        # There may be no other reference to a task that waits forever. If it were collected, it would seem to have
        # ended.
        self._held = asyncio.all_tasks(attempt.loop)

    def linger(self) -> LeftoverReport:
        """Wait until nothing is left or the time is up, and return the threads, processes and descriptors."""
        ends_at = time.monotonic() + self._seconds
        turns = 0
        while (left := self._left()) or self._counted("tasks", _tasks_left(self._loop)):
            slow = bool(left.processes or left.descriptors)  # these can end without a task or thread of ours
            if time.monotonic() >= ends_at or not (self._go_on() or slow):
                break
            time.sleep(0.001 if slow else 0)
            turns += 1
            if slow and turns in COLLECTIONS:
                # Sockets without references are closed when they are collected. That is done here, so that the result
                # does not depend on when the garbage collector happens to run.
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
        """Let the loop run for one turn, and a little time pass. False if no task or thread can make progress."""
        loop = self._loop
        loop.allow(2 * self._seconds)
        try:
            self._runner.run(asyncio.sleep(0))
        except Hang:  # something has blocked the loop for that long, so there is nothing to wait for
            return False
        self._held |= asyncio.all_tasks(loop)
        if loop.has_ready_callbacks:
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


def _close(runner: asyncio.Runner, attempt: Attempt, seconds: float) -> None:
    """End the leftovers by force, and ignore the errors that this causes."""
    loop = attempt.loop
    if any(wait.clock is loop.clock for wait in FakeClock.waiting_threads()):
        attempt.probe.abort("abort_everywhere, the run is over")  # the time that these threads wait for will not come
    loop.set_exception_handler(lambda loop, context: None)
    loop.allow(seconds)
    if loop.in_executor:  # a function does not end: do not wait for its thread
        loop.forget_executor()
    left = asyncio.all_tasks(loop)
    try:
        runner.close()
    except Hang:
        pass
    for task in left:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # the record lists it
