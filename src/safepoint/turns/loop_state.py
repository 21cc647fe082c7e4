"""Owns the state that the commands of a loop share with its task, and its result.

Commands write the state and wake the task. In the result every accepted item is in exactly one place.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..abort import AbortController, AbortError, AbortReason, Clock
from ..abort.event_loop import post
from ..errors import UsageError
from ..events import Event
from ..outcome import Outcome
from ..run.context import Stamp
from ..run.stop import Stop, StopAt, StopRequest
from .inbox import Inbox
from .loop_checkpoint import CheckpointReport, InterruptedTurn
from .turn import Turn

__all__ = ["LoopExit", "LoopState", "is_async"]

T = TypeVar("T")


@dataclass(slots=True)
class LoopExit(Generic[T]):
    """How a loop ended. Every accepted item was either handled or is in exactly one of the lists.

    Attributes:
        reason: What broke the loop. `None` if it was stopped, or had nothing left to do.
        handled: How many items were handled.
        unhandled: Items that were never part of a turn that began, in the order in which they were pushed.
        interrupted: Items of turns that were stopped.
        preempted: Items of turns that made way for a newer item.
        failed: Items of turns that failed.
        dropped: Items that a plan left out, or that were removed from the queue.
        late: Items whose push was refused because it came after the stop. They are not accepted items.
        stop_cause: The reason given with the stop.
        checkpoint: What became of the checkpoint.
    """

    reason: BaseException | None = None
    handled: int = 0
    unhandled: list[T] = field(default_factory=list)
    interrupted: list[T] = field(default_factory=list)
    preempted: list[T] = field(default_factory=list)
    failed: list[T] = field(default_factory=list)
    dropped: list[T] = field(default_factory=list)
    late: list[T] = field(default_factory=list)
    stop_cause: str = ""
    checkpoint: CheckpointReport = field(default_factory=CheckpointReport)

    @property
    def accepted(self) -> int:
        """How many items were accepted in all."""
        buckets: Iterable[list[T]] = (self.unhandled, self.interrupted, self.preempted, self.failed, self.dropped)
        return self.handled + sum(map(len, buckets))


@dataclass
class LoopState(Generic[T]):
    """The state of one loop.

    Attributes:
        name: The name of the loop, which is the path of its events.
        id: The id of the loop.
        clock: The clock of all its durations.
        controller: Aborted when the loop is stopped at once.
        on_event: Called with every event of the loop and its turns.
        max_items: How many items may wait.
        exit: Where the items end.
        turn: The turn that is planned or runs now.
        interrupted: A turn that was stopped and is to go on.
        paused: Whether turns wait for `resume()`.
        idle_for: The loop stops when it was idle for this many seconds.
        idle_asked_at: When that stop was asked for.
        cause: The reason given with the stop.
        skip_checkpoint: Whether the loop leaves no checkpoint behind.
        callback_error: What `on_event` raised.
        last_outcome: The outcome of the last turn, if that turn ended under the stop of the loop.
    """

    name: str
    id: str
    clock: Clock
    controller: AbortController
    on_event: Callable[[Event], object] | None
    max_items: int | None
    exit: LoopExit[T] = field(default_factory=lambda: LoopExit[T]())
    turn: Turn[T] | None = None
    interrupted: InterruptedTurn[T] | None = None
    paused: bool = False
    idle_for: float | None = None
    idle_asked_at: float = 0.0
    cause: str = ""
    skip_checkpoint: bool = False
    callback_error: Exception | None = None
    last_outcome: Outcome[object] | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: int | None = None

    def __post_init__(self) -> None:
        self.signal = self.controller.signal
        self.stop = Stop(self.controller, self.clock)
        self.planning = AbortController(self.signal)  # plans run under it: any stop of the loop ends a plan
        self.inbox: Inbox[T] = Inbox(self.wake, self.max_items)

    def bind_to_running_loop(self) -> None:
        """Remember the event loop and the thread of the loop's task, which calls this first."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def wake(self) -> None:
        """Wake the task, because the state has changed. Any thread."""
        if self._changed.is_set():
            return  # the task has not looked yet: it clears the event first, and reads the whole state after that
        if threading.get_ident() == self._thread:
            self._changed.set()
        elif self._loop is not None:
            post(self._loop, self._changed.set)

    async def wait_for_change(self) -> None:
        """Wait until `wake` is called, or return at once if it was called since the last wait."""
        await self._changed.wait()
        self._changed.clear()

    @property
    def has_listener(self) -> bool:
        """Whether events are received at all. If not, they need not be created."""
        return self.on_event is not None

    @property
    def committed(self) -> bool:
        """Whether the loop is stopped, so that no further turn begins."""
        return self.stop.requested or self.signal.aborted

    @property
    def stops_running_turn(self) -> bool:
        """Whether the stop of the loop also stops the running turn."""
        return self.signal.aborted or self.stop.request.at is not StopAt.TURN_END

    def idle_due(self, since: float) -> float | None:
        """The time at which a loop that is idle since `since` stops, if it is to: the delay counts from the request."""
        return None if self.idle_for is None else max(since, self.idle_asked_at) + self.idle_for

    def commit(self, request: StopRequest) -> bool:
        """Stop the loop: no further turn, no further item, and the running turn as the request says.

        Returns:
            Whether the stop became stricter.
        """
        stricter = self.stop.join(request)
        self.inbox.close()
        # A plan is not part of a turn: no work has begun that could be allowed to end, so any stop ends it at once.
        self.planning.abort(self.stop.request.reason or AbortReason("user", self.cause))
        return stricter

    def stamp(self) -> Stamp:
        """The fields that every event of the loop itself has."""
        return {"run_id": self.id, "path": (self.name,), "at": self.clock.time(), "calls": ()}

    def report(self, event: Event) -> None:
        """Pass an event to the listener, in the thread of the loop. Any thread."""
        if self.on_event is None:
            return
        if self._loop is None or threading.get_ident() == self._thread:
            self.emit(event)
        else:
            post(self._loop, self.emit, event)

    def emit(self, event: Event) -> None:
        """Call the listener.

        A listener that raises ends the loop and gets no further event. An `AbortError` is no failure of the listener:
        it has unwrapped the outcome of an aborted turn.
        """
        if self.on_event is None or self.callback_error is not None:
            return
        try:
            answer = self.on_event(event)
            if answer is not None:
                check_answer(answer)
        except AbortError:
            pass
        except Exception as error:
            self.callback_error = error
            self.controller.abort(error)
            self.commit(StopRequest(StopAt.NOW))


def is_async(listener: object) -> bool:
    """Whether a call of this function returns something to await, as far as can be seen without calling it."""
    while isinstance(listener, functools.partial):
        listener = listener.func
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004  # the method


def check_answer(answer: object) -> None:
    """Refuse an awaitable that a listener returned: the loop does not await it, so the event would be lost silently.

    A task is accepted, because it runs by itself.

    Raises:
        UsageError: The listener returned an awaitable.
    """
    if not inspect.isawaitable(answer) or isinstance(answer, asyncio.Future):
        return
    if inspect.iscoroutine(answer):
        answer.close()
    raise UsageError(
        "on_event returned an awaitable, which the loop does not await: make it a plain function that puts the events"
        " into a queue, or that starts a task"
    )
