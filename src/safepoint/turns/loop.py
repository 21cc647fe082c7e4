"""Owns the commands of a turn loop: push, preempt, stop, pause, wait. Each changes the state and wakes the loop's task.

They may be called before the start, from other threads and from callbacks. Knows nothing of how turns run.
"""

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Generic, TypeVar

from ..abort import AbortController, AbortReason, AbortSignal, current_clock
from ..abort.clock import check_seconds
from ..abort.reason import caller
from ..errors import UsageError
from ..events import Event, LoopStopping
from ..receipt import Receipt
from ..run.stop import NO_STOP, StopAck, StopAt, StopOptions, StopRequest
from ..storage.checkpoints import Checkpoints
from .loop_checkpoint import AnyPartial, CheckpointWriter, InterruptedTurn
from .loop_state import LoopExit, LoopState, is_async
from .loop_task import LoopTask
from .plan import TurnPlan
from .turn import Preempt, PreemptAck, PreemptStatus, Pushed, Turn

__all__ = ["TurnLoop"]

T = TypeVar("T")


class TurnLoop(Generic[T]):
    """A queue whose items are handled in turns, one turn after the other.

    Args:
        plan: `async plan(items) -> TurnPlan`: says what the next turn does with the items that wait.
        resume: `async resume(interrupted, items) -> TurnPlan`: the plan of a turn that was stopped and continues,
            after a pause or from a checkpoint. Without it, the items of that turn are put back in front of all others.
        on_event: A function that is called with every event of the loop and of its turns. If it raises, the loop ends.
        checkpoints: Where the loop saves what it leaves behind.
        checkpoint_id: The name of the checkpoint there.
        item_type: The type of an item, from which pydantic makes the JSON of the checkpoint.
        partial_type: The type of what a stopped turn leaves behind.
        max_items: How many items may wait. Beyond that `push` refuses an item, and `put` waits.
        batch: How many items a plan is given at most.
        signal: Ends the loop when it is aborted, as `stop(at=StopAt.NOW)` does.
        name: The name of the loop, for events and tasks.

    Attributes:
        id: The id of the loop.

    Raises:
        UsageError: Two arguments do not fit together, or one is out of range.
    """

    def __init__(
        self,
        plan: Callable[[list[T]], Awaitable[TurnPlan[T]]],
        *,
        resume: Callable[[InterruptedTurn[T], list[T]], Awaitable[TurnPlan[T]]] | None = None,
        on_event: Callable[[Event], object] | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_id: str | None = None,
        item_type: object = object,
        partial_type: object = AnyPartial,
        max_items: int | None = None,
        batch: int | None = None,
        signal: AbortSignal | None = None,
        name: str = "loop",
    ) -> None:
        if is_async(on_event):
            raise UsageError("on_event must be a plain function: let it put the events into a queue")
        if (checkpoints is None) != (checkpoint_id is None):
            raise UsageError("checkpoints= and checkpoint_id= belong together: a store, and the name in it")
        for option, value in (("max_items", max_items), ("batch", batch)):
            if value is not None and value < 1:
                raise UsageError(f"{option} must be 1 or more, not {value!r}")
        self.id = uuid.uuid4().hex
        self._state: LoopState[T] = LoopState(
            name, self.id, current_clock(), AbortController(signal), on_event, max_items
        )
        checkpoint: CheckpointWriter[T] | None = None
        if checkpoints is not None and checkpoint_id is not None:
            checkpoint = CheckpointWriter(checkpoints, checkpoint_id, item_type, partial_type)
        self._loop_task = LoopTask(self._state, plan, resume, checkpoint, batch)
        self._outer_signal = signal
        self._task: asyncio.Task[LoopExit[T]] | None = None

    @property
    def signal(self) -> AbortSignal:
        """The signal that is aborted when the loop is stopped at once."""
        return self._state.signal

    @property
    def turn(self) -> Turn[T] | None:
        """The turn that is planned or runs now."""
        return self._state.turn

    @property
    def waiting(self) -> tuple[T, ...]:
        """The items that wait for a turn."""
        return tuple(self._state.inbox.peek())

    @property
    def finished(self) -> bool:
        """Whether the loop has ended."""
        return self._task is not None and self._task.done()

    def push(
        self,
        item: T,
        *,
        preempt: "StopAt | Preempt | Callable[[Turn[T] | None], StopAt | Preempt | None] | None" = None,
        within: float | None = None,
        delay: float = 0.0,
    ) -> Pushed:
        """Add an item, without waiting. Any thread.

        Args:
            item: The item.
            preempt: The point at which the turn that runs now makes way for the item. It never stops a later turn. Or a
                function that is given the turn, or `None`, and decides.
            within: Seconds after which the whole tree of the turn is stopped if it has not reached that point.
            delay: Seconds before the turn is asked to make way.

        Returns:
            Whether the item was accepted, and the answer to the preempt.

        Raises:
            UsageError: An argument of the preempt does not fit.
        """
        turn = self._state.turn
        requested = _requested_preempt(preempt, turn, within, delay)
        match self._state.inbox.put(item):
            case "closed":
                self._state.exit.late.append(item)
                ack = None if requested is None else _decided("loop_stopped")
                return Pushed(False, ack, "the loop takes no more items: it is stopped")
            case "full":
                ack = None if requested is None else _decided("no_turn")
                return Pushed(False, ack, f"the queue is full: max_items={self._state.max_items} items are waiting")
            case "accepted":
                return Pushed(True, None if requested is None else self._request(turn, requested))

    async def put(self, item: T) -> Pushed:
        """Add an item, after waiting for space if the queue is full."""
        while not (pushed := self.push(item)) and not self._state.inbox.closed:
            await self._state.inbox.wait_for_space()
        return pushed

    def preempt(self, at: StopAt, *, within: float | None = None, delay: float = 0.0) -> PreemptAck:
        """Ask the running turn to stop at this point, without pushing an item. Any thread.

        Args:
            at: The point at which it stops.
            within: Seconds after which it is stopped at once if it has not reached that point.
            delay: Seconds before it is asked to stop.
        """
        return self._request(self._state.turn, Preempt(at, within, delay))

    def _request(self, turn: Turn[T] | None, preempt: Preempt) -> PreemptAck:
        state = self._state
        if state.committed:
            return _decided("loop_stopped")
        if turn is None:
            return _decided("no_turn")
        ack = PreemptAck()
        turn.request(preempt, ack)
        return ack

    def remove(self, item: T) -> bool:
        """Remove an item from the queue. False if it is not waiting there."""
        removed = self._state.inbox.remove(item)
        if removed:
            self._state.exit.dropped.append(item)
        return removed

    def pause(self, at: StopAt = StopAt.TURN_END) -> None:
        """Begin no turn until `resume()`.

        Args:
            at: By default the running turn ends first. Else it stops at this point, and continues after `resume()`.

        Raises:
            UsageError: `at` is no StopAt.
        """
        if not isinstance(at, StopAt):
            raise UsageError(f"at must be a StopAt, such as StopAt.SAFE_POINT, not {at!r}")
        state = self._state
        if state.committed:
            return  # the loop is stopped: nothing would go on later
        state.paused = True
        turn = state.turn
        if at is not StopAt.TURN_END and turn is not None and turn.phase != "over":
            turn.pausing = True
            now = state.clock.monotonic()
            turn.stop.join(StopRequest(at, "tree", None, AbortReason("user", "paused", caller(1)), now))
        state.wake()

    def resume(self) -> None:
        """Let turns begin again after a pause."""
        self._state.paused = False
        self._state.wake()

    def stop(
        self,
        at: StopAt | None = None,
        *,
        within: float | None = None,
        abandon: float | None = None,
        when_idle_for: float | None = None,
        reason: str = "",
        skip_checkpoint: bool = False,
    ) -> StopAck:
        """Begin no further turn. Later calls can only make the stop stricter. Any thread.

        Args:
            at: When the running turn stops. By default it ends by itself; at a safe point it stops with all that runs
                inside of it; `StopAt.NOW` stops it at once.
            within: Seconds after which the turn is stopped at once if it has not reached its safe point.
            abandon: Seconds from the abort of the running turn, or from this call if that is later, after which the
                loop continues without what has not ended.
            when_idle_for: Stop only when the loop was idle for this many seconds. It never touches a running turn.
            reason: Why. The first reason that is not empty stays.
            skip_checkpoint: Leave no checkpoint behind.

        Returns:
            The answer, at once. Await its `settled()` for the receipt.

        Raises:
            UsageError: The arguments do not fit together, or one is out of range.
        """
        state = self._state
        options = StopOptions(at, "tree", within, abandon, AbortReason("user", reason, caller(1)))
        if when_idle_for is not None:
            _check_idle_stop(options, when_idle_for)
        request = _request_of(options, state.clock.monotonic())
        if self.finished:
            return StopAck("already_finished", "settled", "the loop has ended", self.id, self._settled)
        state.cause = state.cause or reason
        state.skip_checkpoint = state.skip_checkpoint or skip_checkpoint
        if when_idle_for is not None:
            return self._stop_when_idle(when_idle_for)
        before = state.committed
        stricter = state.commit(request)
        message = f"no further turn; the running one stops {state.stop.request}"
        if stricter:
            state.report(LoopStopping(**state.stamp(), at_point=state.stop.request.at.name, cause=state.cause))
        return StopAck("already_stopping" if before else "accepted", "accepted", message, self.id, self._settled)

    def _stop_when_idle(self, seconds: float) -> StopAck:
        state = self._state
        if state.committed or state.inbox.closed:
            return StopAck("already_stopping", "accepted", "the loop is stopping already", self.id, self._settled)
        first = state.idle_for is None
        if first:
            state.idle_for, state.idle_asked_at = seconds, state.clock.monotonic()
            state.wake()
        message = f"stops when it was idle for {state.idle_for:g} s"
        return StopAck("accepted" if first else "already_stopping", "accepted", message, self.id, self._settled)

    def withdraw_idle_stop(self) -> bool:
        """Take back a stop that waits until the loop is idle. False if there is none, or the loop stops already."""
        state = self._state
        if state.idle_for is None or state.committed or state.inbox.closed:
            return False
        state.idle_for = None
        state.wake()
        return True

    def start(self) -> None:
        """Start the task of the loop in the running event loop. A second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._loop_task.run(), name=self._state.name)
            self._task.add_done_callback(_retrieve_exception)
            if self._outer_signal is not None:
                listener = self._outer_signal.add_listener(self._state.inbox.close)
                self._task.add_done_callback(lambda task: listener.remove())

    async def wait(self, timeout: float | None = None) -> LoopExit[T]:
        """Wait until the loop has ended. A caller that stops waiting does not stop the loop. Any event loop.

        Args:
            timeout: Seconds to wait for.

        Raises:
            TimeoutError: The loop has not ended by then. It continues.
            UsageError: The loop was not started, or the caller is one of its own turns.
        """
        if self._task is None:
            raise UsageError("the loop has not been started: call start(), or use `async with`")
        if asyncio.current_task() is self._task:
            raise UsageError("a turn cannot wait for the end of the loop it runs in: it would wait for itself")
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        await limit.run(self._ended(self._task))
        return self._task.result()

    @staticmethod
    async def _ended(task: "asyncio.Task[LoopExit[T]]") -> None:
        """Wait in this event loop for a task that may belong to the event loop of another thread."""
        if task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([task])
            return
        ended: Future[None] = Future()
        try:
            task.get_loop().call_soon_threadsafe(task.add_done_callback, lambda task: ended.set_result(None))
        except RuntimeError:
            if not task.done():
                raise UsageError("the event loop in which the turn loop ran is closed: it does not end") from None
            return
        await asyncio.wrap_future(ended)

    async def _settled(self, timeout: float | None) -> Receipt:
        await self.wait(timeout)
        receipt = getattr(self._state.last_outcome, "receipt", None)
        now = self._state.clock.time()
        return receipt if isinstance(receipt, Receipt) else Receipt(self.signal.reason, None, now)

    async def __aenter__(self) -> "TurnLoop[T]":
        self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(StopAt.NOW if exc is not None else None)
        try:
            await self.wait()
        except asyncio.CancelledError:  # the owner of the loop is gone: the running turn must not outlive it
            self.stop(StopAt.NOW)
            await self.wait()
            raise


def _retrieve_exception(task: "asyncio.Task[LoopExit[T]]") -> None:
    """Keep asyncio from logging an exception that was never retrieved.

    The task raises only what ends the program, such as KeyboardInterrupt, and the event loop raises that itself.
    """
    if not task.cancelled():
        task.exception()


def _requested_preempt(
    preempt: "StopAt | Preempt | Callable[[Turn[T] | None], StopAt | Preempt | None] | None",
    turn: Turn[T] | None,
    within: float | None,
    delay: float,
) -> Preempt | None:
    """Make one Preempt of the arguments of a push. Raises: UsageError."""
    requested = preempt(turn) if callable(preempt) else preempt
    if isinstance(requested, StopAt):
        return Preempt(requested, within, delay)
    if (within is not None or delay) and not callable(preempt):
        raise UsageError("within= and delay= belong to preempt=StopAt…: give that, or put them into the Preempt")
    if requested is not None and not isinstance(requested, Preempt):
        raise UsageError(f"preempt must be a StopAt, a Preempt, or a function that gives one, not {requested!r}")
    return requested


def _decided(status: PreemptStatus) -> PreemptAck:
    ack = PreemptAck()
    ack.decide(status)
    return ack


def _check_idle_stop(options: StopOptions, seconds: float) -> None:
    """Refuse a `when_idle_for` that is out of range or does not go with the other arguments. Raises: UsageError."""
    if check_seconds("when_idle_for", seconds) <= 0:
        raise UsageError(f"when_idle_for must be more than 0 seconds, not {seconds!r}")
    if (options.at, options.within, options.abandon) != (None, None, None):
        raise UsageError("when_idle_for= never touches a running turn: at=, within= and abandon= do not go with it")


def _request_of(options: StopOptions, now: float) -> StopRequest:
    """Make the request of a stop of a loop. One without a point and a message gives no reason for an abort."""
    at = options.at or (StopAt.TURN_END if options.within is None else StopAt.SAFE_POINT)
    request = replace(options, at=at).request(NO_STOP, now=now, origin=None)
    assert request.reason is not None  # the options have one
    if request.reason.message or at is not StopAt.TURN_END:
        return request
    return replace(request, reason=None, asked_at=math.inf)
