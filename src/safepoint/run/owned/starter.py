"""Owns who started a program: which task, or which function in a thread and at which place, and whether it waits on.

A program is not ended while whoever started it could not be kept from using what was cut: a task that goes on, code
that cleans up, code that holds something. Knows nothing of programs and of how they end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..interrupt import InterruptibleCall

__all__ = ["Starter", "starter_of"]


class Noted(NamedTuple):
    """A frame as it was: what is needed to read the source of the place later."""

    f_code: CodeType
    f_lasti: int
    f_globals: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Starter:
    """Whoever started a program.

    Attributes:
        task: The task, unless it is the leaf's own, which is interrupted before its programs are ended.
        awaits: The task awaits the program. False: it was started by code that may block the event loop.
        call: The function in a thread.
        places: Where that function was, innermost first.
    """

    task: "asyncio.Task[Any] | None" = None
    awaits: bool = False
    call: "InterruptibleCall[Any] | None" = None
    places: tuple[Noted, ...] = ()

    def needs_it(self) -> bool:
        """Whether its program must not be ended now."""
        if self.task is not None and not self.task.done() and (self.awaits or not _blocks_its_loop(self.task)):
            return True
        call = self.call
        if call is None or call.ended or call.interrupted:
            return False
        # Nothing is taken from a clean-up that has started a program. One that waits for an earlier program is helped
        # by its end, unless something is held: then no exception can come before what was cut is used.
        return call.holding() or (call.cleaning_up() and call.cleaned_up_at(self.places))

    def when_it_has_ended(self, callback: Callable[[object], object]) -> None:
        """Call back when the task is done. To be called in its thread."""
        if self.task is not None:
            self.task.add_done_callback(callback)


def starter_of(
    frame: FrameType,
    own_task: "asyncio.Task[Any] | None",
    call: "InterruptibleCall[Any] | None",
    *,
    awaits: bool,
) -> Starter:
    """Who starts a program in this thread.

    Args:
        frame: The frame of the code that starts it.
        own_task: The leaf's own task.
        call: The function of the leaf that runs in this thread.
        awaits: The program is started by code that awaits its end.
    """
    loop = asyncio._get_running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    places: list[Noted] = []
    if call is not None:
        back: FrameType | None = frame
        while back is not None and back.f_code is not _RUN:
            places.append(Noted(back.f_code, back.f_lasti, back.f_globals))
            back = back.f_back
    return Starter(None if task is own_task else task, awaits, call, tuple(places))


def _blocks_its_loop(task: "asyncio.Task[Any]") -> bool:
    return asyncio.current_task(task.get_loop()) is task


_RUN = InterruptibleCall.run.__code__
