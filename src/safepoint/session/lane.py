"""Owns the turns of one session, one after the other, from their acceptance to their one recorded end.

The end of a turn is written before anyone is told; what a crash left open is taken up or sealed. A store that fails, or
a loop that goes down, ends every turn: nobody waits for ever. Knows nothing of who asks for turns, nor of readers.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Literal, TypeAlias

from ..abort import AbortReason, current_clock
from ..agent.agent import Agent
from ..agent.agentrun import Questions
from ..agent.talk import AgentResult
from ..errors import SafepointError, UsageError
from ..run.events import Event, SessionClosed, SessionOpened, StopRequested, TurnEnded, TurnQueued
from ..run.outcome import Completed, Outcome
from ..run.stop import PRESS_SECONDS, StopAt, StopRequest
from ..turns.loop import TurnLoop
from ..turns.turn import TurnPlan
from .ending import broken, never_started, only_new, sealed, stopped_after_all, unwritable
from .home import Home
from .journal import SessionJournal
from .log import Log, Stands
from .past import OWN, Past
from .stopping import Stops
from .store import Store
from .turn import SessionTurn, TurnResult
from .working import TurnWork

__all__ = ["Lane", "SessionBusy", "SessionEnded", "WhenBusy"]

log = logging.getLogger("safepoint")
WhenBusy: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]
MAKES_WAY = {"steer": StopAt.AFTER_TOOLS, "interrupt": StopAt.NOW}


class SessionBusy(SafepointError):
    """A turn runs, and the caller wanted no other way than at once."""


class SessionEnded(SafepointError):
    """The session was closed, or broke down: it takes no more turns. Open it again."""


class Lane:
    """The turns of one live session."""

    def __init__(self, session_id: str, agent: Agent, store: Store) -> None:
        self.id = session_id
        self.agent = agent
        self.clock = current_clock()
        self.log = Log(store, session_id)
        self.past = Past()
        self.turns: dict[str, SessionTurn] = {}  # those that have not ended
        self.home = Home()
        self.journal = SessionJournal(self.log, self.home, self.clock, {})
        self.stops = Stops(self.turns, self.home, self.clock, self._record_stop, self._left_the_queue)
        self.questions = Questions(None)
        self.loop: TurnLoop[SessionTurn] = TurnLoop(self._plan, on_event=self._heard, name=session_id)
        self._work = TurnWork(self)
        self._minding: asyncio.Task[None] | None = None
        self.closed = False

    async def open(self, resume: bool, paused: bool = False) -> None:
        """Take the session, with all that has happened in it. Raises: SessionInUse; StoreError."""
        await self.log.open()
        try:
            await self.log.replay(self.past.apply)
        except BaseException:
            await self.log.release()
            raise
        self.journal.results.update(self.past.parts)
        self.home.spawn(self._keep_writing(), f"session {self.id}")
        self.add(SessionOpened(**self.stamp(), agent=self.agent.name))
        self._recover(resume)
        if paused:
            self.loop.pause()
        self.loop.start()
        self._minding = self.home.spawn(self._mind_the_loop(), f"session {self.id}")

    def _recover(self, resume: bool) -> None:
        """Turns that a crash left open: what had not begun waits again, what had begun or was stopped is sealed."""
        waiting = []
        for past in self.past.open_turns:
            if past.started or past.stop is not None or past.messages is None:
                outcome = sealed(self.past, past, self.clock.time())
                ended = TurnEnded(**self.stamp(past.id), turn_id=past.id, outcome=outcome)
                self.add(ended, ends=(past.id, lambda error: None))
            else:
                waiting.append(SessionTurn(past.id, past.messages, self.stops.stop, continues=past.continues))
        if resume and (interrupted := self.past.interrupted) is not None:
            self.admit(SessionTurn(None, (), self.stops.stop, continues=interrupted))
        for turn in sorted(waiting, key=lambda turn: turn.continues is None):  # what goes on comes first
            self._enqueue(turn, None)

    async def _keep_writing(self) -> None:
        await self.log.keep_writing()
        if self.log.error is not None:
            for turn in list(self.turns.values()):  # what cannot be written down must not go on
                turn.controller._abort(AbortReason("error", "the store failed", cause=self.log.error))

    async def _mind_the_loop(self) -> None:
        """When the loop has ended, or everything is told to go, no turn is left that waits for it."""
        reason: BaseException | None = None
        try:
            reason = (await self.loop.wait()).reason
        except BaseException as error:  # what ends the program was heard of already, where it was raised
            reason = error
        for turn in list(self.turns.values()):
            self._decide(turn, broken(turn, reason or SessionEnded("its loop has ended"), self.clock))

    def check_live(self) -> None:
        """Raises: SessionEnded."""
        if self.closed:
            raise SessionEnded(f"session {self.id!r} is closed: it takes no more turns. Open it again")
        if self.log.error is not None or self.loop.finished:
            why = self.log.error or "its loop has ended"
            raise SessionEnded(f"session {self.id!r} broke down ({why}): close it, and open it again")

    def to_continue(self, turn_id: str | None) -> str:
        """The stopped turn that may go on: the last one, and nothing has come after it. Raises: UsageError."""
        last = self.past.last_ended
        if last is None or (turn_id is not None and last.id != turn_id) or isinstance(last.outcome, Completed):
            raise UsageError(f"there is no stopped turn to continue: the last one is {last.id if last else None!r}")
        if self.turns:
            raise SessionBusy(f"turn {last.id!r} cannot go on: turn {next(iter(self.turns))!r} has come after it")
        return last.id

    def admit(self, turn: SessionTurn, when_busy: WhenBusy = "queue") -> SessionTurn:
        """Accept a turn. Raises: SessionEnded; SessionBusy; UsageError for an id that was used before."""
        self.check_live()
        if turn.id in self.past.turns or turn.id in self.turns:
            raise UsageError(f"there was a turn {turn.id!r} already in session {self.id!r}: an id is for life")
        if when_busy not in ("queue", "steer", "interrupt", "reject"):
            raise UsageError(f"when_busy must be queue, steer, interrupt or reject, not {when_busy!r}")
        ahead = next(iter(self.turns), None)
        self.turns[turn.id] = turn
        early = self.stops.tombstones.take(turn.id)
        if early is not None:
            turn.controller._abort(early)
        if turn.signal.aborted:  # no work at all: nothing is stored, nothing waits
            self.turns.pop(turn.id)
            turn.end(TurnResult(turn.id, (outcome := self._never(turn)).status, outcome))
            return turn
        if when_busy == "reject" and ahead is not None:
            self.turns.pop(turn.id)
            raise SessionBusy(f"session {self.id!r} is busy with turn {ahead!r}")
        stored = None if callable(turn.messages) else turn.messages
        queued = TurnQueued(**self.stamp(turn.id), turn_id=turn.id, messages=stored, continues=turn.continues)
        self.add(queued, keep=True)
        # A new prompt instead of an answer is always possible: it takes the place of the question.
        way = "interrupt" if self.questions.waiting and when_busy == "queue" else when_busy
        turn.urgent = way in MAKES_WAY
        running = next((other for other in self.turns.values() if other.runs), None)
        self._enqueue(turn, MAKES_WAY.get(way))
        if running is not None and way == "interrupt":
            self._press(running)
        return turn

    def _press(self, running: SessionTurn) -> None:
        """Somebody wants the running turn to make way now. Whoever has to want it twice does not wait any longer."""
        now = self.clock.monotonic()
        # A stop that it has had before is the first press, whoever sent it.
        presses = [at for at in (running.interrupted_at, running.signal.aborted_at) if at is not None]
        if running.interrupted_at is None:
            running.interrupted_at = now
        if presses and now - min(presses) >= PRESS_SECONDS and running.ctx is not None:
            running.ctx.stop.ask(StopRequest(abandon=0.0))

    def _enqueue(self, turn: SessionTurn, preempt: StopAt | None) -> None:
        self.turns[turn.id] = turn
        self.loop.push(turn, preempt=preempt)
        self.stops.watch(turn)

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
        event = TurnEnded(**self.stamp(turn.id), turn_id=turn.id, outcome=outcome)
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
            await self.journal.before_effect()
            if turn.signal.reason is not None:
                outcome = stopped_after_all(outcome, turn.signal.reason)
        self._decide(turn, outcome)
        await turn

    def _left_the_queue(self, turn: SessionTurn) -> None:
        """A turn that waits was stopped: it leaves the queue at once, and its messages are not part of anything."""
        if self.loop.remove(turn):
            self._decide(turn, self._never(turn))

    def _never(self, turn: SessionTurn) -> Outcome[AgentResult]:
        reason = turn.signal.reason or turn.request.reason or AbortReason()
        return never_started(reason, self.clock.time())

    def _record_stop(self, turn: SessionTurn, reason: AbortReason) -> None:
        asked: Any = {"at_point": turn.request.at.name, "abandon": turn.request.abandon}
        why: Any = {"reason": reason.message, "reason_kind": reason.kind}
        self.add(StopRequested(**self.stamp(turn.id), turn_id=turn.id, **asked, **why), keep=True)

    async def shut_down(self, cause: AbortReason) -> None:
        """Stop what runs and waits, and let the session go. Raises: what the store raised, when all that is done."""
        try:
            for turn in list(self.turns.values()):
                self.stops.stop(turn, StopAt.NOW, None, None, cause, None)
            for turn in list(self.turns.values()):
                await turn
            self.loop.stop(StopAt.NOW, cause=cause.message)
            if self._minding is not None:
                await self._minding
            self.add(SessionClosed(**self.stamp(), reason=cause.message), keep=True)
            await self.log.close()
        finally:
            await self.home.empty()
            await self.log.release()

    def _heard(self, event: Event) -> None:
        if isinstance(event, OWN):
            return
        try:
            self.log.add(event)
        except Exception:  # no event of ours: somebody's tool has made it up
            log.warning("session %s: an event cannot be written down: %r", self.id, event, exc_info=True)

    def add(self, event: Event, *, keep: bool = False, ends: "tuple[str, Stands] | None" = None) -> int:
        """Something of the session's own happened. `keep`: it must survive a power cut. Returns its number."""
        seq = self.log.add(event, durable=keep, ends=ends)
        self.past.apply(event)
        return seq

    def stamp(self, turn_id: str | None = None) -> Any:
        """What every event says of its place."""
        return {"run_id": turn_id or self.id, "path": (self.agent.name,), "at": self.clock.time()}
