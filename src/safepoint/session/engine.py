"""Owns the turns of one session, one after the other, from their acceptance to their one recorded end.

The end of a turn is written before anyone is told; what a crash left open is taken up or sealed. A store that fails, or
a loop that goes down, ends every turn: nobody waits for ever. Knows nothing of who asks for turns, nor of readers.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from ..abort import AbortError, AbortReason, current_clock
from ..agent.agent import Agent
from ..agent.agent_run import Questions
from ..agent.conversation import AgentResult
from ..errors import SafepointError, UsageError
from ..run.events import Event, SessionClosed, SessionOpened, StopRequested, TurnEnded, TurnQueued, TurnStarted
from ..run.messages import Message
from ..run.outcome import Aborted, Completed, Failed, Outcome
from ..run.receipt import Receipt
from ..run.stop import PRESS_SECONDS, StopAt, StopOptions, StopRequest
from ..turns.loop import TurnLoop
from ..turns.turn import TurnPlan
from .journal import SessionJournal
from .log import SessionLog, Stands
from .loop_tasks import LoopTasks
from .session_state import OWN, SessionState
from .store import Store, StoreError
from .turn import SessionTurn, TurnResult
from .turn_endings import broken, never_started, only_new, sealed, stopped_after_all, unwritable
from .turn_stops import TurnStops
from .turn_work import TurnWork

__all__ = ["SessionBusy", "SessionEnded", "SessionEngine", "WhenBusy"]

log = logging.getLogger("safepoint")
WhenBusy: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]
MAKES_WAY = {"steer": StopAt.AFTER_TOOLS, "interrupt": StopAt.NOW}


class SessionBusy(SafepointError):
    """A turn runs, and the caller wanted no other way than at once."""


class SessionEnded(SafepointError):
    """The session was closed, or broke down: it takes no more turns. Open it again."""


class SessionEngine:
    """The turns of one live session."""

    def __init__(
        self, session_id: str, agent: Agent, store: Store, turn_begins: Callable[[], object] = lambda: None
    ) -> None:
        self.id = session_id
        self.agent = agent
        self.clock = current_clock()
        self.log = SessionLog(store, session_id)
        self.state = SessionState(session_id)
        self.messages: tuple[Message, ...] = ()  # the conversation, as any thread may read it: replaced, never changed
        self.turns: dict[str, SessionTurn] = {}  # those that have not ended
        self.loop_tasks = LoopTasks()
        self.journal = SessionJournal(self.log, self.loop_tasks, self.clock, {})
        self.stops = TurnStops(self.turns, self.loop_tasks, self.clock, self._record_stop, self._left_the_queue)
        self.questions = Questions(None)
        self.loop: TurnLoop[SessionTurn] = TurnLoop(self._plan, on_event=self._heard, name=session_id)
        self._work = TurnWork(self)
        self._turn_begins = turn_begins
        self._minding: asyncio.Task[None] | None = None
        self._stop_records: dict[str, tuple[int, AbortReason]] = {}  # where the record of each stop is, and its reason
        self._leaving: AbortReason | None = None  # the host goes, for this reason: turns are left to the next owner
        self.closed = False

    async def open(self, resume: bool, paused: bool = False, may_still_run: bool = False) -> None:
        """Take the session, with all that has happened in it. Raises: SessionInUse; StoreError."""
        await self.log.open()
        try:
            await self.log.replay(self.state.apply)
        except BaseException:
            await self.log.release()
            raise
        self.journal.results.update(self.state.parts)
        self.messages = self.state.messages
        self.journal.forwarded.update(self.state.forwarded)
        # Before its end is written: after that nobody would look for what it has left on other machines.
        left = self.state.given_up(resume)
        warnings = () if left is None else await self.agent.stop_left_behind(left)
        self.loop_tasks.spawn(self._keep_writing(), f"session {self.id}")
        self.add(SessionOpened(**self.stamp(), agent=self.agent.name))
        self._recover(resume, may_still_run, warnings)
        if paused:
            self.loop.pause()
        self.loop.start()
        self._minding = self.loop_tasks.spawn(self._mind_the_loop(), f"session {self.id}")

    def _recover(self, resume: bool, may_still_run: bool, warnings: tuple[str, ...]) -> None:
        """Turns that a crash left open: what had not begun waits again, what had begun or was stopped is sealed."""
        waiting = []
        for state in self.state.open_turns:
            if state.started or state.stop is not None or state.messages is None:
                told: Any = {"may_still_run": may_still_run, "warnings": warnings if state.started else ()}
                outcome = sealed(self.state, state, self.clock.time(), **told)
                ended = TurnEnded(**self.stamp(state.id), turn_id=state.id, outcome=outcome)
                self.add(ended, ends=(state.id, lambda error: None))
            else:
                about: Any = {"continues": state.continues, "resumes": state.resumes}
                waiting.append(SessionTurn(state.id, state.messages, self.stops.stop, **about))
        if resume and (interrupted := self.state.interrupted) is not None:
            resumes = self.state.turns[interrupted].next_resumes
            self.admit(SessionTurn(None, (), self.stops.stop, continues=interrupted, resumes=resumes))
        for turn in sorted(waiting, key=lambda turn: turn.continues is None):  # what goes on comes first
            self._enqueue(turn, None)

    async def _keep_writing(self) -> None:
        await self.log.keep_writing()
        if self.log.error is not None:
            for turn in list(self.turns.values()):  # what cannot be written down must not go on
                turn.controller.abort(AbortReason("error", "the store failed", cause=self.log.error))

    async def _mind_the_loop(self) -> None:
        """When the loop has ended, or everything is told to go, no turn is left that waits for it."""
        reason: BaseException | None = None
        try:
            reason = (await self.loop.wait()).reason
        except BaseException as error:  # what ends the program was heard of already, where it was raised
            reason = error
        for turn in list(self.turns.values()):
            if self._leaving is None or turn.outcome is not None:
                self._decide(turn, broken(turn, reason or SessionEnded("its loop has ended"), self.clock))
            else:
                self._leave(turn, self._leaving)

    @property
    def ended(self) -> bool:
        """True: it takes no more turns, because it was closed or broke down."""
        return self.closed or self.log.error is not None or self.loop.finished

    def check_live(self) -> None:
        """Raises: SessionEnded."""
        if self.closed:
            raise SessionEnded(f"session {self.id!r} is closed: it takes no more turns. Open it again")
        if self.log.error is not None or self.loop.finished:
            why = self.log.error or "its loop has ended"
            raise SessionEnded(f"session {self.id!r} broke down ({why}): close it, and open it again")

    def to_continue(self, turn_id: str | None) -> str:
        """The stopped turn that may go on: the last one, and nothing has come after it. Raises: UsageError."""
        turn_id = None if turn_id is None else self.state.successor(turn_id)
        last = self.state.last_ended
        if last is None or (turn_id is not None and last.id != turn_id) or isinstance(last.outcome, Completed):
            raise UsageError(f"there is no stopped turn to continue: the last one is {last.id if last else None!r}")
        if self.turns:
            raise SessionBusy(f"turn {last.id!r} cannot go on: turn {next(iter(self.turns))!r} has come after it")
        return last.id

    def admit(self, turn: SessionTurn, when_busy: WhenBusy = "queue") -> SessionTurn:
        """Accept a turn. Raises: SessionEnded; SessionBusy; UsageError for an id that was used before."""
        self.check_live()
        self._check_new(turn)
        if when_busy not in ("queue", "steer", "interrupt", "reject"):
            raise UsageError(f"when_busy must be queue, steer, interrupt or reject, not {when_busy!r}")
        ahead = next(iter(self.turns), None)
        self.turns[turn.id] = turn
        early = self.stops.tombstones.find(turn.id)
        if early is not None:
            turn.controller.abort(early)
        if turn.signal.aborted:  # no work at all: nothing is stored, nothing waits
            self.turns.pop(turn.id)
            turn.end(TurnResult(turn.id, (outcome := self._never(turn)).status, outcome))
            return turn
        if when_busy == "reject" and ahead is not None:
            self.turns.pop(turn.id)
            raise SessionBusy(f"session {self.id!r} is busy with turn {ahead!r}")
        stored = None if callable(turn.messages) else turn.messages
        about: Any = {"messages": stored, "continues": turn.continues, "resumes": turn.resumes}
        self.add(TurnQueued(**self.stamp(turn.id), turn_id=turn.id, **about), keep=True)
        # A new prompt instead of an answer is always possible: it takes the place of the question.
        way = "interrupt" if self.questions.waiting and when_busy == "queue" else when_busy
        turn.urgent = way in MAKES_WAY
        running = next((other for other in self.turns.values() if other.runs), None)
        self._enqueue(turn, MAKES_WAY.get(way))
        if running is not None and way == "interrupt":
            self._press(running)
        return turn

    def _check_new(self, turn: SessionTurn) -> None:
        if turn.id in self.state.turns or turn.id in self.turns:
            raise UsageError(f"there was a turn {turn.id!r} already in session {self.id!r}: an id is for life")

    def refuse(self, turn: SessionTurn, error: Exception) -> None:
        """Accept a turn only to end it as failed. Raises: SessionEnded; UsageError for an id that was used before."""
        self.check_live()
        self._check_new(turn)
        self.turns[turn.id] = turn
        stored = None if callable(turn.messages) else turn.messages
        self.add(TurnQueued(**self.stamp(turn.id), turn_id=turn.id, messages=stored), keep=True)
        now = self.clock.time()
        self._decide(turn, Failed(error, Receipt(None, None, now), AgentResult(""), finished_at=now))

    def _press(self, running: SessionTurn) -> None:
        """Somebody wants the running turn to make way now. Whoever has to want it twice does not wait any longer."""
        now = self.clock.monotonic()
        # A stop that it has had before is the first press, whoever sent it.
        presses = [at for at in (running.interrupted_at, running.signal.aborted_at) if at is not None]
        if running.interrupted_at is None:
            running.interrupted_at = now
        if presses and now - min(presses) >= PRESS_SECONDS and running.ctx is not None:
            running.ctx.stop.join(StopRequest(abandon=0.0))

    def _enqueue(self, turn: SessionTurn, preempt: StopAt | None) -> None:
        turn.session_id, turn.queue = self.id, self.turns
        self.turns[turn.id] = turn
        self.loop.push(turn, preempt=preempt)
        self.stops.gate(turn)

    async def _plan(self, turns: list[SessionTurn]) -> TurnPlan[SessionTurn]:
        turn = next((turn for turn in turns if turn.urgent), turns[0])
        rest = [other for other in turns if other is not turn]
        end = partial(self._end, turn)
        return TurnPlan(self._work, turn, [turn], rest, signal=turn.signal, turn_id=turn.id, then=end)

    def _decide(self, turn: SessionTurn, outcome: Outcome[AgentResult]) -> None:
        """The one end of a turn, on its way to the store. Whoever comes later finds it."""
        if turn.outcome is not None:
            return
        try:
            self._add_end(turn, only_new(outcome, turn.base))
        except Exception as error:
            # It cannot be put into JSON, as when a model counts its tokens in something that is no number. Whoever
            # waits for the turn must still hear of its end, and the record must have one, so a plain failure is it.
            log.exception("session %s: the end of turn %s cannot be written down", self.id, turn.id)
            self._add_end(turn, unwritable(turn, error, self.clock))

    def _add_end(self, turn: SessionTurn, outcome: Outcome[AgentResult]) -> None:
        shut_down = isinstance(outcome, Aborted) and outcome.reason is self._leaving and not turn.asked_to_stop
        event = TurnEnded(**self.stamp(turn.id), turn_id=turn.id, outcome=outcome, resumable=shut_down)
        turn.outcome = outcome
        turn.end_seq = self.add(event, ends=(turn.id, partial(self._stands, turn, outcome)))

    def _stands(self, turn: SessionTurn, outcome: Outcome[AgentResult], error: Exception | None) -> None:
        """It is written: the caller is told, then the readers. What could not be written is not told as done."""
        if error is not None:
            outcome = broken(turn, error, self.clock)
        self.turns.pop(turn.id, None)
        turn.end(TurnResult(turn.id, outcome.status, outcome))

    async def _end(self, turn: SessionTurn, outcome: Outcome[AgentResult]) -> None:
        if isinstance(outcome, Completed) and self.journal.before_effect is not None:
            # A stop may be on record that this process has not heard of, as when it was frozen meanwhile. It was
            # acknowledged before this end, so that it counts.
            try:
                await turn.signal.run(self.journal.before_effect())
            except AbortError:
                if not turn.signal.aborted:
                    raise
            if turn.signal.reason is not None:
                outcome = stopped_after_all(outcome, turn.signal.reason)
        if turn.continues is not None and not isinstance(outcome, Completed):
            await self._stop_left_behind(turn, outcome.partial)
        self._decide(turn, outcome)
        await turn.until_ended()

    async def _stop_left_behind(self, turn: SessionTurn, left: AgentResult | None) -> None:
        """A turn that goes on with another one may be stopped before it comes to the calls that it was to go on with.

        One that is given back keeps them: the next owner goes on.
        """
        reason = turn.signal.reason
        if left is not None and reason is not None and reason.kind != "lease_lost" and self._leaving is None:
            await self.agent.stop_left_behind(left)

    def _left_the_queue(self, turn: SessionTurn) -> None:
        """A turn that waits was stopped: it leaves the queue at once, and its messages are not part of anything."""
        if self.loop.remove(turn):
            if turn.continues is not None:
                left = self.agent.stop_left_behind(self.state.resumed(turn.continues)[0])
                self.loop_tasks.spawn(left, f"what turn {turn.continues} has left")
            failed = self.log.error is not None
            self._decide(turn, outcome := self._never(turn))
            if not failed and isinstance(outcome, Aborted):
                self._stop_records[turn.id] = turn.end_seq, outcome.reason  # its end is the record of the stop

    def _never(self, turn: SessionTurn) -> Outcome[AgentResult]:
        reason = turn.signal.reason or turn.request.reason or AbortReason()
        return never_started(reason, self.clock.time())

    def _record_stop(self, turn: SessionTurn, reason: AbortReason) -> None:
        asked: Any = {"at_point": turn.request.at.name, "abandon": turn.request.abandon}
        why: Any = {"reason": reason.message, "reason_kind": reason.kind}
        failed = self.log.error is not None  # then it is the failure of the store that stops the turn, and nobody else
        seq = self.add(StopRequested(**self.stamp(turn.id), turn_id=turn.id, **asked, **why), keep=True)
        if not failed:
            self._stop_records[turn.id] = seq, reason

    @property
    def unrecorded_stops(self) -> dict[str, AbortReason]:
        """The stops that a store that has failed did not take, each with its reason, by the id of its turn."""
        return {turn_id: reason for turn_id, (seq, reason) in self._stop_records.items() if seq > self.log.saved}

    def give_up(self, turn_id: str, reason: AbortReason) -> None:
        """Write down that nobody is to go on with a turn that has lost its owner, unless somebody has meanwhile."""
        if self.log.error is None and self.state.interrupted == turn_id:
            why: Any = {"reason": reason.message, "reason_kind": reason.kind}
            # It is no event of that turn, of which nothing comes after its end.
            self.add(StopRequested(**self.stamp(), turn_id=turn_id, at_point=StopAt.NOW.name, **why), keep=True)

    async def shut_down(self, cause: AbortReason, within: float) -> None:
        """Stop what runs and waits, and let the session go. Raises: what the store raised, when all that is done."""
        gracefully = StopOptions(StopAt.SAFE_POINT, "tree", within, reason=cause)
        at_once = StopOptions(StopAt.NOW, reason=cause)
        try:
            for turn in list(self.turns.values()):
                self.stops.stop(turn, gracefully if turn.runs and within > 0 else at_once, None)
            for turn in list(self.turns.values()):
                await turn.until_ended()
            self.loop.stop(StopAt.NOW, reason=cause.message)
            await self._end_of_log(cause)
        finally:
            await self.loop_tasks.empty()
            await self.log.release()

    async def let_go(self) -> None:
        """Its event loop is closed, and nothing of it runs any more. Raises: StoreError for what was not written."""
        self.closed = True
        error = self.log.error or StoreError(f"session {self.id!r} was not closed before its event loop was")
        for turn in list(self.turns.values()):
            outcome = broken(turn, error, self.clock)
            turn.end(TurnResult(turn.id, outcome.status, outcome))
        self.turns.clear()
        lost = self.log.last - self.log.saved
        await self.log.release()
        if lost:
            raise StoreError(f"{error}: its last {lost} events were not written") from self.log.error

    async def hand_over(self, cause: AbortReason, within: float) -> None:
        """Stop what runs, in a way that it can go on, leave what waits, and let the session go.

        What waits has no end in the log, so whoever opens the session next begins it.
        """
        try:
            self._leaving = cause
            # From here on the loop begins no turn, and gives back one that it is planning: what does not run by now
            # stays queued. It is told no cause, which would become the reason of the running turn.
            self.loop.stop()
            for turn in list(self.turns.values()):
                if turn.runs:
                    self.stops.hand_over(turn, cause, within)
                elif turn.waits and callable(turn.messages):  # a function cannot be left to another process
                    self.stops.stop(turn, StopOptions(StopAt.NOW, reason=cause), None)
            await self._end_of_log(cause)
        finally:
            await self.loop_tasks.empty()
            await self.log.release()

    def _leave(self, turn: SessionTurn, cause: AbortReason) -> None:
        """The log says that it waits. Whoever waits for it in this process is told that it does not begin here."""
        outcome = never_started(cause, self.clock.time())
        self.turns.pop(turn.id, None)
        turn.end(TurnResult(turn.id, outcome.status, outcome))

    async def _end_of_log(self, cause: AbortReason) -> None:
        if self._minding is not None:
            await self._minding
        self.add(SessionClosed(**self.stamp(), reason=cause.message, left=self.state.left), keep=True)
        await self.log.close()

    def _heard(self, event: Event) -> None:
        if isinstance(event, TurnStarted):
            self._turn_begins()
        if isinstance(event, OWN):
            return
        try:
            self.log.add(event)
        except Exception:  # no event of ours: somebody's tool has made it up
            log.warning("session %s: an event cannot be written down: %r", self.id, event, exc_info=True)

    def add(self, event: Event, *, keep: bool = False, ends: "tuple[str, Stands] | None" = None) -> int:
        """Something of the session's own happened. `keep`: it must survive a power cut. Returns its number."""
        seq = self.log.add(event, durable=keep, ends=ends)
        self.state.apply(event)
        self.messages = self.state.messages
        return seq

    def stamp(self, turn_id: str | None = None) -> Any:
        """What every event says of its place."""
        return {"run_id": turn_id or self.id, "path": (self.agent.name,), "at": self.clock.time()}
