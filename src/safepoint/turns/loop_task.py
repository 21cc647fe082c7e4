"""Owns the task of a turn loop: wait, plan, run, account, repeat; and the exit, in which every item has its place.

Knows nothing of who pushes and stops: it reads the state that the commands have written.

**Where the items are.** While a turn is planned, its items are in the local variable `waiting` and nowhere else. Each
way out of planning therefore puts them somewhere: into the turn (`activate`), back into the inbox (`_give_back`), or
into the exit. `_close` then moves whatever is still in the inbox or in `state.interrupted` to the exit. This is what
makes the sums of `LoopExit` come out, and why the handlers of exceptions catch `BaseException`: a cancellation in the
middle of a plan must not lose items.

**A stop in the same moment.** The state is read again after each await, because a stop may have come meanwhile:

- before a plan: `_has_work` sees it and no turn is planned;
- during a plan: `planning` is aborted by any stop of the loop, and the items go back;
- after the plan has returned and before the turn begins: the check of `committed` and `paused` in `_one_turn`. There is
  no await between that check and `activate`; a stop from another thread in between counts as one of a running turn;
- while the turn runs: the stop reaches the turn through `Stop`, to which `activate` binds the turn's controller;
- after the work has returned (`Turn.returned`): the items count as handled although the outcome is an abort. Running
  them again would do the work twice.

**Order at the end of a turn.** Answer the preempts (`turn.end`), put the items into their list (`_account`), save the
checkpoint, and only then report `TurnEnded`: who has seen the event may rely on all of that.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Generic, TypeVar

from ..abort import AbortController, AbortError, AbortSignal
from ..abort.deadline import Deadline
from ..abort.guard import run
from ..errors import UsageError
from ..events import LoopIdle, LoopStopping, TurnEnded, TurnPlanned, TurnPreempted, TurnStarted
from ..outcome import Aborted, Completed, Failed, Outcome, TimedOut
from ..run.context import Context
from ..run.leaf import leaf, name_of
from ..run.settle import settle
from ..run.stop import StopAt, StopRequest
from .loop_checkpoint import CheckpointWriter, InterruptedTurn, SavedLoop
from .loop_state import LoopExit, LoopState
from .plan import AnyWork, TurnPlan, split
from .turn import Turn

__all__ = ["LoopTask"]

T = TypeVar("T")


class _PlanStopped(Exception):
    """The loop was stopped while a turn was planned. No turn begins, and this is not an error."""


class LoopTask(Generic[T]):
    """What the one task of a loop does.

    Args:
        state: The state that it shares with the commands.
        plan: Makes the plan of the next turn.
        resume: Makes the plan of a turn that continues.
        checkpoint: Where the state is saved, if it is.
        batch: How many items a plan is given at most.
    """

    def __init__(
        self,
        state: LoopState[T],
        plan: Callable[[list[T]], Awaitable[TurnPlan[T]]],
        resume: Callable[[InterruptedTurn[T], list[T]], Awaitable[TurnPlan[T]]] | None,
        checkpoint: CheckpointWriter[T] | None,
        batch: int | None,
    ) -> None:
        self._state = state
        self._plan = plan
        self._resume = resume
        self._checkpoint = checkpoint
        self._batch = batch
        self._closed = False

    async def run(self) -> LoopExit[T]:
        """Run turns until the loop is stopped.

        Raises:
            BaseException: Only what is meant for the program, such as KeyboardInterrupt. Errors are in the exit.
        """
        state, result = self._state, self._state.exit
        state.bind_to_running_loop()
        checkpoint = self._checkpoint
        lease: AbstractAsyncContextManager[object] = nullcontext() if checkpoint is None else checkpoint.lease()
        try:
            async with lease:
                await self._until_stopped()
                self._close()
                if checkpoint is not None:
                    # A cancellation is not a failure: the remaining items are saved, as after a stop.
                    failed = isinstance(result.reason, Exception) and result.reason is not state.callback_error
                    remaining = SavedLoop(tuple(result.unhandled), state.interrupted, state.cause)
                    result.checkpoint = await checkpoint.save_exit(
                        remaining, skip=state.skip_checkpoint, planning_failed=failed
                    )
        except BaseException as error:  # the lease could not be taken or given back, or this task was cancelled
            result.reason = result.reason or error
            self._close()
        if isinstance(result.reason, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise result.reason
        return result

    async def _until_stopped(self) -> None:
        state = self._state
        try:
            await self._restore()
            while await self._has_work():
                await self._one_turn()
                await asyncio.sleep(0)  # let other tasks run: one of them may ask for a stop
        except GeneratorExit:
            raise  # the event loop drops this task: it must not await anything
        except BaseException as error:
            state.exit.reason = error
        if state.callback_error is not None:
            state.exit.reason = state.callback_error

    def _close(self) -> None:
        """Refuse further items, move the remaining ones to the exit, and answer every preempt. Once."""
        if self._closed:
            return
        self._closed = True
        state = self._state
        state.inbox.close()
        if state.turn is not None:
            state.turn.end("loop_stopped")
            state.turn = None
        state.exit.unhandled += state.inbox.take()
        if state.interrupted is not None:
            state.exit.interrupted += state.interrupted.items
        state.exit.stop_cause = state.cause
        state.stop.close()

    async def _restore(self) -> None:
        if self._checkpoint is not None:
            saved = await self._checkpoint.load()
            self._state.inbox.put_front(saved.unhandled)
            self._schedule(saved.interrupted)

    def _schedule(self, interrupted: InterruptedTurn[T] | None) -> None:
        """Let an interrupted turn go on with `resume`, or without one, put its items back into the queue."""
        if interrupted is not None and self._resume is None:
            self._state.inbox.put_front(interrupted.items)
            interrupted = None
        self._state.interrupted = interrupted

    async def _has_work(self) -> bool:
        """Wait for something to do. False if the loop is stopped, or was idle for long enough."""
        state = self._state
        since: float | None = None
        while not state.committed:
            state.last_outcome = None  # it belongs to a turn that ended before any stop
            if state.paused:
                since = None
                await state.wait_for_change()
                continue
            self._schedule(state.interrupted)
            if state.interrupted is not None or len(state.inbox):
                return True
            if state.inbox.closed:
                state.commit(StopRequest(StopAt.TURN_END, "tree"))
                state.report(LoopStopping(**state.stamp(), at_point=StopAt.TURN_END.name, cause=state.cause))
                return False
            if since is None:
                since = state.clock.monotonic()
                state.report(LoopIdle(**state.stamp()))
            await self._wait_while_idle(state.idle_due(since))
        return False

    async def _wait_while_idle(self, idle_due: float | None) -> None:
        state = self._state
        if idle_due is not None and state.clock.monotonic() >= idle_due:
            # Idle for long enough. An item that was accepted before the inbox closed is handled first: the loop ends
            # only when it finds the inbox closed and empty.
            state.inbox.close()
        timer = None if idle_due is None else state.clock.call_at(idle_due, state.wake)
        try:
            await state.wait_for_change()
        finally:
            if timer is not None:
                timer.disarm()

    async def _one_turn(self) -> None:
        state, interrupted = self._state, self._state.interrupted
        waiting = state.inbox.take(self._batch)
        items = [*(interrupted.items if interrupted else ()), *waiting]
        turn = state.turn = Turn.plan(items, state.stop, state.clock)
        turn.on_preempt = self._on_preempt
        try:
            if state.has_listener:
                state.report(TurnPlanned(**state.stamp(), turn_id=turn.id, items=len(items)))
            if self._checkpoint is not None:
                await self._save_checkpoint(waiting)
            plan = await self._make_plan(interrupted, waiting)
            consumed, remaining, dropped = split(items, plan)
            controller, ctx = self._make_context(turn, plan)
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
        state.interrupted = None
        state.inbox.put_front(remaining)
        state.exit.dropped += dropped
        if consumed:
            turn.activate(consumed, controller)
            await self._run_turn(turn, plan, ctx)
        else:
            turn.end("turn_over")
        state.turn = None

    def _on_preempt(self, turn: Turn[T], at: StopAt) -> None:
        if self._state.has_listener:
            self._state.report(TurnPreempted(**self._state.stamp(), turn_id=turn.id, at_point=at.name))

    async def _make_plan(self, interrupted: InterruptedTurn[T] | None, waiting: list[T]) -> TurnPlan[T]:
        """Await the plan under the signal of planning.

        Raises:
            _PlanStopped: The loop was stopped meanwhile.
            Exception: What the plan itself raised. That ends the loop, even if it was stopped at the same time.
        """
        signal = self._state.planning.signal
        try:
            signal.raise_if_aborted()
            return await run(signal, self._call_plan(interrupted, waiting))
        except AbortError as error:
            if error.reason is signal.reason:
                raise _PlanStopped from error
            raise

    def _call_plan(self, interrupted: InterruptedTurn[T] | None, waiting: list[T]) -> Awaitable[TurnPlan[T]]:
        if interrupted is not None and self._resume is not None:
            name, pending = "resume", self._resume(interrupted, [*waiting])
        else:
            name, pending = "plan", self._plan([*waiting])
        if not inspect.isawaitable(pending):
            raise UsageError(f"{name}() must be an async function")
        return pending

    def _give_back(self, turn: Turn[T], waiting: list[T]) -> None:
        """End a turn that does not begin: its items wait again, in the order in which they were pushed."""
        self._state.inbox.put_front(waiting)
        turn.end("loop_stopped" if self._state.committed else "turn_over")
        self._state.turn = None

    async def _save_checkpoint(self, waiting: list[T]) -> None:
        """Save what is left to do: `waiting`, the items behind it, and the turn that is to go on."""
        state = self._state
        if self._checkpoint is not None and not state.skip_checkpoint:
            await self._checkpoint.save(SavedLoop((*waiting, *state.inbox.peek()), state.interrupted, state.cause))

    def _make_context(self, turn: Turn[T], plan: TurnPlan[T]) -> tuple[AbortController, Context]:
        signals = [self._state.signal, *([] if plan.signal is None else [plan.signal])]
        if plan.timeout is not None:
            signals.append(Deadline(plan.timeout, "deadline", None))
        controller = AbortController(signals[0] if len(signals) == 1 else AbortSignal.any(signals))
        turn.id = plan.turn_id or turn.id
        name = getattr(plan.work, "name", None) or name_of(plan.work)
        emit = None if self._state.on_event is None else self._state.report
        ctx = Context(str(name), controller=controller, emit=emit, run_id=turn.id)
        ctx.stop = turn.stop
        return controller, ctx

    async def _run_turn(self, turn: Turn[T], plan: TurnPlan[T], ctx: Context) -> None:
        state = self._state
        try:
            if state.has_listener:
                state.report(TurnStarted(**state.stamp(), turn_id=turn.id, items=len(turn.consumed)))
            outcome = await settle(ctx, _noting_return(turn, plan.work), plan.input, on_outcome=_awaiting(plan.then))
        except BaseException:  # meant for this task: the loop ends, and the turn with it
            if turn.returned and plan.then is None:
                state.exit.handled += len(turn.consumed)
            else:  # the work has not ended, or `then` has not: what it was to save may not be saved
                state.interrupted = InterruptedTurn(tuple(turn.consumed))
            raise
        finally:
            turn.end("loop_stopped" if state.committed else "turn_over")
        state.last_outcome = outcome
        self._account(turn, outcome)
        try:
            if self._checkpoint is not None:
                await self._save_checkpoint([])
        finally:
            if state.has_listener:
                state.report(TurnEnded(**state.stamp(), turn_id=turn.id, outcome=outcome))

    def _account(self, turn: Turn[T], outcome: Outcome[object]) -> None:
        """Put the items of an ended turn into one list of the exit. A stop counts before a preempt.

        If the work has returned, the items are handled even if a stop came in the same moment: running them again
        would do the work twice. The outcome is an abort all the same, with the value as its partial.
        """
        state, result = self._state, self._state.exit
        match outcome:
            case Completed():
                result.handled += len(turn.consumed)
            case Failed():
                result.failed += turn.consumed
            case Aborted(partial=partial) | TimedOut(partial=partial):
                # Compared by identity, to tell a request from the turn's own signal or timeout.
                requested = outcome.reason is turn.stop.request.reason
                if turn.returned:
                    result.handled += len(turn.consumed)
                elif state.stops_running_turn or (requested and turn.pausing and not turn.preempted):
                    state.interrupted = InterruptedTurn(tuple(turn.consumed), partial)
                elif requested and turn.preempted:
                    result.preempted += turn.consumed
                else:
                    result.interrupted += turn.consumed


def _noting_return(turn: Turn[T], work: AnyWork) -> AnyWork:
    """The work of a turn, which also notes on the turn that it has returned, whatever its outcome then is.

    It runs as a leaf, unless it handles aborts itself, as agents and flows do.
    """
    handles_abort = getattr(work, "handles_abort", False)

    async def note_return(ctx: Context, value: object) -> object:
        if handles_abort:
            result = await work(ctx, value)
        else:
            result = await leaf(ctx, work, value)
            if result is not None and inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise UsageError(f"{name_of(work)} returned something to await: declare it with `async def`")
        turn.returned = True
        return result

    return note_return


def _awaiting(
    then: Callable[[Outcome[object]], Awaitable[object]] | None,
) -> Callable[[Outcome[object]], Awaitable[Outcome[object]]] | None:
    """What is done with an outcome before it is reported: `then` is awaited, and the outcome stays what it is."""
    if then is None:
        return None

    async def before_publishing(outcome: Outcome[object]) -> Outcome[object]:
        await then(outcome)
        return outcome

    return before_publishing
