"""Owns the task of a turn loop: wait, plan, run, account, again; and the end, at which every item is in one place.

Knows nothing of who pushes and who stops: it reads what they wrote down.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Generic, TypeVar

from ..abort import AbortController, AbortSignal
from ..abort.deadline import Deadline
from ..errors import UsageError
from ..run.context import Context, Work
from ..run.events import LoopIdle, TurnEnded, TurnPlanned, TurnStarted
from ..run.leaf import leaf, name_of
from ..run.outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..run.settle import settle
from ..run.stop import StopAt, StopRequest
from .exit import LoopExit
from .keeping import Keeper
from .saved import SavedLoop, Stopped
from .split import split
from .state import LoopState
from .turn import Turn, TurnPlan

__all__ = ["Driver"]

T = TypeVar("T")


class Driver(Generic[T]):
    """What the loop's one task does."""

    def __init__(
        self,
        state: LoopState[T],
        plan: Callable[[list[T]], Awaitable[TurnPlan[T]]],
        resume: Callable[[Stopped[T], list[T]], Awaitable[TurnPlan[T]]] | None,
        keeper: Keeper[T] | None,
        batch: int | None,
    ) -> None:
        self._state = state
        self._plan = plan
        self._resume = resume
        self._keeper = keeper
        self._batch = batch

    async def run(self) -> LoopExit[T]:
        """From the start to the exit. Raises nothing."""
        state, ended = self._state, self._state.exit
        state.begin()
        lease: AbstractAsyncContextManager[object] = nullcontext() if self._keeper is None else self._keeper.lease()
        try:
            async with lease:
                await self._until_stopped()
                self._close()
                if self._keeper is not None:
                    broken = ended.reason is not None and ended.reason is not state.callback_error
                    saved = SavedLoop(tuple(ended.unhandled), state.stopped, state.cause)
                    ended.checkpoint = await self._keeper.end(saved, skip=state.skip_checkpoint, broken=broken)
        except BaseException as error:  # the lease could not be had, or the task was told to go
            ended.reason = ended.reason or error
            self._close()
        return ended

    async def _until_stopped(self) -> None:
        state = self._state
        try:
            await self._restore()
            while await self._has_work():
                await self._one_turn()
        except BaseException as error:
            state.exit.reason = error
        if state.callback_error is not None:
            state.exit.reason = state.callback_error

    def _close(self) -> None:
        """Nothing comes in any more; what is left in the queue is unhandled, and every question has its answer."""
        state = self._state
        state.inbox.close()
        if state.turn is not None:
            state.turn.end("loop_stopped")
            state.turn = None
        state.exit.unhandled += state.inbox.take()
        if state.stopped is not None:
            state.exit.interrupted += state.stopped.items
        state.exit.stop_cause = state.cause
        state.stop.close()

    async def _restore(self) -> None:
        if self._keeper is not None:
            saved = await self._keeper.load()
            self._state.inbox.put_front(saved.unhandled)
            self._take_up(saved.stopped)

    def _take_up(self, stopped: Stopped[T] | None) -> None:
        """A turn that was stopped goes on: by `resume`, or by waiting again."""
        if stopped is not None and self._resume is None:
            self._state.inbox.put_front(stopped.items)
            stopped = None
        self._state.stopped = stopped

    async def _has_work(self) -> bool:
        """Wait for something to do. False: the loop is stopped, or was idle for long enough."""
        state = self._state
        since: float | None = None
        while not state.committed:
            if not state.paused:
                self._take_up(state.stopped)
                if state.stopped is not None or len(state.inbox):
                    return True
            if since is None:
                since = state.clock.monotonic()
                state.tell(LoopIdle)
            elif state.idle_for is not None and not state.paused and state.clock.monotonic() - since >= state.idle_for:
                if self._commit_idle():
                    return False
                continue
            await self._wait_for_news(since)
        return False

    async def _wait_for_news(self, since: float) -> None:
        state = self._state
        limit = state.idle_for
        timer = None if limit is None or state.paused else state.clock.call_at(since + limit, state.wake)
        try:
            await state.news()
        finally:
            if timer is not None:
                timer.disarm()

    def _commit_idle(self) -> bool:
        """Idle for long enough: stop, unless something came in this very moment. What was accepted is handled."""
        state = self._state
        state.inbox.close()
        if len(state.inbox):
            state.inbox.reopen()
            return False
        state.commit(StopRequest(StopAt.TURN_END, "tree"))
        return True

    async def _one_turn(self) -> None:
        state, stopped = self._state, self._state.stopped
        waiting = state.inbox.take(self._batch)
        items = [*(stopped.items if stopped else ()), *waiting]
        turn = state.turn = Turn.plan(items, state.stop, state.clock)
        state.stopped = None
        state.tell(TurnPlanned, turn_id=turn.id, items=len(items))
        try:
            plan = await state.signal.run(self._call(stopped, waiting))
            consumed, remaining, dropped = split(items, plan)
        except BaseException:
            self._give_back(turn, stopped, waiting)
            if state.signal.aborted:
                return None
            raise
        if state.committed:
            return self._give_back(turn, stopped, waiting)
        state.inbox.put_front(remaining)
        state.exit.dropped += dropped
        if consumed:
            await self._run_turn(turn, plan, consumed)
        else:
            turn.end("turn_over")
        state.turn = None
        return None

    def _call(self, stopped: Stopped[T] | None, waiting: list[T]) -> Awaitable[TurnPlan[T]]:
        resumes = stopped is not None and self._resume is not None
        pending = self._resume(stopped, waiting) if resumes else self._plan(waiting)  # type: ignore[misc,arg-type]
        if not inspect.isawaitable(pending):
            raise UsageError(f"{'resume' if resumes else 'plan'}() must be an async function")
        return pending

    def _give_back(self, turn: Turn[T], stopped: Stopped[T] | None, waiting: list[T]) -> None:
        """No turn begins: the items wait again, in the order of their pushes."""
        self._state.inbox.put_front(waiting)
        self._state.stopped = stopped
        turn.end("loop_stopped" if self._state.committed else "turn_over")
        self._state.turn = None

    async def _run_turn(self, turn: Turn[T], plan: TurnPlan[T], consumed: list[T]) -> None:
        state = self._state
        turn.id = plan.turn_id or turn.id
        signals = [state.signal, *([] if plan.signal is None else [plan.signal])]
        if plan.deadline is not None:
            signals.append(Deadline(plan.deadline, "deadline", None))
        controller = AbortController(AbortSignal.any(signals))
        name = getattr(plan.work, "name", None) or name_of(plan.work)
        ctx = Context(str(name), controller=controller, emit=self._sink(), run_id=turn.id)
        ctx.stop = turn.stop
        turn.activate(consumed, controller)
        state.tell(TurnStarted, turn_id=turn.id, items=len(consumed))
        try:
            outcome = await settle(ctx, _interruptible(plan.work), plan.input, then=_told_after(plan))
        except BaseException:  # meant for the task: the loop goes down, and its items with it
            state.exit.interrupted += consumed
            raise
        finally:
            turn.end("loop_stopped" if state.committed else "turn_over")
        state.last = outcome
        self._account(turn, outcome)
        state.tell(TurnEnded, turn_id=turn.id, outcome=outcome)
        if self._keeper is not None and isinstance(outcome, Completed):
            await self._keeper.turn_done(SavedLoop(tuple(state.inbox.peek()), state.stopped, state.cause))

    def _sink(self) -> Callable[[Any], object] | None:
        return None if self._state.on_event is None else self._state.emit

    def _account(self, turn: Turn[T], outcome: Outcome[Any]) -> None:
        """Where the turn's items end. A stop comes before a preempt, whatever came first."""
        state, books = self._state, self._state.exit
        match outcome:
            case Completed():
                books.handled += len(turn.consumed)
            case Failed():
                books.failed += turn.consumed
            case Aborted(partial=partial) | TimedOut(partial=partial):
                if state.cuts_turns or turn.pausing:
                    state.stopped = Stopped(tuple(turn.consumed), partial)
                elif outcome.reason.kind == "preempted":
                    books.preempted += turn.consumed
                else:
                    books.interrupted += turn.consumed


def _interruptible(work: Work[Any, Any]) -> Work[Any, Any]:
    """An agent or a flow guards its own leaves; a plain function is a leaf itself."""
    if not inspect.isroutine(work):
        return work
    return lambda ctx, value: leaf(ctx, work, value)


def _told_after(plan: TurnPlan[Any]) -> Callable[[Outcome[Any]], Awaitable[Outcome[Any]]]:
    async def then(outcome: Outcome[Any]) -> Outcome[Any]:
        if plan.then is not None:
            await plan.then(outcome)
        return outcome

    return then
