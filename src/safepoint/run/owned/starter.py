"""Owns what has started a program: a task, or a function in a thread, and whether it still needs the program.

A program is not ended while the code that started it would use the partial result: a task that continues, clean-up
code, or code that holds something. Knows nothing of programs and of how they end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import NamedTuple

from ..interrupt import InterruptibleCall

__all__ = ["Starter", "starter_of"]


class FramePosition(NamedTuple):
    """The position of a frame at one moment: enough to find it in the source later."""

    f_code: CodeType
    f_lasti: int
    f_globals: dict[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Starter:
    """The code that started a program.

    Attributes:
        task: The task; None if it is the leaf's own task, which is interrupted before its programs are ended.
        awaits: Whether the task awaits the program. Otherwise the program was started by code that may block the loop.
        call: The function in a thread.
        positions: Where that function was when it started the program, innermost frame first.
    """

    task: "asyncio.Task[object] | None" = None
    awaits: bool = False
    call: "InterruptibleCall[object] | None" = None
    positions: tuple[FramePosition, ...] = ()

    def needs_program(self) -> bool:
        """Whether the program must not be ended now."""
        if self.task is not None and not self.task.done() and (self.awaits or not _blocks_its_loop(self.task)):
            return True
        call = self.call
        if call is None or call.ended or call.interrupted:
            return False
        # Clean-up code keeps the programs that it has started itself. If it waits for an earlier program, the end of
        # that program lets it continue. But code that holds something cannot be interrupted before it uses the partial
        # result, so then nothing is ended.
        return call.holding() or (call.cleaning_up() and call.cleaned_up_at(self.positions))

    def add_done_callback(self, callback: Callable[[object], object]) -> None:
        """Call back when the task is done. Must be called in the thread of its loop."""
        if self.task is not None:
            self.task.add_done_callback(callback)


def starter_of(
    frame: FrameType,
    own_task: "asyncio.Task[object] | None",
    call: "InterruptibleCall[object] | None",
    *,
    awaits: bool,
) -> Starter:
    """The code that is starting a program in this thread.

    Args:
        frame: The frame of the code that starts it.
        own_task: The leaf's own task.
        call: The function of the leaf that runs in this thread.
        awaits: Whether the code awaits the end of the program.
    """
    loop = asyncio._get_running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    positions: list[FramePosition] = []
    if call is not None:
        outer: FrameType | None = frame
        while outer is not None and outer.f_code is not _RUN:
            positions.append(FramePosition(outer.f_code, outer.f_lasti, outer.f_globals))
            outer = outer.f_back
    return Starter(None if task is own_task else task, awaits, call, tuple(positions))


def _blocks_its_loop(task: "asyncio.Task[object]") -> bool:
    return asyncio.current_task(task.get_loop()) is task


_RUN = InterruptibleCall.run.__code__
