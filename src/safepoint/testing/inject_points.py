"""Owns the points of a run: where it can be aborted, how one is recognised in the next run, and acting at one.

A point is reached when a task suspends, an event is emitted, a stream hands out a chunk, or code says `point("name")`.
It is recognised by its task's role, its place and how often that task has been there: in a scenario of asyncio alone
that is the n-th point in the order of the run; where threads take part it is the same piece of work.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..abort import Stream
from .inject_chain import Chain, place, running, short, shown, suspended
from .inject_loop import CoroutineDriver

__all__ = ["AWAIT", "Mode", "Point", "Points", "chunks_are_points", "point", "recording"]

Mode: TypeAlias = Literal["abort", "inside", "twice", "cancel"]
AWAIT = "await"
UNNAMED = re.compile(r"Task-\d+|None")  # Python 3.13.0 names what a task factory makes "None"
IDENTITY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8,}")  # differs from run to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One place and moment of a scenario at which it can be aborted.

    `what` is "await", "event", "chunk" or a marker's name; `nth`: how often its task had been at `place` by then.
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
        """`file:line`, as people write it."""
        return f"{short(self.file)}:{self.line}"

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What can be done there. Outside of an await there is nothing between this moment and the next await."""
        return ("abort", "inside", "twice", "cancel") if self.what == AWAIT else ("inside", "twice")

    def __str__(self) -> str:
        times = f", time {self.nth}" if self.nth > 1 else ""
        return f"{self.place} ({self.what} in task {self.task}{times})"


class Points:
    """Sees the points of one run go by: collects them, or acts at one of them and at the one that comes next."""

    def __init__(self, target: Point | None = None, act: Callable[[], object] = lambda: None) -> None:
        self.collected: list[Point] = []
        self.reached = False
        self.over = False
        self.then: Callable[[], object] | None = None  # done once, at the next point after the target
        self._target = target
        self._act = act
        self._lock = threading.Lock()
        self._visits: dict[tuple[str, str, str, int], int] = {}
        self._roles: dict[str, int] = {}

    def suspension(self, driver: CoroutineDriver[Any]) -> None:
        """A task has just suspended; it is still the current one."""
        if self.reached or self.over:
            self._next()
        else:
            self._reach(AWAIT, self._role(driver), suspended(driver.coroutine))

    def passing(self, what: str) -> None:
        """Running code is at a point: in a task, in a callback of the loop or in a thread."""
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

    def _role(self, driver: CoroutineDriver[Any]) -> str:
        """What a task is called in every run: its name if it was given one, else its function's."""
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
    """Mark a place without an await at which a scenario shall be aborted too. Outside of one it does nothing."""
    points = _points.get()
    if points is not None:
        points.passing(name)


@contextmanager
def recording(points: Points) -> Iterator[None]:
    """What is started inside the block tells these points of its `point()`s."""
    token = _points.set(points)
    try:
        yield
    finally:
        _points.reset(token)


_next_chunk = Stream.__anext__


async def _counted_chunk(stream: Stream[Any]) -> Any:
    chunk = await _next_chunk(stream)
    point("chunk")
    return chunk


@contextmanager
def chunks_are_points() -> Iterator[None]:
    """Inside the block each chunk that a `signal.stream()` hands out is a point."""
    Stream.__anext__ = _counted_chunk  # type: ignore[method-assign,assignment]  # what nobody tests must not cost everybody
    try:
        yield
    finally:
        Stream.__anext__ = _next_chunk  # type: ignore[method-assign]
