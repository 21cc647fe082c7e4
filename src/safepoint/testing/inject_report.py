"""Owns what people read of `abort_everywhere`: how far it is, breaches of laws, how to see one of them alone."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .inject_ignore import Ignore
from .inject_points import Mode, Point

__all__ = ["Progress", "Report", "Violation"]

# The same words at more points than this: the others in one line each.
IN_FULL = 3
# Of what fake time jumped over, no more than this is listed.
LISTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One breach of one law in one run. Without a point: the scenario breaks it even when nothing is injected."""

    point: Point | None
    mode: Mode | None
    law: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a campaign is: `abort_everywhere(…, on_progress=print)`. `points` counts those with all their modes."""

    scenario: str
    done: int
    points: int
    runs: int
    violations: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"abort_everywhere({self.scenario}): {self.done} of {self.points} points, {self.runs} runs,"
            f" {self.violations} violations, {self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of a scenario when it was aborted everywhere.

    `aborted`: the runs in which something was done to it. `not_reached`: points that did not come up again in their
    run: not tested, so not passed. `not_tried`: what was still to be done when it ended early. `stable`: two clean runs
    had the same points. `unfinished`: why it ended before everything was tried, or "". `ignored`: each rule of
    `ignore=`, with how much it took out. `jumped_over`: what outside of the loop had not moved for a second when fake
    time jumped all the same.
    """

    scenario: str
    points: tuple[Point, ...]
    runs: int
    aborted: int
    violations: tuple[Violation, ...] = ()
    not_reached: tuple[tuple[Point, Mode], ...] = ()
    stable: bool = True
    unfinished: str = ""
    not_tried: tuple[tuple[Point, Mode], ...] = ()
    ignored: tuple[tuple[Ignore, int], ...] = ()
    jumped_over: tuple[str, ...] = ()

    def check(self) -> None:
        """Say whether it passed: no violation, and nothing left untried.

        Raises:
            AssertionError: It lists every violation, with its place and how to run it alone, and what was not tried.
        """
        __tracebackhide__ = True
        if self.violations:
            raise AssertionError(str(self))
        if self.not_tried:
            raise AssertionError(f"{self}\nWhat was not tried has not passed: give it more time, or fewer modes.")
        if not self.aborted:
            raise AssertionError(f"{self}\nNo point was reached a second time, so that nothing was tested.")

    def __str__(self) -> str:
        return "\n".join([self._summary(), *self._notes(), *self._violations()])

    def _summary(self) -> str:
        return (
            f"abort_everywhere({self.scenario}): {len(self.points)} points, {self.runs} runs, {self.aborted} of them"
            f" aborted, {len(self.violations)} violations, {len(self.not_reached)} not reached"
            + (f", {len(self.not_tried)} not tried" if self.not_tried else "")
        )

    def _notes(self) -> Iterator[str]:
        if self.unfinished:
            yield f"  ended early: {self.unfinished}"
        if not self.stable:
            yield "  two clean runs had different points: a point is known by its task, its place and its count there"
        for rule, count in self.ignored:
            yield f"  not counted: {count}, by {rule!r}"
        for text in self.jumped_over[:LISTED]:
            yield f"  fake time jumped although it had not moved for a second: {text}"
        for point, mode in self.not_reached:
            yield f"  not reached: point {point.number}, {mode!r}: {point}"
        if self.not_tried:
            point, mode = self.not_tried[0]
            yield f"  not tried: {len(self.not_tried)} aborts, from point {point.number}, {mode!r}: {point}"

    def _violations(self) -> Iterator[str]:
        """One paragraph per breach; the modes in which a point shows the same one share it."""
        grouped: dict[tuple[Point | None, str, str], list[Mode]] = {}
        for found in self.violations:
            modes = grouped.setdefault((found.point, found.law, found.message), [])
            if found.mode is not None:
                modes.append(found.mode)
        seen: Counter[tuple[str, str]] = Counter()
        for number, ((point, law, message), modes) in enumerate(grouped.items(), 1):
            seen[law, message] += 1
            first, *rest = message.splitlines() or [""]
            if seen[law, message] > IN_FULL and point is not None:
                yield f"{number}. {law}: the same at {self._told(point, modes)}"
                continue
            yield f"\n{number}. {law}: {first}"
            yield from (f"     {line}" for line in rest)
            if point is None:
                yield "   in a clean run, with no abort at all"
                continue
            yield f"   {self._told(point, modes)}"
            yield from (f"     {line}" for line in point.chain)
            yield f'   alone: abort_everywhere({self.scenario}, only=({point.number}, "{modes[0]}"))'

    def _told(self, point: Point, modes: list[Mode]) -> str:
        return f"point {point.number} at {point}, mode {', '.join(modes)}"
