"""Owns the commands of a turn loop: push, preempt, stop, pause, wait. Each writes down what is wanted and wakes a task.

They are legal before the start, from other threads and from inside of callbacks. Knows nothing of how turns run.
"""

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..abort import AbortController, AbortReason, AbortSignal, current_clock
from ..abort.clock import check_seconds
from ..abort.reason import caller
from ..errors import UsageError
from ..run.checkpoints import Checkpoints
from ..run.events import Event, LoopStopping
from ..run.receipt import Receipt
from ..run.stop import StopAck, StopAt, StopRequest
from .checkpoint_writer import CheckpointWriter
from .loop_exit import LoopExit
from .loop_state import LoopState, is_async
from .loop_task import LoopTask
from .preempt import Preempt, PreemptAck, Pushed
from .saved_loop import AnyPartial, InterruptedTurn
from .turn import Turn, TurnPlan

__all__ = ["TurnLoop"]

T = TypeVar("T")


class TurnLoop(Generic[T]):
    """Push items, turns run, stop.

    plan         `async plan(items) -> TurnPlan`: what the next turn does with what waits
    resume       `async resume(stopped, items) -> TurnPlan`, for a turn that was stopped and goes on: after a pause, or
                 from a checkpoint. Without it, the items of that turn wait again, before all others
    on_event     a function of every event of the loop and of its turns; what it raises ends the loop
    checkpoints  where the loop writes down what it leaves behind, under `checkpoint_id`; `item_type` and `partial_type`
                 say how items, and what a stopped turn left behind, are written as JSON
    max_items    how many items may wait: a push beyond is refused, `put` waits
    batch        how many items a plan is given at most
    signal       ends the loop as stop(at=NOW) does
    """

    def __init__(
        self,
        plan: Callable[[list[T]], Awaitable[TurnPlan[T]]],
        *,
        resume: Callable[[InterruptedTurn[T], list[T]], Awaitable[TurnPlan[T]]] | None = None,
        on_event: Callable[[Event], object] | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_id: str | None = None,
        item_type: Any = Any,
        partial_type: Any = AnyPartial,
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
        keeper: CheckpointWriter[T] | None = None
        if checkpoints is not None and checkpoint_id is not None:
            keeper = CheckpointWriter(checkpoints, checkpoint_id, item_type, partial_type)
        self._driver = LoopTask(self._state, plan, resume, keeper, batch)
        self._outside = signal
        self._task: asyncio.Task[LoopExit[T]] | None = None

    @property
    def signal(self) -> AbortSignal:
        """Aborted when the loop is stopped at once."""
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
        """True: the loop has ended."""
        return self._task is not None and self._task.done()

    def push(
        self,
        item: T,
        *,
        preempt: "StopAt | Preempt | Callable[[Turn[T] | None], StopAt | Preempt | None] | None" = None,
        within: float | None = None,
        delay: float = 0.0,
    ) -> Pushed:
        """Add an item, at once. Any thread.

        preempt  the turn seen now is to make way for it, at that point: never a later turn. Or a function that looks
                 at the turn and decides
        within   seconds, after which the point is not waited for; then the whole tree is stopped
        delay    seconds before the turn is asked to make way
        """
        turn = self._state.turn
        asked = _wish(preempt, turn, within, delay)
        match self._state.inbox.put(item):
            case "closed":
                self._state.exit.late.append(item)
                ack = None if asked is None else _decided("loop_stopped")
                return Pushed(False, ack, "the loop takes no more items: it is stopped")
            case "full":
                ack = None if asked is None else _decided("no_turn")
                return Pushed(False, ack, f"there is no room: {self._state.max_items} items wait already")
            case "accepted":
                return Pushed(True, None if asked is None else self._request(turn, asked))

    async def put(self, item: T) -> Pushed:
        """The same, but where there is no room it waits for some."""
        while not (pushed := self.push(item)) and not self._state.inbox.closed:
            await self._state.inbox.room()
        return pushed

    def preempt(self, at: StopAt, *, within: float | None = None, delay: float = 0.0) -> PreemptAck:
        """Let the running turn make way without pushing anything. Any thread."""
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
        """Take an item out of the queue. False: it does not wait there (any more)."""
        removed = self._state.inbox.remove(item)
        if removed:
            self._state.exit.dropped.append(item)
        return removed

    def pause(self, at: StopAt = StopAt.TURN_END) -> None:
        """Begin no turn until `resume()`. The running one ends first, or stops at this point and goes on then."""
        if not isinstance(at, StopAt):
            raise UsageError(f"at must be a StopAt, such as StopAt.SAFE_POINT, not {at!r}")
        state = self._state
        if state.committed:
            return  # a stop comes first: there is nothing to go on with later
        state.paused = True
        turn = state.turn
        if at is not StopAt.TURN_END and turn is not None and turn.phase != "over":
            turn.pausing = True
            now = state.clock.monotonic()
            turn.stop.ask(StopRequest(at, "tree", None, AbortReason("user", "paused", caller(1)), now))
        state.wake()

    def resume(self) -> None:
        """Go on after a pause."""
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
        """Begin no further turn. Answered at once; later calls only make it stricter. Any thread.

        at               None: the running turn ends by itself; a safe point: it stops there, with all that is inside;
                         NOW: at once
        within           seconds; a safe point that is not reached by then is not waited for
        abandon          seconds from the abort of the running turn, or from this call if that is later; what has not
                         ended by then is left behind
        when_idle_for    do nothing until the loop has had nothing to do for so many seconds; never touches a turn
        reason           why; the first that is not empty stays
        skip_checkpoint  leave nothing behind
        """
        state = self._state
        request = _stop_request(at, within, abandon, when_idle_for, reason, state.clock.monotonic(), caller(1))
        if self.finished:
            return StopAck("already_finished", "settled", "the loop has ended", self.id, self._settled)
        state.cause = state.cause or reason
        state.skip_checkpoint = state.skip_checkpoint or skip_checkpoint
        if when_idle_for is not None:
            return self._stop_when_idle(when_idle_for)
        before = state.committed
        stricter = state.commit(request)
        told = f"no further turn; the running one stops {state.stop.request}"
        if stricter:
            state.tell(LoopStopping, at_point=state.stop.request.at.name, cause=state.cause)
        return StopAck("already_stopping" if before else "accepted", "accepted", told, self.id, self._settled)

    def _stop_when_idle(self, seconds: float) -> StopAck:
        state = self._state
        if state.committed or state.inbox.closed:
            return StopAck("already_stopping", "accepted", "the loop is stopping already", self.id, self._settled)
        first = state.idle_for is None
        if first:
            state.idle_for, state.idle_asked_at = seconds, state.clock.monotonic()
            state.wake()
        told = f"stops when it was idle for {state.idle_for:g} s"
        return StopAck("accepted" if first else "already_stopping", "accepted", told, self.id, self._settled)

    def withdraw_idle_stop(self) -> bool:
        """Take back a stop that waits for idleness. False: there is none, or it has come to pass."""
        state = self._state
        if state.idle_for is None or state.committed or state.inbox.closed:
            return False
        state.idle_for = None
        state.wake()
        return True

    def start(self) -> None:
        """Begin. A second time does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._state.name)
            self._task.add_done_callback(_heard_of)

    async def _run(self) -> LoopExit[T]:
        if self._outside is None:
            return await self._driver.run()
        with self._outside.add_listener(self._state.inbox.close):
            return await self._driver.run()

    async def wait(self, timeout: float | None = None) -> LoopExit[T]:
        """How it ended, when it has. Whoever stops waiting does not stop the loop. Raises: TimeoutError; UsageError."""
        if self._task is None:
            raise UsageError("the loop has not been started: call start(), or use `async with`")
        if asyncio.current_task() is self._task:
            raise UsageError("a turn cannot wait for the end of the loop it runs in: it would wait for itself")
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        await limit.run(self._ended(self._task))
        return self._task.result()

    @staticmethod
    async def _ended(task: "asyncio.Task[Any]") -> None:
        """Wait here for a task that may belong to the event loop of another thread."""
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
        receipt = getattr(self._state.last, "receipt", None)
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
        except asyncio.CancelledError:  # nobody is left who wants the running turn: it is not left behind
            self.stop(StopAt.NOW)
            await self.wait()
            raise


def _heard_of(task: "asyncio.Task[Any]") -> None:
    """Only the end of the program is raised, and the event loop itself raises that: it is not told again later."""
    if not task.cancelled():
        task.exception()


def _wish(
    preempt: "StopAt | Preempt | Callable[[Turn[T] | None], StopAt | Preempt | None] | None",
    turn: Turn[T] | None,
    within: float | None,
    delay: float,
) -> Preempt | None:
    wish = preempt(turn) if callable(preempt) else preempt
    if isinstance(wish, StopAt):
        return Preempt(wish, within, delay)
    if (within is not None or delay) and not callable(preempt):
        raise UsageError("within= and delay= belong to preempt=StopAt…: give that, or put them into the Preempt")
    if wish is not None and not isinstance(wish, Preempt):
        raise UsageError(f"preempt must be a StopAt, a Preempt, or a function that gives one, not {wish!r}")
    return wish


def _decided(status: Any) -> PreemptAck:
    ack = PreemptAck()
    ack.decide(status)
    return ack


def _stop_request(
    at: StopAt | None,
    within: float | None,
    abandon: float | None,
    when_idle_for: float | None,
    cause: str,
    now: float,
    origin: str | None,
) -> StopRequest:
    if at is not None and not isinstance(at, StopAt):
        raise UsageError(f"at must be a StopAt, such as StopAt.SAFE_POINT, not {at!r}")
    for name, seconds in (("within", within), ("when_idle_for", when_idle_for)):
        if seconds is not None and check_seconds(name, seconds) <= 0:
            raise UsageError(f"{name} must be more than 0 seconds, not {seconds!r}")
    if abandon is not None:
        abandon = check_seconds("abandon", abandon)
    if when_idle_for is not None and (at is not None or within is not None or abandon is not None):
        raise UsageError("when_idle_for= never touches a running turn: at=, within= and abandon= do not go with it")
    at = at or (StopAt.TURN_END if within is None else StopAt.SAFE_POINT)
    reason = AbortReason("user", cause, origin) if cause or at is not StopAt.TURN_END else None
    deadline = None if within is None else now + within
    return StopRequest(at, "tree", deadline, reason, math.inf if reason is None else now, abandon)
