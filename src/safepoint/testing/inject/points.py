"""Owns the points of a run: where it can be aborted, how a point is recognised in the next run, and acting at one.

A point is reached when a task suspends, an event is emitted, a stream yields a chunk, or code calls `point("name")`.
Suspensions are found exactly, and not by a timer: each task drives its coroutine through a `CoroutineDriver`
(`loop.py`), and whenever the coroutine yields, the task is suspending at that moment.

A point is recognised by the role of its task, its place, and how often that task has been there. The number of a point
in the order of a run would not do: if threads take part, two runs may order the same work differently. In a scenario
of asyncio alone, both give the same result.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from ...abort import Stream
from .chain import Chain, place, running, short, shown, suspended
from .loop import CoroutineDriver

__all__ = ["AWAIT", "Mode", "Point", "Points", "chunks_are_points", "point", "recording"]

T = TypeVar("T")
Mode: TypeAlias = Literal["abort", "inside", "twice", "cancel"]
AWAIT = "await"
UNNAMED = re.compile(r"Task-\d+|None")  # Python 3.13.0 names what a task factory makes "None"
IDENTITY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8,}")  # an id, which differs in each run


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One place and moment of a scenario at which it can be aborted.

    Attributes:
        number: Its number in the order of the first run, from 1.
        what: "await", "event", "chunk", or the name given to `point()`.
        task: The role of its task: a name that is the same in every run.
        nth: How often that task had been at this place by then, this time included.
        file: The file of the place.
        line: The line of the place.
        chain: The chain of awaits or calls that leads there, one line of text each, outermost first.
    """

    number: int
    what: str
    task: str
    nth: int
    file: str
    line: int
    chain: tuple[str, ...]

    @property
    def place(self) -> str:
        """The place as `file:line`, with a short path."""
        return f"{short(self.file)}:{self.line}"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that can be tried there. "abort" and "cancel" come after a suspension, so they need an await."""
        return ("abort", "inside", "twice", "cancel") if self.what == AWAIT else ("inside", "twice")

    def __str__(self) -> str:
        times = f", time {self.nth}" if self.nth > 1 else ""
        return f"{self.place} ({self.what} in task {self.task}{times})"


class Points:
    """The points of one run, as they are reached.

    Args:
        target: The point at which to act; None to collect all points.
        act: Called when the target is reached.
    """

    def __init__(self, target: Point | None = None, act: Callable[[], object] = lambda: None) -> None:
        self.collected: list[Point] = []
        self.reached = False
        self.over = False
        self.then: Callable[[], object] | None = None  # called once, at the next point after the target
        self._target = target
        self._act = act
        self._lock = threading.Lock()
        self._visits: dict[tuple[str, str, str, int], int] = {}
        self._roles: dict[str, int] = {}

    def suspension(self, driver: CoroutineDriver[object]) -> None:
        """Note that the current task is suspending."""
        if self.reached or self.over:
            self._next()
        else:
            self._reach(AWAIT, self._role(driver), suspended(driver.coroutine))

    def passing(self, what: str) -> None:
        """Note that running code has reached a point, in a task, in a callback of the loop or in a thread."""
        if self.reached or self.over:
            self._next()
        else:
            self._reach(what, self._running_role(), running(2))

    def _next(self) -> None:
        then, self.then = self.then, None
        if then is not None and not self.over:
            then()

    def _reach(self, what: str, role: str, chain: Chain) -> None:
        visit = (what, role, *place(chain))
        with self._lock:
            nth = self._visits[visit] = self._visits.get(visit, 0) + 1
        target = self._target
        if target is None:
            self._collect(visit, nth, chain)
        elif nth == target.nth and visit == (target.what, target.task, target.file, target.line):
            self.reached = True
            self._act()

    def _collect(self, visit: tuple[str, str, str, int], nth: int, chain: Chain) -> None:
        what, role, file, line = visit
        with self._lock:
            number = len(self.collected) + 1
            self.collected.append(
                Point(number=number, what=what, task=role, nth=nth, file=file, line=line, chain=shown(chain))
            )

    def _role(self, driver: CoroutineDriver[object]) -> str:
        """A name for a task that is the same in every run: the name it was given, or that of its function."""
        if not driver.role:
            task = asyncio.current_task()
            name = "" if task is None else task.get_name()
            if not name or UNNAMED.fullmatch(name):
                name = getattr(driver.coroutine, "__qualname__", type(driver.coroutine).__name__)
            driver.role = self._numbered(IDENTITY.sub("…", name))
        return driver.role

    def _running_role(self) -> str:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return "thread " + re.sub(r"[-_]?\d+", "", threading.current_thread().name)
        driver = None if task is None else task.get_coro()
        return self._role(driver) if isinstance(driver, CoroutineDriver) else "callback"

    def _numbered(self, name: str) -> str:
        count = self._roles[name] = self._roles.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


_points: ContextVar[Points | None] = ContextVar("safepoint_points", default=None)


def point(name: str) -> None:
    """Mark a place without an await at which a scenario shall be aborted as well. Does nothing outside of scenarios."""
    points = _points.get()
    if points is not None:
        points.passing(name)


@contextmanager
def recording(points: Points) -> Iterator[None]:
    """Record calls of `point()` here, by code inside the block and by tasks and threads that it starts."""
    token = _points.set(points)
    try:
        yield
    finally:
        _points.reset(token)


_next_chunk = Stream.__anext__


async def _counted_chunk(stream: Stream[T]) -> T:
    chunk = await _next_chunk(stream)
    point("chunk")
    return chunk


@contextmanager
def chunks_are_points() -> Iterator[None]:
    """Make each chunk that a `signal.stream()` yields inside the block a point."""
    # Replaced for the time of a test, so that streams outside of tests pay nothing.
    Stream.__anext__ = _counted_chunk  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Stream.__anext__ = _next_chunk  # type: ignore[method-assign]
