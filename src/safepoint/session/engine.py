"""Owns the turns of one live session, one after the other, from their acceptance to their one recorded end.

Knows nothing of who asks for turns, nor of readers.

**The life of a turn.**

1. `admit` puts it into `turns` and then looks for a stop that came before it (see `turn_stops.py` for this order). If
   its signal is aborted by then, it ends without a trace in the log. Else `TurnQueued` is added to the log, and the
   signal of the turn is watched. There is no await in between, so a turn that is in `turns` and not yet accepted exists
   for no other code of this event loop.
2. `_run_turns`, the one task of the session, takes the turns that are queued, one after the other. `_work` waits until
   `TurnStarted` is written before the agent begins. A crash before that finds a turn that waits and may begin anew; a
   crash after that, one that may have had effects.
3. `_finish` is awaited when the work has ended, before the next turn. It reads stops that were recorded elsewhere, and
   hands the outcome to `_record_end`.
4. `_record_end` decides: the first outcome counts, later ones are dropped. `turn.outcome` is set in the same step in
   which the end is added to the log, so a stop that comes later answers "already finished", and never contradicts the
   log.
5. `_on_end_written` is called when the store has the end. Only now the turn leaves `turns`, and its caller and then
   the readers are notified. If they were notified first, a crash could take back an end that somebody has acted on. If
   the store fails instead, the outcome becomes a failure: what is not on record must not count as done.

**No turn is left without an end.** Three things can go wrong, and each ends every turn: the store fails
(`_keep_writing` aborts what runs, and the log calls `_on_end_written` with the error), the task that runs the turns
ends for any reason (it ends what is left), or the event loop of the session is closed (`release_after_loop_closed`).

**Shutdown and close.** `shut_down` stops every turn, and each has its end in the log. `hand_over` leaves queued turns
without an end, so that the next owner begins them, and marks the running one as resumable. It sets `_stopping` first,
so that no turn begins between the decision which turns are queued and the end of the log.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from ..abort import AbortError, AbortReason, current_clock
from ..agent.agent import Agent
from ..agent.agent_run import Questions
from ..agent.context import AskingContext
from ..agent.conversation import AgentResult
from ..errors import SafepointError, UsageError
from ..events import (
    Event,
    SessionClosed,
    SessionOpened,
    TurnEdited,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)
from ..messages import Message
from ..outcome import Aborted, Completed, Failed, Outcome
from ..receipt import Receipt
from ..run.context import Context, Stamp
from ..run.settle import settle
from ..run.stop import StopAt, StopOptions
from .log import OnDurable, SessionJournal, SessionLog
from .loop_tasks import LoopTasks
from .session_state import OWN_EVENTS, SessionState, TurnRecord, conversation_id
from .store import Store, StoreError
from .turn import RUNNING, SessionTurn, TurnResult
from .turn_endings import broken, never_started, only_new, sealed, stopped_after_all, unwritable
from .turn_input import input_of
from .turn_stops import TurnStops

__all__ = ["SessionBusy", "SessionEnded", "SessionEngine", "WhenBusy"]

log = logging.getLogger("safepoint")
WhenBusy: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]
# The point at which the running turn makes way for a new one.
PREEMPT_AT = {"steer": StopAt.AFTER_TOOLS, "interrupt": StopAt.NOW}


class SessionBusy(SafepointError):
    """A turn is running or queued, and the caller wanted a turn that begins at once."""


class SessionEnded(SafepointError):
    """The session was closed, or its store or loop failed. It takes no more turns: open it again."""


class SessionEngine:
    """The turns of one live session.

    Args:
        session_id: The id of the session.
        agent: What runs in its turns.
        store: Where its log is.
        on_turn_started: Called when a turn begins.

    Attributes:
        id: The id of the session.
        agent: What runs in its turns.
        clock: The clock of all its durations.
        log: Its log.
        state: What the log says.
        messages: The conversation. Any thread may read it: the tuple is replaced, never changed.
        turns: The turns that have not ended, by id, in the order of their acceptance.
        loop_tasks: Its event loop.
        journal: What its tools wait for before they have effects.
        stops: Stops its turns.
        questions: The questions that wait for an answer.
        stopping: Whether it begins no further turn.
        closed: Whether it was closed.
    """

    def __init__(
        self, session_id: str, agent: Agent, store: Store, on_turn_started: Callable[[], object] = lambda: None
    ) -> None:
        self.id = session_id
        self.agent = agent
        self.clock = current_clock()
        self.log = SessionLog(store, session_id)
        self.state = SessionState(session_id)
        self.messages: tuple[Message, ...] = ()
        self.turns: dict[str, SessionTurn] = {}
        self.loop_tasks = LoopTasks()
        self.journal = SessionJournal(self.log, self.loop_tasks, self.clock, {})
        self.stops = TurnStops(self)
        self.questions = Questions(None)
        self._on_turn_started = on_turn_started
        self._runner: asyncio.Task[None] | None = None  # runs the turns
        self._changed = asyncio.Event()  # wakes that task: a turn was accepted, or one of the flags below has changed
        self._paused = False
        self._runner_ended = False
        self._handover: AbortReason | None = None  # why the session is handed over to the next owner, if it is
        self.stopping = False
        self.closed = False

    async def open(self, resume: bool, paused: bool = False, may_still_run: bool = False) -> None:
        """Take the session, read its log, and go on with it.

        Args:
            resume: Go on with the turn that a crash has interrupted, or that another owner has given back.
            paused: Begin no turn yet.
            may_still_run: Whether the previous owner may still be running.

        Raises:
            SessionInUse: The session is live elsewhere.
            StoreError: The log cannot be read.
        """
        await self.log.open()
        try:
            await self.log.replay(self.state.apply)
        except BaseException:
            await self.log.release()
            raise
        self.journal.results.update(self.state.parts)
        self.messages = self.state.messages
        self.journal.forwarded.update(self.state.forwarded)
        # Stop what an interrupted turn has left running on other machines before its end is written. After a crash in
        # between, the next owner does it again; in the other order nothing would ever look for it.
        abandoned = self.state.abandoned_work(resume)
        warnings = () if abandoned is None else await self.agent.stop_left_behind(abandoned)
        self.loop_tasks.spawn(self._keep_writing(), f"session {self.id}")
        self.add(SessionOpened(**self.stamp(), agent=self.agent.name))
        self._recover(resume, may_still_run, warnings)
        self._paused = paused
        self._runner = self.loop_tasks.spawn(self._run_turns(), f"session {self.id}")
        self._runner.add_done_callback(_retrieve_exception)

    def _recover(self, resume: bool, may_still_run: bool, warnings: tuple[str, ...]) -> None:
        """Settle the turns that a crash left open.

        A turn that had not begun is queued again. One that had begun or was stopped gets its end now, so that it is
        never run twice; with `resume`, a new turn continues it.
        """
        queued = []
        for record in self.state.open_turns:
            if record.started or record.stop is not None or record.messages is None:
                self._seal(record, may_still_run, warnings)
            else:
                queued.append(
                    SessionTurn(
                        record.id,
                        record.messages,
                        self.stops.stop,
                        continues=record.continues,
                        resumes=record.resumes,
                    )
                )
        if resume and (interrupted := self.state.interrupted) is not None:
            resumes = self.state.turns[interrupted].next_resumes
            self.admit(SessionTurn(None, (), self.stops.stop, continues=interrupted, resumes=resumes))
        for turn in sorted(queued, key=lambda turn: turn.continues is None):  # turns that continue another come first
            self._enqueue(turn)

    def _seal(self, record: TurnRecord, may_still_run: bool, warnings: tuple[str, ...]) -> None:
        """Record the end of a turn that a crash left open."""
        outcome = sealed(
            self.state,
            record,
            self.clock.time(),
            may_still_run=may_still_run,
            warnings=warnings if record.started else (),
        )
        ended = TurnEnded(**self.stamp(record.id), turn_id=record.id, outcome=outcome)
        self.add(ended, ends=(record.id, lambda error: None))

    async def _keep_writing(self) -> None:
        await self.log.keep_writing()
        if self.log.error is not None:
            for turn in list(self.turns.values()):  # work that cannot be recorded must not go on
                turn.controller.abort(AbortReason("error", "the store failed", cause=self.log.error))

    async def _run_turns(self) -> None:
        """Run the turns one after the other. When that ends for any reason, end every turn that is left.

        Raises:
            BaseException: Only what is meant for the program, such as KeyboardInterrupt.
        """
        reason: BaseException | None = None
        try:
            while (turn := await self._next_turn()) is not None:
                ctx = self._begin(turn)
                await settle(ctx, self._work, turn, on_outcome=partial(self._finish, turn))
                await asyncio.sleep(0)  # let other tasks run: one of them may ask for a stop
        except BaseException as error:
            reason = error
        self._runner_ended = True
        for turn in list(self.turns.values()):
            if self._handover is None or turn.outcome is not None:
                self._record_end(turn, broken(turn, reason or SessionEnded("its loop has ended"), self.clock))
            else:
                self._leave_to_next_owner(turn, self._handover)
        if isinstance(reason, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise reason

    async def _next_turn(self) -> SessionTurn | None:
        """Wait for the turn that runs next: an urgent one, or the oldest. None if no further turn begins."""
        while not self.stopping:
            queued = [] if self._paused else [turn for turn in self.turns.values() if turn.queued]
            turn = next((turn for turn in queued if turn.urgent), queued[0] if queued else None)
            if turn is None:
                await self._changed.wait()
                self._changed.clear()
            elif turn.signal.aborted:  # its listener, which does the same, has not been called yet
                self.leave_queue(turn)
            else:
                return turn
        return None

    def _begin(self, turn: SessionTurn) -> Context:
        """Mark a turn as running, and make its context."""
        ctx = Context(self.agent.name, controller=turn.controller, emit=self._on_event, run_id=turn.id)
        ctx.stop = turn.live_stop
        turn.begin(ctx)
        self._on_turn_started()
        return ctx

    async def _work(self, ctx: Context, turn: SessionTurn, /) -> AgentResult:
        """Do the work of one turn: make its input, record its start, run the agent.

        Raises:
            AbortError: It was stopped. The error has the partial result.
        """
        token = RUNNING.set(turn)
        try:
            value = await input_of(ctx, turn, self.state, partial(self._record_messages, turn))
            # From here on there may be effects. After a crash the log must say that the turn had begun.
            started = TurnStarted(**self.stamp(turn.id), turn_id=turn.id, items=1)
            await self.log.flushed(self.add(started, durable=True))
            key = conversation_id(self.id, turn.id, self.agent.name)
            asking = AskingContext(ctx, ask=self.questions.ask, idempotency_key=key, journal=self.journal)
            return await self.agent(asking, value)  # it looks at the signal first, and keeps the messages
        finally:
            RUNNING.reset(token)

    def _record_messages(self, turn: SessionTurn, messages: tuple[Message, ...]) -> None:
        self.add(TurnEdited(**self.stamp(turn.id), turn_id=turn.id, messages=messages), durable=True)

    def pause(self) -> None:
        """Begin no turn until `resume()`. The running one runs to its end. Any thread."""
        self._paused = True

    def resume(self) -> None:
        """Let turns begin again after a pause. Any thread."""
        self._paused = False
        self.loop_tasks.call(self._changed.set)

    def _begin_no_further_turn(self) -> None:
        self.stopping = True
        self._changed.set()

    @property
    def ended(self) -> bool:
        """Whether it takes no more turns, because it was closed or its store or loop failed."""
        return self.closed or self.log.error is not None or self._runner_ended

    def check_live(self) -> None:
        """Refuse a turn if the session takes no more turns. Raises: SessionEnded."""
        if self.closed:
            raise SessionEnded(f"session {self.id!r} is closed: it takes no more turns. Open it again")
        if self.log.error is not None or self._runner_ended:
            why = self.log.error or "its loop has ended"
            raise SessionEnded(f"session {self.id!r} broke down ({why}): close it, and open it again")

    def turn_to_continue(self, turn_id: str | None) -> str:
        """Return the stopped turn that can go on: the last one, after which nothing has come.

        Args:
            turn_id: The turn that the caller wants; `None` for the last one.

        Raises:
            UsageError: It is not the last turn, or was not stopped.
            SessionBusy: Another turn has come after it.
        """
        turn_id = None if turn_id is None else self.state.successor(turn_id)
        last = self.state.last_ended
        if last is None or (turn_id is not None and last.id != turn_id) or isinstance(last.outcome, Completed):
            raise UsageError(f"there is no stopped turn to continue: the last one is {last.id if last else None!r}")
        if self.turns:
            raise SessionBusy(f"turn {last.id!r} cannot go on: turn {next(iter(self.turns))!r} has come after it")
        return last.id

    def admit(self, turn: SessionTurn, when_busy: WhenBusy = "queue") -> SessionTurn:
        """Accept a turn, and queue it.

        Args:
            turn: The turn.
            when_busy: What happens to the turns ahead of it, as in `Session.send`.

        Raises:
            SessionEnded: The session takes no more turns.
            SessionBusy: Another turn is running or queued, and `when_busy` is "reject".
            UsageError: The id was used before, or `when_busy` is unknown.
        """
        self.check_live()
        self._check_new(turn)
        if when_busy not in ("queue", "steer", "interrupt", "reject"):
            raise UsageError(f"when_busy must be queue, steer, interrupt or reject, not {when_busy!r}")
        ahead = next(iter(self.turns), None)
        self.turns[turn.id] = turn  # before the early stops are read: see `turn_stops.py`
        early_stop = self.stops.early_stops.find(turn.id)
        if early_stop is not None:
            turn.controller.abort(early_stop)
        if turn.signal.aborted:  # nothing of it is stored, and no work begins
            self.turns.pop(turn.id)
            turn.end(TurnResult(turn.id, (outcome := self._never_started(turn)).status, outcome))
            return turn
        if when_busy == "reject" and ahead is not None:
            self.turns.pop(turn.id)
            raise SessionBusy(f"session {self.id!r} is busy with turn {ahead!r}")
        stored = None if callable(turn.messages) else turn.messages
        queued = TurnQueued(
            **self.stamp(turn.id), turn_id=turn.id, messages=stored, continues=turn.continues, resumes=turn.resumes
        )
        self.add(queued, durable=True)
        # A new prompt instead of an answer is always possible: it interrupts the turn that waits for the answer.
        mode = "interrupt" if self.questions.waiting and when_busy == "queue" else when_busy
        turn.urgent = mode in PREEMPT_AT
        running = next((other for other in self.turns.values() if other.running), None)
        self._enqueue(turn)
        if running is not None and mode in PREEMPT_AT:
            self.stops.preempt(running, PREEMPT_AT[mode])
        self._changed.set()
        return turn

    def _check_new(self, turn: SessionTurn) -> None:
        if turn.id in self.state.turns or turn.id in self.turns:
            raise UsageError(f"session {self.id!r} had a turn {turn.id!r} already: give the new one another id")

    def refuse(self, turn: SessionTurn, error: Exception) -> None:
        """Accept a turn and end it as failed at once, so that it has a record.

        Raises:
            SessionEnded: The session takes no more turns.
            UsageError: The id was used before.
        """
        self.check_live()
        self._check_new(turn)
        self.turns[turn.id] = turn
        stored = None if callable(turn.messages) else turn.messages
        self.add(TurnQueued(**self.stamp(turn.id), turn_id=turn.id, messages=stored), durable=True)
        now = self.clock.time()
        self._record_end(turn, Failed(error, Receipt(None, None, now), AgentResult(""), finished_at=now))

    def _enqueue(self, turn: SessionTurn) -> None:
        turn.session_id, turn.session_turns = self.id, self.turns
        self.turns[turn.id] = turn
        self.stops.watch_signal(turn)

    def _record_end(self, turn: SessionTurn, outcome: Outcome[AgentResult]) -> None:
        """Decide how a turn ended, and add its end to the log. The first outcome of a turn counts."""
        if turn.outcome is not None:
            return
        try:
            self._add_end(turn, only_new(outcome, turn.base_length))
        except Exception as error:
            # It cannot be written as JSON, for example because a model gave a token count that is no number. The turn
            # needs an end all the same, for its caller and for the log: a failure without the result.
            log.exception("session %s: the end of turn %s cannot be written as JSON", self.id, turn.id)
            self._add_end(turn, unwritable(turn, error, self.clock))

    def _add_end(self, turn: SessionTurn, outcome: Outcome[AgentResult]) -> None:
        # It may go on in the next process if only the shutdown ended it. Reasons are compared with `is`, because a stop
        # passes one AbortReason object to the whole tree.
        resumable = isinstance(outcome, Aborted) and outcome.reason is self._handover and not turn.stop_wanted
        event = TurnEnded(**self.stamp(turn.id), turn_id=turn.id, outcome=outcome, resumable=resumable)
        turn.outcome = outcome
        turn.end_seq = self.add(event, ends=(turn.id, partial(self._on_end_written, turn, outcome)))

    def _on_end_written(self, turn: SessionTurn, outcome: Outcome[AgentResult], error: Exception | None) -> None:
        """Give the caller its result, now that the end is written or could not be written."""
        if error is not None:
            outcome = broken(turn, error, self.clock)
        self.turns.pop(turn.id, None)
        turn.end(TurnResult(turn.id, outcome.status, outcome))

    async def _finish(self, turn: SessionTurn, outcome: Outcome[AgentResult]) -> None:
        """Record the end of a turn whose work has ended, and wait until it is written."""
        if isinstance(outcome, Completed) and self.journal.before_effect is not None:
            # A stop may be on record that did not reach this process, for example because it was frozen. The stop was
            # acknowledged before this end, so it counts.
            try:
                await turn.signal.run(self.journal.before_effect())
            except AbortError:
                if not turn.signal.aborted:
                    raise
            if turn.signal.reason is not None:
                outcome = stopped_after_all(outcome, turn.signal.reason)
        if turn.continues is not None and not isinstance(outcome, Completed):
            await self._stop_left_behind(turn, outcome.partial)
        self._record_end(turn, outcome)
        await turn.until_ended()

    async def _stop_left_behind(self, turn: SessionTurn, partial_result: AgentResult | None) -> None:
        """Stop on other machines what a stopped turn was to go on with and did not come to.

        A turn that is given back keeps it running, because the next owner continues it.
        """
        reason = turn.signal.reason
        if partial_result is None or reason is None:
            return
        if reason.kind != "lease_lost" and self._handover is None:
            await self.agent.stop_left_behind(partial_result)

    def leave_queue(self, turn: SessionTurn) -> None:
        """Take a queued turn that was stopped out of the queue. Its messages do not become part of the conversation."""
        if turn.continues is not None:
            stopping = self.agent.stop_left_behind(self.state.resume_point(turn.continues)[0])
            self.loop_tasks.spawn(stopping, f"stop what turn {turn.continues} has left behind")
        failed = self.log.error is not None
        self._record_end(turn, outcome := self._never_started(turn))
        if not failed and isinstance(outcome, Aborted):
            self.stops.records[turn.id] = turn.end_seq, outcome.reason  # its end is the record of the stop

    def _never_started(self, turn: SessionTurn) -> Outcome[AgentResult]:
        reason = turn.signal.reason or turn.stop_request.reason or AbortReason()
        return never_started(reason, self.clock.time())

    async def shut_down(self, cause: AbortReason, within: float) -> None:
        """Stop all turns, end the log, and release the session.

        Args:
            cause: The reason of the stops.
            within: Seconds in which the running turn may reach a safe point.

        Raises:
            StoreError: Something could not be written. The session is released all the same.
        """
        gracefully = StopOptions(StopAt.SAFE_POINT, "tree", within, reason=cause)
        at_once = StopOptions(StopAt.NOW, reason=cause)
        try:
            for turn in list(self.turns.values()):
                self.stops.stop(turn, gracefully if turn.running and within > 0 else at_once, None)
            for turn in list(self.turns.values()):
                await turn.until_ended()
            self._begin_no_further_turn()
            await self._end_of_log(cause)
        finally:
            await self.loop_tasks.wait_all()
            await self.log.release()

    async def release_after_loop_closed(self) -> None:
        """Release a session whose event loop is closed, so that nothing of it can run. Its turns end as failed.

        Raises:
            StoreError: Events were not written.
        """
        self.closed = True
        error = self.log.error or StoreError(f"session {self.id!r} was not closed before its event loop was")
        for turn in list(self.turns.values()):
            outcome = broken(turn, error, self.clock)
            turn.end(TurnResult(turn.id, outcome.status, outcome))
        self.turns.clear()
        lost = self.log.last_seq - self.log.written_seq
        await self.log.release()
        if lost:
            raise StoreError(f"{error}: its last {lost} events were not written") from self.log.error

    async def hand_over(self, cause: AbortReason, within: float) -> None:
        """Stop the running turn so that it can go on later, leave the queued ones, and release the session.

        A queued turn gets no end in the log, so the next owner of the session begins it.

        Args:
            cause: The reason of the stop.
            within: Seconds in which the running turn may reach a safe point.

        Raises:
            StoreError: Something could not be written. The session is released all the same.
        """
        try:
            self._handover = cause
            self._begin_no_further_turn()  # turns that do not run by now stay queued
            for turn in list(self.turns.values()):
                if turn.running:
                    self.stops.hand_over(turn, cause, within)
                elif turn.queued and callable(turn.messages):  # another process cannot call the function
                    self.stops.stop(turn, StopOptions(StopAt.NOW, reason=cause), None)
            await self._end_of_log(cause)
        finally:
            await self.loop_tasks.wait_all()
            await self.log.release()

    def _leave_to_next_owner(self, turn: SessionTurn, cause: AbortReason) -> None:
        """Leave a turn queued in the log, and give its caller in this process the result that it was not started."""
        outcome = never_started(cause, self.clock.time())
        self.turns.pop(turn.id, None)
        turn.end(TurnResult(turn.id, outcome.status, outcome))

    async def _end_of_log(self, cause: AbortReason) -> None:
        if self._runner is not None:
            await asyncio.wait([self._runner])
        closed = SessionClosed(**self.stamp(), reason=cause.message, left=self.state.remaining_turns)
        self.add(closed, durable=True)
        await self.log.close()

    def _on_event(self, event: Event) -> None:
        """Add an event of the running turn to the log. Any thread."""
        self.loop_tasks.call(self._add_event, event)

    def _add_event(self, event: Event) -> None:
        if isinstance(event, OWN_EVENTS):
            return
        try:
            self.log.add(event)
        except Exception:  # an event of a user's tool, with fields that cannot be written as JSON
            log.warning("session %s: an event cannot be written as JSON: %r", self.id, event, exc_info=True)

    def add(self, event: Event, *, durable: bool = False, ends: "tuple[str, OnDurable] | None" = None) -> int:
        """Add an event of the session itself to its log and its state. The arguments are those of `SessionLog.add`.

        Returns:
            The number of the event.
        """
        seq = self.log.add(event, durable=durable, ends=ends)
        self.state.apply(event)
        self.messages = self.state.messages
        return seq

    def stamp(self, turn_id: str | None = None) -> Stamp:
        """The fields that every event of the session, or of one of its turns, has."""
        return {"run_id": turn_id or self.id, "path": (self.agent.name,), "at": self.clock.time(), "calls": ()}


def _retrieve_exception(runner: "asyncio.Task[None]") -> None:
    """Keep asyncio from logging an exception that was never retrieved: the event loop has raised it itself."""
    if not runner.cancelled():
        runner.exception()
