"""Owns `abort_everywhere`, which aborts a scenario at each of its points, each in a run of its own, and checks laws.

Knows nothing of what the scenario does.

    def test_a_download_can_be_stopped_anywhere():
        async def scenario(probe):
            return await download(url, signal=probe.signal, on_event=probe.event)

        abort_everywhere(scenario, clock=FakeClock)
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...abort.clock import check_seconds
from ...errors import UsageError
from ..clock import FakeClock
from ..laws import DEFAULT_LAWS, Law, RecordedRun, ends, works_again
from .points import Mode, Point
from .report import Ignore, Ignored, Progress, Report, Violation
from .run import Attempt, Bounds, RunTimings, Scenario, run_scenario
from .watch import watching

__all__ = ["MODES", "abort_everywhere"]

MODES: tuple[Mode, ...] = ("abort", "inside", "twice", "cancel")
# After this many runs with breaches, or hung runs, a campaign ends: they are enough to see what is wrong.
BROKEN_RUNS = 25
HUNG_RUNS = 3


def abort_everywhere(
    scenario: Scenario,
    *,
    laws: Sequence[Law] = DEFAULT_LAWS,
    modes: Sequence[Mode] = MODES,
    clock: Callable[[], FakeClock] | None = None,
    only: tuple[int, Mode] | None = None,
    seconds: float = 10.0,
    time_limit: float | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    ignore: Sequence[Ignore] = (),
    timings: RunTimings | None = None,
    check: bool = True,
) -> Report:
    """Abort the scenario at each of its points, each in a run of its own, and check the laws after each run.

    Args:
        scenario: An async function of one argument, a `Probe`: the controller that will be aborted, which also records
            effects and events. It must be able to run many times, and complete if it is not aborted.
        laws: What must be true after each run.
        modes: How to abort: `"abort"` in a callback of the loop right after the suspension, `"inside"` at the last
            moment before it, `"twice"` once more at the next point, `"cancel"` by cancelling the scenario's task.
        clock: `FakeClock` runs everything on fake time, which jumps to the next timer when all tasks wait and nothing
            outside of the loop moves.
        only: One run alone, such as `(17, "abort")`.
        seconds: The limit of real time per run.
        time_limit: The limit of real time for all runs together. The current run is finished. The report lists what
            was not tried by then, and does not pass.
        on_progress: Called with a `Progress` before the first point and after each: `on_progress=print`.
        ignore: What the laws shall not count.
        timings: How long each run waits for what is outside the loop, and for leftovers to end.
        check: Whether to raise if the report does not pass.

    Returns:
        The points, the violations, and what was not tried.

    Raises:
        AssertionError: A law was broken, or not everything was tried; not with `check=False`.
        UsageError: It was called inside an event loop, or an argument makes no sense.
    """
    __tracebackhide__ = True
    _refuse_running_loop()
    _refuse_unknown_modes([*modes, *(() if only is None else only[1:])])
    if on_progress is not None and not callable(on_progress):
        raise TypeError(f"on_progress must be a function of one argument, such as print, not {on_progress!r}")
    ends_at = None if time_limit is None else time.monotonic() + check_seconds("time_limit", time_limit)
    ignored = Ignored(ignore, [_name_of(law) for law in (*laws, ends)])
    with watching() as watch:
        campaign = _Campaign(scenario, laws, Bounds(clock, seconds, watch, ignored, timings or RunTimings()))
        report = campaign.run(modes, only, ends_at, on_progress)
    if check:
        report.check()
    return report


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "abort_everywhere() runs the scenario on event loops of its own and cannot be called inside one:"
        " call it from a plain test function, `def test_…():`, without `async`."
    )


def _refuse_unknown_modes(modes: Sequence[object]) -> None:
    for mode in modes:
        if mode not in MODES:
            raise UsageError(f"modes must be of {', '.join(MODES)}, not {mode!r}")


class _Campaign:
    """All runs of one scenario, in order, and their results."""

    def __init__(self, scenario: Scenario, laws: Sequence[Law], bounds: Bounds) -> None:
        self._scenario = scenario
        self._name = getattr(scenario, "__name__", repr(scenario))
        self._laws = laws
        self._bounds = bounds
        self._runs = self._aborts = self._broken = self._hung = 0
        self._violations: list[Violation] = []
        self._not_reached: list[tuple[Point, Mode]] = []
        self._tried: set[tuple[Point, Mode]] = set()
        self._jumped_over: dict[str, None] = {}
        self._began = time.monotonic()

    def run(
        self,
        modes: Sequence[Mode],
        only: tuple[int, Mode] | None,
        ends_at: float | None,
        on_progress: Callable[[Progress], object] | None,
    ) -> Report:
        """Collect the points, then abort at each."""
        first, points = self._clean()
        clean, stable = first, True
        plan: dict[Point, list[Mode]] = {}
        if first.ending.status == "completed":
            # The first run fills caches and starts pools, so only leftovers of the second one are leaks.
            clean, again = self._clean()
            clean = replace(clean, repeatable=_same_value(first, clean))
            stable, points = _visits(points) == _visits(again), again
        clean = self._bounds.ignored.without(clean)
        if self._judge(clean, self._laws):
            unfinished = "the scenario breaks laws even without an abort"
        else:
            plan = _plan(points, modes, only)
            unfinished = self._carry_out(plan, clean, ends_at, on_progress)
        return Report(
            scenario=self._name,
            points=tuple(points),
            runs=self._runs,
            aborted=self._aborts,
            violations=tuple(self._violations),
            not_reached=tuple(self._not_reached),
            stable=stable,
            unfinished=unfinished,
            not_tried=tuple((at, mode) for at in plan for mode in plan[at] if (at, mode) not in self._tried),
            ignored=self._bounds.ignored.used,
            jumped_over=tuple(self._jumped_over),
        )

    def _carry_out(
        self,
        plan: dict[Point, list[Mode]],
        clean: RecordedRun,
        ends_at: float | None,
        on_progress: Callable[[Progress], object] | None,
    ) -> str:
        """Abort at each point. Returns why it ended early, or an empty text."""
        why = ""
        for done, point in enumerate([*plan, None]):
            if on_progress is not None:
                seconds = time.monotonic() - self._began
                on_progress(
                    Progress(
                        scenario=self._name,
                        done=done,
                        points=len(plan),
                        runs=self._runs,
                        violations=len(self._violations),
                        seconds=seconds,
                    )
                )
            if point is None or why:
                break
            why = self._abort_at(point, plan[point], clean, ends_at)
        return why

    def _clean(self) -> tuple[RecordedRun, list[Point]]:
        run, attempt = self._run()
        return run, attempt.points.collected

    def _run(
        self, point: Point | None = None, mode: Mode | None = None, *, plain: bool = False
    ) -> tuple[RecordedRun, Attempt]:
        self._runs += 1
        run, attempt = run_scenario(self._scenario, self._bounds, point, mode, plain=plain)
        self._jumped_over.update(attempt.loop.jumped_over)
        return run, attempt

    def _abort_at(self, point: Point, modes: list[Mode], clean: RecordedRun, ends_at: float | None) -> str:
        """Try all modes at one point, then run once without an abort. Returns why to stop trying, or an empty text."""
        done: list[RecordedRun] = []
        late = ""
        for mode in modes:
            if ends_at is not None and time.monotonic() >= ends_at:
                late = "the time limit of the campaign was reached"
                break
            run = replace(self._bounds.ignored.without(self._aborted(point, mode)), clean=clean)
            if run.mode is None and run.ending.status != "completed" and done and works_again in self._laws:
                # It failed before it reached the point: the run before must have left something that breaks it.
                return self._again(done[-1:], run)
            done.append(run)
            self._judge(run, self._laws)
            if self._hung == HUNG_RUNS or self._broken == BROKEN_RUNS:
                return f"{self._broken} runs broke laws, {self._hung} of them by hanging: further runs add nothing"
        if works_again not in self._laws or not done:
            return late
        return self._again(done, self._run(plain=True)[0]) or late

    def _again(self, done: list[RecordedRun], again: RecordedRun) -> str:
        """Check with a later run without an abort that the scenario still works after the aborted runs."""
        broken = False
        for run in done:
            if run.ending.status != "hung":
                law_broken = self._judge(replace(run, again=replace(again, clean=run.clean)), [works_again])
                broken = broken or law_broken
        return "the scenario does not work any more, so further runs would show nothing" if broken else ""

    def _aborted(self, point: Point, mode: Mode) -> RecordedRun:
        run, attempt = self._run(point, mode)
        self._tried.add((point, mode))
        if attempt.reached:
            self._aborts += 1
        else:
            self._not_reached.append((point, mode))
            run = replace(run, point=None, mode=None, reason=None)  # it was not aborted, so it is a clean run
        return run

    def _judge(self, run: RecordedRun, laws: Sequence[Law]) -> bool:
        """Check the laws and record violations. True if there are any."""
        hung = run.ending.status == "hung"
        found = [
            Violation(point=run.point, mode=run.mode, law=_name_of(law), message=message)
            for law in ([ends] if hung else laws)
            for message in _breaches(law, run)
            if not self._bounds.ignored.drops(_name_of(law), run.point)
        ]
        self._violations += found
        self._broken += bool(found)
        self._hung += hung
        return bool(found)


def _name_of(law: Law) -> str:
    return getattr(law, "__name__", repr(law))


def _breaches(law: Law, run: RecordedRun) -> list[str]:
    try:
        return list(law(run) or ())
    except AssertionError as error:
        return [str(error) or "it does not hold"]


def _plan(points: list[Point], modes: Sequence[Mode], only: tuple[int, Mode] | None) -> dict[Point, list[Mode]]:
    """The modes to try at each point."""
    if not points:
        raise UsageError(
            "The scenario neither waits nor emits an event, so there is no point at which to abort it."
            " Await something, pass `probe.event` to code that emits events, or mark a place with `point('name')`."
        )
    if only is None:
        chosen: dict[Point, list[Mode]] = {point: [mode for mode in modes if mode in point.modes] for point in points}
        return {point: planned for point, planned in chosen.items() if planned}
    number, mode = only
    if not 1 <= number <= len(points) or mode not in points[number - 1].modes:
        raise UsageError(
            f"only={only!r}: there are {len(points)} points; outside of an await only 'inside' and 'twice'"
        )
    return {points[number - 1]: [mode]}


def _visits(points: list[Point]) -> list[tuple[str, str, str, int, int]]:
    return [(point.what, point.task, point.file, point.line, point.nth) for point in points]


def _same_value(first: RecordedRun, second: RecordedRun) -> bool:
    try:
        return bool(first.ending.value == second.ending.value)
    except Exception:  # values that cannot be compared
        return False
