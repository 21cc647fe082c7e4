"""Owns the task of a turn loop: wait, plan, run, account, again; and the end, at which every item is in one place.

Knows nothing of who pushes and who stops: it reads what they wrote down.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Generic, TypeVar

from ..abort import AbortController, AbortError, AbortSignal
from ..abort.deadline import Deadline
from ..errors import UsageError
from ..run.context import Context, Work
from ..run.events import LoopIdle, LoopStopping, TurnEnded, TurnPlanned, TurnPreempted, TurnStarted
from ..run.leaf import leaf, name_of
from ..run.outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..run.settle import settle
from ..run.stop import StopAt, StopRequest
from .checkpoint_writer import CheckpointWriter
from .loop_exit import LoopExit
from .loop_state import LoopState
from .saved_loop import InterruptedTurn, SavedLoop
from .split import split
from .turn import Turn, TurnPlan

__all__ = ["LoopTask"]

T = TypeVar("T")


class _PlanStopped(Exception):
    """The loop was stopped while a turn was planned: none begins, and nothing is wrong."""


class LoopTask(Generic[T]):
    """What the loop's one task does."""

    def __init__(
        self,
        state: LoopState[T],
        plan: Callable[[list[T]], Awaitable[TurnPlan[T]]],
        resume: Callable[[InterruptedTurn[T], list[T]], Awaitable[TurnPlan[T]]] | None,
        keeper: CheckpointWriter[T] | None,
        batch: int | None,
    ) -> None:
        self._state = state
        self._plan = plan
        self._resume = resume
        self._keeper = keeper
        self._batch = batch
        self._closed = False

    async def run(self) -> LoopExit[T]:
        """From the start to the exit. Raises only what is meant for the program, such as KeyboardInterrupt."""
        state, ended = self._state, self._state.exit
        state.begin()
        lease: AbstractAsyncContextManager[object] = nullcontext() if self._keeper is None else self._keeper.lease()
        try:
            async with lease:
                await self._until_stopped()
                self._close()
                if self._keeper is not None:
                    # Told to go is not broken: what is left is written down, as after a stop.
                    broken = isinstance(ended.reason, Exception) and ended.reason is not state.callback_error
                    left = SavedLoop(tuple(ended.unhandled), state.stopped, state.cause)
                    ended.checkpoint = await self._keeper.end(left, skip=state.skip_checkpoint, broken=broken)
        except BaseException as error:  # the lease could not be had or given back, or the task was told to go
            ended.reason = ended.reason or error
            self._close()
        if isinstance(ended.reason, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise ended.reason
        return ended

    async def _until_stopped(self) -> None:
        state = self._state
        try:
            await self._restore()
            while await self._has_work():
                await self._one_turn()
                await asyncio.sleep(0)  # the others have their turn, one of whom may ask for a stop
        except GeneratorExit:
            raise  # nobody drives this task any more: it cannot wait for anything
        except BaseException as error:
            state.exit.reason = error
        if state.callback_error is not None:
            state.exit.reason = state.callback_error

    def _close(self) -> None:
        """Nothing comes in any more; what is left in the queue is unhandled, and every question has its answer."""
        if self._closed:
            return
        self._closed = True
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

    def _take_up(self, stopped: InterruptedTurn[T] | None) -> None:
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
            state.last = None  # of a turn that ended before any stop
            if state.paused:
                since = None
                await state.news()
                continue
            self._take_up(state.stopped)
            if state.stopped is not None or len(state.inbox):
                return True
            if state.inbox.closed:
                state.commit(StopRequest(StopAt.TURN_END, "tree"))
                state.tell(LoopStopping, at_point=StopAt.TURN_END.name, cause=state.cause)
                return False
            if since is None:
                since = state.clock.monotonic()
                state.tell(LoopIdle)
            await self._wait_for_news(state.idle_due(since))
        return False

    async def _wait_for_news(self, idle_due: float | None) -> None:
        state = self._state
        if idle_due is not None and state.clock.monotonic() >= idle_due:
            state.inbox.close()  # idle for long enough; what came in before this very moment is handled first
        timer = None if idle_due is None else state.clock.call_at(idle_due, state.wake)
        try:
            await state.news()
        finally:
            if timer is not None:
                timer.disarm()

    async def _one_turn(self) -> None:
        state, stopped = self._state, self._state.stopped
        waiting = state.inbox.take(self._batch)
        items = [*(stopped.items if stopped else ()), *waiting]
        turn = state.turn = Turn.plan(items, state.stop, state.clock)
        turn.on_preempt = self._preempted
        try:
            state.tell(TurnPlanned, turn_id=turn.id, items=len(items))
            await self._keep(waiting)
            plan = await self._planned(stopped, waiting)
            consumed, remaining, dropped = split(items, plan)
            controller, ctx = self._context(turn, plan)
        except _PlanStopped:
            self._give_back(turn, waiting)
            return
        except BaseException:
            self._give_back(turn, waiting)
            if state.signal.aborted:
                return
            raise
        if state.committed or state.paused:
            self._give_back(turn, waiting)
            return
        state.stopped = None
        state.inbox.put_front(remaining)
        state.exit.dropped += dropped
        if consumed:
            turn.activate(consumed, controller)
            await self._run_turn(turn, plan, ctx)
        else:
            turn.end("turn_over")
        state.turn = None

    def _preempted(self, turn: Turn[T], at: StopAt) -> None:
        self._state.tell(TurnPreempted, turn_id=turn.id, at_point=at.name)

    async def _planned(self, stopped: InterruptedTurn[T] | None, waiting: list[T]) -> TurnPlan[T]:
        """Raises: _PlanStopped; what the plan raised by itself, which ends the loop also beside a stop."""
        signal = self._state.planning.signal
        try:
            signal.raise_if_aborted()
            return await signal.run(self._call(stopped, waiting))
        except AbortError as error:
            if error.reason is signal.reason:
                raise _PlanStopped from error
            raise

    def _call(self, stopped: InterruptedTurn[T] | None, waiting: list[T]) -> Awaitable[TurnPlan[T]]:
        resumes = stopped is not None and self._resume is not None
        pending = self._resume(stopped, [*waiting]) if resumes else self._plan([*waiting])  # type: ignore[misc,arg-type]
        if not inspect.isawaitable(pending):
            raise UsageError(f"{'resume' if resumes else 'plan'}() must be an async function")
        return pending

    def _give_back(self, turn: Turn[T], waiting: list[T]) -> None:
        """No turn begins: the items wait again, in the order of their pushes."""
        self._state.inbox.put_front(waiting)
        turn.end("loop_stopped" if self._state.committed else "turn_over")
        self._state.turn = None

    async def _keep(self, waiting: list[T]) -> None:
        """Write down what is left to do: `waiting`, all that waits behind it, and the turn that is to go on."""
        state = self._state
        if self._keeper is not None and not state.skip_checkpoint:
            await self._keeper.keep(SavedLoop((*waiting, *state.inbox.peek()), state.stopped, state.cause))

    def _context(self, turn: Turn[T], plan: TurnPlan[T]) -> tuple[AbortController, Context]:
        signals = [self._state.signal, *([] if plan.signal is None else [plan.signal])]
        if plan.timeout is not None:
            signals.append(Deadline(plan.timeout, "deadline", None))
        controller = AbortController(signals[0] if len(signals) == 1 else AbortSignal.any(signals))
        turn.id = plan.turn_id or turn.id
        name = getattr(plan.work, "name", None) or name_of(plan.work)
        ctx = Context(str(name), controller=controller, emit=self._sink(), run_id=turn.id)
        ctx.stop = turn.stop
        return controller, ctx

    async def _run_turn(self, turn: Turn[T], plan: TurnPlan[T], ctx: Context) -> None:
        state = self._state
        try:
            state.tell(TurnStarted, turn_id=turn.id, items=len(turn.consumed))
            outcome = await self._settled(turn, ctx, plan)
        except BaseException:  # meant for the task: the loop goes down, and its items with it
            if turn.returned and plan.then is None:
                state.exit.handled += len(turn.consumed)
            else:  # also where the work has returned and `then` has not: what it was to save is not saved
                state.stopped = InterruptedTurn(tuple(turn.consumed))
            raise
        finally:
            turn.end("loop_stopped" if state.committed else "turn_over")
        state.last = outcome
        self._account(turn, outcome)
        try:
            await self._keep([])
        finally:
            state.tell(TurnEnded, turn_id=turn.id, outcome=outcome)

    async def _settled(self, turn: Turn[T], ctx: Context, plan: TurnPlan[T]) -> Outcome[Any]:
        then, work = plan.then, _interruptible(plan.work)

        async def noted(ctx: Context, value: Any) -> Any:
            result = await work(ctx, value)
            turn.returned = True
            return result

        if then is None:
            return await settle(ctx, noted, plan.input)

        async def before_publishing(outcome: Any) -> Any:
            await then(outcome)
            return outcome

        return await settle(ctx, noted, plan.input, then=before_publishing)

    def _sink(self) -> Callable[[Any], object] | None:
        return None if self._state.on_event is None else self._state.report

    def _account(self, turn: Turn[T], outcome: Outcome[Any]) -> None:
        """Where the turn's items end. A stop comes before a preempt, whatever came first.

        Work that has returned is done, also where a stop came in the same moment: doing it again would do it twice.
        The outcome tells of the stop all the same, with the value as its partial.
        """
        state, books = self._state, self._state.exit
        match outcome:
            case Completed():
                books.handled += len(turn.consumed)
            case Failed():
                books.failed += turn.consumed
            case Aborted(partial=partial) | TimedOut(partial=partial):
                asked = outcome.reason is turn.stop.request.reason  # and not its own signal or deadline
                if turn.returned:
                    books.handled += len(turn.consumed)
                elif state.cuts_turns or (asked and turn.pausing and not turn.preempted):
                    state.stopped = InterruptedTurn(tuple(turn.consumed), partial)
                elif asked and turn.preempted:
                    books.preempted += turn.consumed
                else:
                    books.interrupted += turn.consumed


def _interruptible(work: Work[Any, Any]) -> Work[Any, Any]:
    """An agent or a flow guards its own leaves, and says so; everything else is a leaf itself."""
    if getattr(work, "handles_abort", False):
        return work

    async def run(ctx: Context, value: Any) -> Any:
        result = await leaf(ctx, work, value)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise UsageError(f"{name_of(work)} returned something to await: declare it with `async def`")
        return result

    return run
