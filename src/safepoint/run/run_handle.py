"""Owns a run that somebody holds in the hand: its task, its events, its stop. Agents and flows give out such a handle.

It starts with the first await, iteration or `async with`; before that nothing has happened, and yet it can be stopped.
Knows nothing of what runs.
"""

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..abort import AbortController, AbortReason, AbortSignal, current_signal
from ..abort.clock import check_seconds
from ..abort.deadline import Deadline
from ..abort.reason import caller
from .context import Context
from .events import Event
from .outcome import Outcome
from .policy import LIMIT_GRACE_SECONDS
from .receipt import Receipt
from .settle import settle
from .signals import stopping_on_signals
from .stop import Scope, StopAck, StopAt, StopRequest, stop_request

__all__ = ["RunHandle"]

T = TypeVar("T")
R = TypeVar("R")


class RunHandle(ABC, Generic[T, R]):
    """A run: await it for its result, iterate it for its events, stop it at any moment."""

    def __init__(
        self, name: str, *, signal: AbortSignal | None, timeout: float | None, run_id: str | None, origin: str | None
    ) -> None:
        # Code that was not handed a signal still stops with the work around it.
        parent = current_signal() if signal is None else signal
        if timeout is not None:
            # In one instant the person comes before the clock: the order of this list decides.
            parent = AbortSignal.any([parent, Deadline(check_seconds("timeout", timeout), "deadline", origin)])
        self.id = run_id or uuid.uuid4().hex
        self._controller = AbortController(parent)
        self.signal = self._controller.signal
        self._ctx = Context(name, controller=self._controller, emit=None, run_id=self.id)
        self._task: asyncio.Task[R] | None = None
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()

    @abstractmethod
    def _work(self, ctx: Context, value: None, /) -> Awaitable[T]:
        """Do it."""

    @abstractmethod
    async def _result(self, outcome: Outcome[T]) -> R:
        """What whoever awaits this run is given; the last chance to save something before they know."""

    async def _run(self) -> R:
        """The whole run. One that must open something first, and close it after its result, does so around this."""
        return await settle(self._ctx, self._work, None, then=self._result)

    @property
    def finished(self) -> bool:
        """True: it has ended, and nothing of it comes any more."""
        return self._task is not None and self._task.done()

    def stop(
        self,
        at: StopAt | None = None,
        *,
        scope: Scope | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | BaseException | str | None = None,
    ) -> StopAck:
        """Ask for a stop; answered at once, from any thread. The first call's default is NOW; later ones get stricter.

        at       when: at once, or at a safe point
        scope    "root": runs inside this one finish before its safe point; "tree": each stops at its own
        within   seconds; a safe point that is not reached by then is not waited for
        abandon  seconds from the abort, or from this call if that is later; what has not ended by then is left
                 behind: the receipt lists it as still running, and nothing that comes from it later gets through
        """
        return self._stop(at, scope, within, abandon, reason, caller(1))

    def abort(self, reason: AbortReason | BaseException | str | None = None) -> StopAck:
        """Stop now, with everything inside."""
        return self._stop(StopAt.NOW, None, None, None, reason, caller(1))

    def on_signals(self, *numbers: int) -> AbstractContextManager[None]:
        """`with run.on_signals(signal.SIGINT): outcome = await run`: Ctrl-C stops the run instead of the program.

        The first signal is `stop()`, of kind `user` for SIGINT and `shutdown` for others. A second one, unless it
        comes within a second, is `stop(abandon=0)`: the run goes on without what does not end. A third raises
        KeyboardInterrupt.
        """
        return stopping_on_signals(self.stop, self._ctx.clock, numbers, caller(1))

    def _stop(
        self,
        at: StopAt | None,
        scope: Scope | None,
        within: float | None,
        abandon: float | None,
        reason: AbortReason | BaseException | str | None,
        origin: str | None,
    ) -> StopAck:
        stop = self._ctx.stop
        request = stop_request(
            at,
            scope=scope,
            within=within,
            abandon=abandon,
            reason=reason,
            before=stop.request,
            now=self._ctx.clock.monotonic(),
            origin=origin,
        )
        if self.finished:
            return StopAck("already_finished", "settled", f"{self.id} has ended", self.id, self._settled)
        before = stop.asked or self.signal.aborted
        stricter = stop.ask(request)
        if not before:
            return StopAck("accepted", "accepted", f"stops {stop.request}", self.id, self._settled)
        told = f"is stopping; now {stop.request}" if stricter else "is stopping already"
        return StopAck("already_stopping", "accepted", told, self.id, self._settled)

    async def _settled(self, timeout: float | None) -> Receipt:
        task = self._start()
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        await limit.run(asyncio.wait([task]))
        return self._ctx.receipt_builder.receipt(self.signal, escalated=self._ctx.stop.escalated)

    def __await__(self) -> Generator[Any, None, R]:
        return self._wait().__await__()

    async def wait(self, timeout: float | None = None) -> R:
        """Start the run if it has not begun, and wait for its result. Whoever stops waiting here does not stop it.

        Args:
            timeout: Seconds to wait for.

        Raises:
            TimeoutError: It has not ended by then. It goes on.
        """
        task = self._start()
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        if not task.done():
            await limit.run(asyncio.wait([task]))
        return task.result()

    async def _wait(self) -> R:
        task = self._start()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            # Whoever waits was told to go, perhaps by a time limit of their own: nobody is left who wants the result,
            # and what does not end is not waited for. A second time they go at once.
            reason = AbortReason("parent", "the task that waited for it was cancelled")
            self._controller.abort(reason)
            self._ctx.stop.ask(StopRequest(StopAt.NOW, abandon=LIMIT_GRACE_SECONDS, reason=reason))
            await asyncio.wait([task])
            raise
        return task.result()

    def _start(self, *, listen: bool = False) -> "asyncio.Task[R]":
        if self._task is None:
            if listen:
                self._ctx.listen(self._heard)
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._ctx.operation)
            self._task.add_done_callback(self._ended)
        return self._task

    def _ended(self, task: "asyncio.Task[R]") -> None:
        self._ctx.stop.close()
        self._news.set()

    def _heard(self, event: Event) -> None:
        self._events.append(event)
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        task = self._start(listen=True)
        try:
            while True:
                while self._events:
                    yield self._events.popleft()
                if task.done():
                    return
                self._news.clear()
                await self._news.wait()
        finally:
            await self._leave()

    async def __aenter__(self: "S") -> "S":
        self._start(listen=True)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        if not self.finished:
            self._controller.abort(AbortReason("disconnected", "its events were no longer read"))
            await self._wait()


S = TypeVar("S", bound=RunHandle[Any, Any])
