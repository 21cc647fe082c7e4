"""Owns `abort_everywhere`: run a scenario once per point at which it can be aborted, abort it there, check the laws.

Knows nothing of what the scenario does.

    def test_a_download_can_be_stopped_anywhere():
        async def scenario(probe):
            return await download(url, signal=probe.signal, on_event=probe.event)

        abort_everywhere(scenario, clock=FakeClock)
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import UsageError
from .clock import FakeClock
from .inject_points import Mode, Point
from .inject_report import Report, Violation
from .inject_run import Bounds, Scenario, run_scenario
from .inject_watch import watching
from .laws import DEFAULT_LAWS, Law, Run, ends, works_again

__all__ = ["MODES", "abort_everywhere"]

MODES: tuple[Mode, ...] = ("abort", "inside", "twice", "cancel")
# Enough to see what is wrong; more of the same only takes time.
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
    check: bool = True,
) -> Report:
    """Abort the scenario at each of its points, each in a run of its own, and check the laws after each run.

    The scenario is an async function of one argument, a `Probe`: the controller that will be aborted, which also
    notes effects and events. It must be able to run many times, and complete when nobody aborts it.

    Modes: `"abort"` from a callback of the loop right after the suspension; `"inside"` at the last moment before it;
    `"twice"`: once more at the next point; `"cancel"`: the scenario's task is cancelled from outside instead.
    `clock=FakeClock` runs everything on fake time, which jumps to the next timer when all tasks wait. `seconds` is the
    limit of real time per run. `only=(17, "abort")` does one run alone. Raises: AssertionError, unless `check=False`.
    """
    __tracebackhide__ = True
    _refuse_running_loop()
    for mode in [*modes, *(() if only is None else only[1:])]:
        if mode not in MODES:
            raise UsageError(f"modes must be of {', '.join(MODES)}, not {mode!r}")
    with watching() as watch:
        report = _Campaign(scenario, laws, Bounds(clock, seconds, watch)).run(modes, only)
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


class _Campaign:
    """All the runs of one scenario, in order, and what they showed."""

    def __init__(self, scenario: Scenario, laws: Sequence[Law], bounds: Bounds) -> None:
        self._scenario = scenario
        self._laws = laws
        self._bounds = bounds
        self._runs = self._aborts = self._broken = self._hung = 0
        self._violations: list[Violation] = []
        self._not_reached: list[tuple[Point, Mode]] = []

    def run(self, modes: Sequence[Mode], only: tuple[int, Mode] | None) -> Report:
        """Count the points, then abort at each."""
        first, points = self._clean()
        clean, stable = first, True
        if first.ending.status == "completed":
            # The first run fills caches and starts pools: only what the second one leaves is a leak.
            clean, again = self._clean()
            clean = replace(clean, repeatable=_same_value(first, clean))
            stable, points = _visits(points) == _visits(again), again
        if self._judge(clean, self._laws):
            unfinished = "the scenario breaks laws when nobody aborts it"
        else:
            plan = _plan(points, modes, only)
            unfinished = next(filter(None, (self._abort_at(point, plan[point], clean) for point in plan)), "")
        return Report(
            scenario=getattr(self._scenario, "__name__", repr(self._scenario)),
            points=tuple(points),
            runs=self._runs,
            aborted=self._aborts,
            violations=tuple(self._violations),
            not_reached=tuple(self._not_reached),
            stable=stable,
            unfinished=unfinished,
        )

    def _clean(self) -> tuple[Run, list[Point]]:
        self._runs += 1
        run, attempt = run_scenario(self._scenario, self._bounds)
        return run, attempt.points.collected

    def _abort_at(self, point: Point, modes: list[Mode], clean: Run) -> str:
        """All modes at one point, then one run without an abort. Returns why to try no further, or nothing."""
        done: list[Run] = []
        for mode in modes:
            run = replace(self._aborted(point, mode), clean=clean)
            if run.mode is None and run.ending.status != "completed" and done and works_again in self._laws:
                # It broke before it came to the point: the run before has left something in its way.
                return self._again(done[-1:], run)
            done.append(run)
            self._judge(run, self._laws)
            if self._hung == HUNG_RUNS or self._broken == BROKEN_RUNS:
                return f"{self._broken} runs broke laws, {self._hung} of them by hanging: enough to go on with"
        if works_again not in self._laws:
            return ""
        self._runs += 1
        return self._again(done, run_scenario(self._scenario, self._bounds, plain=True)[0])

    def _again(self, done: list[Run], again: Run) -> str:
        """Judge a run without an abort as what came after those with one."""
        broken = False
        for run in done:
            if run.ending.status != "hung":
                law_broken = self._judge(replace(run, again=replace(again, clean=run.clean)), [works_again])
                broken = broken or law_broken
        return "the scenario does not work any more, so that later runs would tell nothing" if broken else ""

    def _aborted(self, point: Point, mode: Mode) -> Run:
        self._runs += 1
        run, attempt = run_scenario(self._scenario, self._bounds, point, mode)
        if attempt.reached:
            self._aborts += 1
        else:
            self._not_reached.append((point, mode))
            run = replace(run, point=None, mode=None, reason=None)  # nothing was done to it: it is a clean run
        return run

    def _judge(self, run: Run, laws: Sequence[Law]) -> bool:
        """True: it broke a law."""
        hung = run.ending.status == "hung"
        found = [
            Violation(point=run.point, mode=run.mode, law=getattr(law, "__name__", repr(law)), message=message)
            for law in ([ends] if hung else laws)
            for message in _breaches(law, run)
        ]
        self._violations += found
        self._broken += bool(found)
        self._hung += hung
        return bool(found)


def _breaches(law: Law, run: Run) -> list[str]:
    try:
        return list(law(run) or ())
    except AssertionError as error:
        return [str(error) or "it does not hold"]


def _plan(points: list[Point], modes: Sequence[Mode], only: tuple[int, Mode] | None) -> dict[Point, list[Mode]]:
    """What is to be done, where."""
    if not points:
        raise UsageError(
            "The scenario neither waits nor emits an event, so there is no point at which to abort it."
            " Await something, hand out `probe.event`, or mark a place with `point('name')`."
        )
    if only is None:
        chosen = {point: [mode for mode in modes if mode in point.modes] for point in points}
        return {point: modes for point, modes in chosen.items() if modes}
    number, mode = only
    if not 1 <= number <= len(points) or mode not in points[number - 1].modes:
        raise UsageError(
            f"only={only!r}: there are {len(points)} points; outside of an await only 'inside' and 'twice'"
        )
    return {points[number - 1]: [mode]}


def _visits(points: list[Point]) -> list[tuple[str, str, str, int, int]]:
    return [(point.what, point.task, point.file, point.line, point.nth) for point in points]


def _same_value(first: Run, second: Run) -> bool:
    try:
        return bool(first.ending.value == second.ending.value)
    except Exception:  # values that cannot be compared
        return False
