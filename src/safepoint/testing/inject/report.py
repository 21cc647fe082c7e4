"""Owns what people read of `abort_everywhere`: progress, breaches of laws, and how to reproduce one of them.

Also `ignore=`: the rules for what the laws shall not count, and how often each was used. Knows nothing of how runs are
made.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from ...errors import UsageError
from ..laws import RecordedRun
from .left import Leftover
from .points import Mode, Point

__all__ = ["LAW_OF", "Ignore", "Ignored", "Progress", "Report", "Violation"]

ANY = "*"
# The fields of a run that list leftovers, each with the law that counts them.
LAW_OF = {
    "tasks": "no_task_left",
    "threads": "no_thread_left",
    "processes": "no_process_left",
    "descriptors": "no_descriptor_left",
    "streams": "no_stream_open",
    "timers": "no_timer_armed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """A rule for something that the laws shall not count.

    Each field is a pattern with `*` and `?`, and all of them must match.

    Attributes:
        law: The name of the law, such as `"no_task_left"`.
        name: The name of the leftover: of a task or its function, of a thread, the command of a process, the target
            of a descriptor, the name of a generator or of a timer's callback.
        place: A line at which the leftover is, as the report shows it, such as `"myapp/pool.py:*"`.
        at: A line of the place at which the scenario was aborted, as the report shows it, such as `"*create_server"`.
    """

    law: str = ANY
    name: str = ANY
    place: str = ANY
    at: str = ANY

    def __post_init__(self) -> None:
        for each in fields(self):
            if not isinstance(getattr(self, each.name), str):
                raise TypeError(f"Ignore({each.name}=…) must be a pattern, not {getattr(self, each.name)!r}")
        if self.law == self.name == self.place == self.at == ANY:
            raise UsageError("Ignore() would ignore everything: give it a law=, a name=, a place= or an at=")

    def covers(self, law: str, thing: str, point: Point | None) -> bool:
        """Whether the rule excludes this leftover from this law, in a run that was aborted at this point."""
        name = thing.name if isinstance(thing, Leftover) else thing
        places = thing.places if isinstance(thing, Leftover) else ()
        return (
            self._holds(law, point)
            and fnmatchcase(name, self.name)
            and (self.place == ANY or any(_matches(line, self.place) for line in places))
        )

    def drops(self, law: str, point: Point | None) -> bool:
        """Whether the rule excludes everything that this law reports for a run that was aborted at this point."""
        return self.name == self.place == ANY and self._holds(law, point)

    def _holds(self, law: str, point: Point | None) -> bool:
        chain = () if point is None else (point.place, *point.chain)
        return fnmatchcase(law, self.law) and (self.at == ANY or any(_matches(line, self.at) for line in chain))

    def __repr__(self) -> str:
        given = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return f"Ignore({', '.join(text for text in given if not text.endswith(repr(ANY)))})"


def _matches(line: str, pattern: str) -> bool:
    """Whether a line of a chain (`file:line function`) matches; the pattern may leave out the function."""
    return fnmatchcase(line, pattern) or fnmatchcase(line.partition(" ")[0], pattern)


class Ignored:
    """The rules of one campaign, and how often each was used.

    Args:
        rules: The rules.
        laws: The names of all laws of the campaign, to find misspelt ones.
    """

    def __init__(self, rules: Iterable[Ignore] = (), laws: Sequence[str] = ()) -> None:
        if isinstance(rules, str | Ignore):
            raise UsageError("ignore= takes a list: ignore=[Ignore(name='serve')]")
        self._rules = tuple(rules)
        self._used: Counter[int] = Counter()
        for rule in self._rules:
            if not isinstance(rule, Ignore):
                raise UsageError(f"ignore= takes rules such as Ignore(name='serve'), not {rule!r}")
            if laws and not any(fnmatchcase(law, rule.law) for law in laws):
                raise UsageError(f"{rule!r}: there is no such law; the laws are {', '.join(laws)}")

    def covers(self, field: str, thing: str, point: Point | None = None) -> bool:
        """Whether a rule excludes this leftover. Does not count as a use."""
        return any(rule.covers(LAW_OF[field], thing, point) for rule in self._rules)

    def without(self, run: RecordedRun) -> RecordedRun:
        """The run without the leftovers that the rules exclude."""
        if not self._rules:
            return run
        counted: dict[str, Any] = {}  # Any: the argument of `replace`, which has a type for each field
        for field in LAW_OF:
            counted[field] = tuple(thing for thing in getattr(run, field) if not self._takes(field, thing, run.point))
        return replace(run, **counted)

    def drops(self, law: str, point: Point | None) -> bool:
        """Whether a rule excludes what this law has reported for this point."""
        return self._use(lambda rule: rule.drops(law, point))

    def _takes(self, field: str, thing: str, point: Point | None) -> bool:
        return self._use(lambda rule: rule.covers(LAW_OF[field], thing, point))

    def _use(self, applies: Callable[[Ignore], bool]) -> bool:
        for number, rule in enumerate(self._rules):
            if applies(rule):
                self._used[number] += 1
                return True
        return False

    @property
    def used(self) -> tuple[tuple[Ignore, int], ...]:
        """Each rule, and how many leftovers or breaches it has excluded."""
        return tuple((rule, self._used[number]) for number, rule in enumerate(self._rules))


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
