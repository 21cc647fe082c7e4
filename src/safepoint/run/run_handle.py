"""The handle of a run: its task, its events, its stop. `agent.run()` and `flow.start()` return subclasses of it.

A run starts with the first await, iteration or `async with`, but it can be stopped before that. This module does not
know what the work is.
"""

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, Self, TypeVar

from ..abort import AbortController, AbortReason, AbortSignal, current_signal
from ..abort.clock import check_seconds
from ..abort.deadline import Deadline
from ..abort.reason import caller
from ..events import Event
from ..outcome import Outcome
from ..receipt import Receipt
from .context import Context
from .policy import LIMIT_GRACE_SECONDS
from .settle import settle
from .signals import stopping_on_signals
from .stop import Scope, StopAck, StopAt, StopOptions, StopRequest

__all__ = ["RunHandle"]

T = TypeVar("T")
R = TypeVar("R")


class RunHandle(ABC, Generic[T, R]):
    """A run: await it for its result, iterate over it for its events, stop it at any moment.

    The run starts with the first await, iteration or `async with`.

    Attributes:
        id: The id of the run.
        signal: The signal under which the run works.
    """

    def __init__(
        self, name: str, *, signal: AbortSignal | None, timeout: float | None, run_id: str | None, origin: str | None
    ) -> None:
        # Code that was not given a signal still stops with the work around it.
        parent = current_signal() if signal is None else signal
        if timeout is not None:
            # The order decides which reason counts if both are aborted: a person's comes before the time limit's.
            parent = AbortSignal.any([parent, Deadline(check_seconds("timeout", timeout), "deadline", origin)])
        self.id = run_id or uuid.uuid4().hex
        self._controller = AbortController(parent)
        self.signal = self._controller.signal
        self._ctx = Context(name, controller=self._controller, emit=None, run_id=self.id)
        self._task: asyncio.Task[R] | None = None
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()  # there is a new event, or the run has ended

    @abstractmethod
    def _work(self, ctx: Context, value: None, /) -> Awaitable[T]:
        """Do the work of the run."""

    @abstractmethod
    async def _result(self, outcome: Outcome[T]) -> R:
        """Make the result of the run from its outcome. What has to be saved before the caller gets it is saved here."""

    async def _run(self) -> R:
        """Run from the start to the result. A subclass that opens and closes a resource does so around this call."""
        return await settle(self._ctx, self._work, None, on_outcome=self._result)

    @property
    def finished(self) -> bool:
        """Whether the run has ended. No event comes after that."""
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
        """Request a stop. Any thread may call this, and it returns at once; further calls only make the stop stricter.

        Args:
            at: When to stop: at once (NOW, the default of the first call), or at a safe point.
            scope: `"root"`: runs inside this one go on until its safe point. `"tree"`: each stops at its own.
            within: Seconds after which the run is stopped at once, if it has not reached its safe point.
            abandon: Seconds from the abort, or from this call if that is later. Work that has not ended by then is left
                behind: the receipt lists it as still running, and its late events and result are dropped.
            reason: Why.

        Returns:
            The answer; `await ack.settled()` gives the receipt.

        Raises:
            UsageError: An argument makes no sense; the message says which and what to give instead.
        """
        return self._stop(StopOptions(at, scope, within, abandon, reason), caller(1))

    def abort(self, reason: AbortReason | BaseException | str | None = None) -> StopAck:
        """Stop now, with everything inside."""
        return self._stop(StopOptions(StopAt.NOW, reason=reason), caller(1))

    def on_signals(self, *numbers: int) -> AbstractContextManager[None]:
        """Stop the run, instead of the program, on Ctrl-C: `with run.on_signals(signal.SIGINT): outcome = await run`.

        The first signal is `stop()`, of kind `user` for SIGINT and `shutdown` for others. A second one, unless it
        comes within a second, is `stop(abandon=0)`: the run goes on without the work that does not end. A third raises
        KeyboardInterrupt.
        """
        return stopping_on_signals(self.stop, self._ctx.clock, numbers, caller(1))

    def _stop(self, options: StopOptions, origin: str | None) -> StopAck:
        stop = self._ctx.stop
        request = options.request(stop.request, now=self._ctx.clock.monotonic(), origin=origin)
        if self.finished:
            return StopAck("already_finished", "settled", f"{self.id} has ended", self.id, self._settled)
        before = stop.requested or self.signal.aborted
        stricter = stop.join(request)
        if not before:
            return StopAck("accepted", "accepted", f"stops {stop.request}", self.id, self._settled)
        message = f"is stopping; now {stop.request}" if stricter else "is stopping already"
        return StopAck("already_stopping", "accepted", message, self.id, self._settled)

    async def _settled(self, timeout: float | None) -> Receipt:
        task = self._start()
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        await limit.run(asyncio.wait([task]))
        return self._ctx.receipt_builder.receipt(self.signal, escalated=self._ctx.stop.escalated)

    def __await__(self) -> Generator[object, None, R]:
        return self._wait().__await__()

    async def wait(self, timeout: float | None = None) -> R:
        """Start the run if it has not begun, and wait for its result. Cancelling this wait does not stop the run.

        Args:
            timeout: How many seconds to wait.

        Raises:
            TimeoutError: The run has not ended by then. It goes on.
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
            # The awaiting task was cancelled, perhaps by a time limit of its own. The result is no longer wanted, so
            # abort the run, and do not wait for what does not end. A second cancellation ends this wait immediately.
            reason = AbortReason("parent", "the task that waited for it was cancelled")
            self._controller.abort(reason)
            self._ctx.stop.join(StopRequest(StopAt.NOW, abandon=LIMIT_GRACE_SECONDS, reason=reason))
            await asyncio.wait([task])
            raise
        return task.result()

    def _start(self, *, listen: bool = False) -> "asyncio.Task[R]":
        if self._task is None:
            if listen:
                self._ctx.send_events_to(self._on_event)
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._ctx.operation)
            self._task.add_done_callback(self._on_end)
        return self._task

    def _on_end(self, task: "asyncio.Task[R]") -> None:
        self._ctx.stop.close()
        self._changed.set()

    def _on_event(self, event: Event) -> None:
        self._events.append(event)
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        task = self._start(listen=True)
        try:
            while True:
                while self._events:
                    yield self._events.popleft()
                if task.done():
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            await self._leave()

    async def __aenter__(self) -> Self:
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
