"""Owns what people read of `abort_everywhere`: progress, breaches of laws, and how to reproduce one of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .inject_ignore import Ignore
from .inject_points import Mode, Point

__all__ = ["Progress", "Report", "Violation"]

# How many breaches with the same text are shown completely; further ones get one line each.
IN_FULL = 3
# How many things that fake time jumped over are listed.
LISTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One breach of one law in one run.

    Attributes:
        point: Where the scenario was aborted; None if it breaks the law even without an abort.
        mode: How it was aborted, or None.
        law: The name of the law.
        message: What is wrong.
    """

    point: Point | None
    mode: Mode | None
    law: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a campaign is: `abort_everywhere(…, on_progress=print)`.

    Attributes:
        scenario: The name of the scenario.
        done: How many points were tried in all of their modes.
        points: How many points there are.
        runs: How many runs there were.
        violations: How many violations were found.
        seconds: How long it has taken.
    """

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
    """The result of aborting a scenario everywhere.

    Attributes:
        scenario: The name of the scenario.
        points: All points of the scenario.
        runs: How many runs there were.
        aborted: How many of them were aborted.
        violations: The breaches of laws.
        not_reached: Points that were not reached again in their run. They were not tested, so they have not passed.
        stable: Whether two runs without an abort had the same points.
        unfinished: Why the campaign ended early; empty if it did not.
        not_tried: What was still to be tried when it ended early.
        ignored: Each rule of `ignore=`, and how much it has excluded.
        jumped_over: Things outside of the loop that had not moved for a second when fake time jumped.
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
        """Check that there is no violation and that everything was tried.

        Raises:
            AssertionError: With every violation, its place and how to run it alone, and with what was not tried.
        """
        __tracebackhide__ = True
        if self.violations:
            raise AssertionError(str(self))
        if self.not_tried:
            raise AssertionError(f"{self}\nWhat was not tried has not passed: give it more time, or fewer modes.")
        if not self.aborted:
            raise AssertionError(f"{self}\nNo point was reached a second time, so nothing was tested.")

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
        """One paragraph per breach; modes in which a point shows the same breach share it."""
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
                yield f"{number}. {law}: the same at {_where(point, modes)}"
                continue
            yield f"\n{number}. {law}: {first}"
            yield from (f"     {line}" for line in rest)
            if point is None:
                yield "   in a clean run, with no abort at all"
                continue
            yield f"   {_where(point, modes)}"
            yield from (f"     {line}" for line in point.chain)
            yield f'   alone: abort_everywhere({self.scenario}, only=({point.number}, "{modes[0]}"))'


def _where(point: Point, modes: list[Mode]) -> str:
    return f"point {point.number} at {point}, mode {', '.join(modes)}"
