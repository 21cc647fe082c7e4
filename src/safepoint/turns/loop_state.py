"""Owns what the commands of a loop and its task have in common: commands write here and wake, the task reads."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..abort import AbortController, AbortError, AbortReason, Clock
from ..errors import UsageError
from ..run.events import Event
from ..run.outcome import Outcome
from ..run.stop import Stop, StopAt, StopRequest
from .inbox import Inbox
from .loop_exit import LoopExit
from .saved_loop import InterruptedTurn
from .turn import Turn

__all__ = ["LoopState", "is_async"]

T = TypeVar("T")


@dataclass
class LoopState(Generic[T]):
    """One loop."""

    name: str
    id: str
    clock: Clock
    controller: AbortController
    on_event: Callable[[Event], object] | None
    max_items: int | None
    exit: LoopExit[T] = field(default_factory=lambda: LoopExit[T]())
    turn: Turn[T] | None = None
    stopped: InterruptedTurn[T] | None = None  # a turn that was stopped, and is to go on
    paused: bool = False
    idle_for: float | None = None
    idle_asked_at: float = 0.0
    cause: str = ""
    skip_checkpoint: bool = False
    callback_error: Exception | None = None
    last: Outcome[Any] | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: int | None = None

    def __post_init__(self) -> None:
        self.signal = self.controller.signal
        self.stop = Stop(self.controller, self.clock)
        self.planning = AbortController(self.signal)  # what plans run under: any stop ends one
        self.inbox: Inbox[T] = Inbox(self.wake, self.max_items)

    def begin(self) -> None:
        """The task has begun, here."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def wake(self) -> None:
        """There is something new to see. Any thread."""
        if self._news.is_set():
            return  # whoever waits for it looks at everything after it was cleared
        if threading.get_ident() == self._thread:
            self._news.set()
        elif self._loop is not None:
            self._post(self._news.set)

    def _post(self, call: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # that loop is closed: nobody is left to hear it
            pass

    async def news(self) -> None:
        """Wait until something is new."""
        await self._news.wait()
        self._news.clear()

    @property
    def committed(self) -> bool:
        """True: no further turn begins."""
        return self.stop.asked or self.signal.aborted

    @property
    def cuts_turns(self) -> bool:
        """True: the stop is one that stops the running turn too."""
        return self.signal.aborted or self.stop.request.at is not StopAt.TURN_END

    def idle_due(self, since: float) -> float | None:
        """When an idle loop stops, if it is to: so long after it became idle, and after somebody asked for it."""
        return None if self.idle_for is None else max(since, self.idle_asked_at) + self.idle_for

    def commit(self, request: StopRequest) -> bool:
        """Stop: no further turn, nothing let in; and the running turn as the request says. True: it became stricter."""
        stricter = self.stop.ask(request)
        self.inbox.close()
        # Planning is no turn: no work has begun that could be let end, and nothing is planned any more.
        self.planning.abort(self.stop.request.reason or AbortReason("user", self.cause))
        return stricter

    def tell(self, kind: type[Event], **about: Any) -> None:
        """Report something of the loop itself."""
        if self.on_event is None:
            return
        self.report(kind(run_id=self.id, path=(self.name,), at=self.clock.time(), **about))

    def report(self, event: Event) -> None:
        """Report something, from any thread: the listener hears it in the thread of the loop."""
        if self._loop is None or threading.get_ident() == self._thread:
            self.emit(event)
        else:
            self._post(self.emit, event)

    def emit(self, event: Event) -> None:
        """Report. A listener that breaks ends the loop; one that passes on an abort it saw has not failed."""
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
    """True: what a call of it gives back would have to be awaited, as far as that can be seen without a call."""
    while isinstance(listener, functools.partial):
        listener = listener.func
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004  # the method


def check_answer(answer: object) -> None:
    """Refuse what nobody would await: the event would be dropped without a word. A task runs by itself.

    Raises: UsageError.
    """
    if not inspect.isawaitable(answer) or isinstance(answer, asyncio.Future):
        return
    if inspect.iscoroutine(answer):
        answer.close()
    raise UsageError(
        "on_event returned something to await, which nobody does: make it a plain function that puts the events into a"
        " queue, or that starts a task"
    )
