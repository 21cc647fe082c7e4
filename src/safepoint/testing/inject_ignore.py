"""Owns `ignore=`: the rules for what the laws shall not count, and how often each was used.

Knows nothing of how runs are made.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from ..errors import UsageError
from .inject_left import Leftover
from .inject_points import Point
from .laws import RecordedRun

__all__ = ["LAW_OF", "Ignore", "Ignored"]

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
