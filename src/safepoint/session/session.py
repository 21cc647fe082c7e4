"""Owns a live session: turns of one agent, one after the other, each with an id for life and one recorded end.

A stop signals first and is recorded at once after; the end of a turn is written before anyone is told. Knows nothing of
who is connected, nor of other sessions.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from ..abort import AbortReason, AbortSignal, current_clock
from ..abort.reason import caller, reason_from
from ..agent.agent import Agent
from ..agent.agentrun import Questions
from ..agent.talk import AgentResult
from ..errors import SafepointError, UsageError
from ..run.events import (
    Event,
    SessionClosed,
    SessionOpened,
    StopRequested,
    TurnEdited,
    TurnEnded,
    TurnForgotten,
    TurnQueued,
)
from ..run.messages import Message
from ..run.outcome import Completed, Outcome
from ..run.stop import StopAck, StopAt, StopRequest, stop_request
from ..turns.loop import TurnLoop
from ..turns.turn import TurnPlan
from .admission import Tombstones, as_messages
from .ending import never_started, only_new, sealed
from .home import Home
from .log import Log, Recorded
from .opening import Opening
from .past import Past
from .presence import Presence
from .store import MemoryStore, Store
from .streaming import TurnStream
from .turn import MessagesFn, SessionTurn, TurnResult
from .working import OWN, TurnWork

__all__ = ["Session", "SessionBusy", "SessionEnded"]

WhenBusy: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]


class SessionBusy(SafepointError):
    """A turn runs, and the caller wanted no other way than at once."""


class SessionEnded(SafepointError):
    """The session was closed: it takes no more turns. Open it again."""


class Session:
    """A conversation with an agent. Make one with `Session.open`."""

    def __init__(self, session_id: str, agent: Agent, store: Store, on_disconnect: float | None) -> None:
        self.id = session_id
        self.agent = agent
        self._clock = current_clock()
        self._log = Log(store, session_id)
        self._past = Past()
        self._turns: dict[str, SessionTurn] = {}
        self._tombstones = Tombstones(self._clock)
        self._questions = Questions(None)
        self._work = TurnWork(self)
        self._loop: TurnLoop[SessionTurn] = TurnLoop(self._plan, on_event=self._heard, name=session_id)
        self._home = Home()
        self._presence = Presence(self._clock, on_disconnect, lambda: self._home.post(self._nobody_is_there))
        self._closing = False
        self._closed = asyncio.Event()

    @classmethod
    def open(
        cls,
        session_id: str,
        *,
        agent: Agent,
        store: Store | None = None,
        resume: bool = False,
        on_disconnect: Literal["continue"] | float = "continue",
    ) -> "Opening[Session]":
        """`async with Session.open("s1", agent=agent) as session:`, or `session = await Session.open(…)`.

        resume         continue the turn that a crash has interrupted
        on_disconnect  "continue", or the seconds after the last reader has gone before the turn is stopped
        """
        grace = None if on_disconnect == "continue" else float(on_disconnect)

        async def opens() -> Session:
            session = cls(session_id, agent, store or MemoryStore(), grace)
            await session._open(resume)
            return session

        return Opening(opens)

    async def _open(self, resume: bool) -> None:
        await self._log.open()
        last = self._log.last
        if last:
            async for recorded in self._log.follow(0):
                self._past.apply(recorded.event)
                if recorded.seq >= last:
                    break
        self._home.spawn(self._log.keep_writing(), f"session {self.id}")
        self._add(SessionOpened(**self._stamp(), agent=self.agent.name))
        interrupted = self._recover()
        self._loop.start()
        if resume and interrupted is not None:
            self.begin_again(interrupted)
        await self._log.flushed(self._log.last)

    def _recover(self) -> str | None:
        """Turns that a crash left open: what had not begun waits again, what had begun or was stopped is sealed."""
        interrupted = None
        for past in self._past.open_turns:
            if past.started or past.stop is not None or past.messages is None:
                interrupted = past.id if past.started and past.stop is None else interrupted
                outcome = sealed(past, self._clock.time())
                self._add(TurnEnded(**self._stamp(past.id), turn_id=past.id, outcome=outcome), ends=past.id)
            else:
                turn = self._turns[past.id] = SessionTurn(past.id, past.messages, self._stop_turn)
                turn.continues = past.continues
                self._loop.push(turn)
        return interrupted

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self._past.messages

    @property
    def last_seq(self) -> int:
        """The number of the newest event."""
        return self._log.last

    def outcome_of(self, turn_id: str) -> Outcome[AgentResult] | None:
        """How a turn ended; None: there was no such turn, or it has not ended."""
        turn = self._past.turns.get(turn_id)
        return None if turn is None or turn_id in self._turns else turn.outcome

    @property
    def turns(self) -> dict[str, SessionTurn]:
        """The turns that have not ended, in the order of their acceptance."""
        return dict(self._turns)

    def send(
        self,
        text: "str | Message",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        deadline: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> SessionTurn:
        """Say something. The turn has its id at once, and can be stopped from now on.

        when_busy  "queue": after what runs and waits; "steer": the running turn makes way after its tool calls;
                   "interrupt": it makes way at once; "reject": raises SessionBusy
        """
        return self._admit(as_messages(text), turn_id, signal, deadline, when_busy, caller(1))

    async def save_messages(
        self,
        messages: "str | Message | Sequence[str | Message] | MessagesFn",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        deadline: float | None = None,
    ) -> TurnResult:
        """Add messages, or what a function makes of the current ones, and let the agent answer."""
        return await self._admit(as_messages(messages), turn_id, signal, deadline, "queue", caller(1))

    async def continue_turn(
        self, turn_id: str | None = None, *, signal: AbortSignal | None = None, deadline: float | None = None
    ) -> TurnResult:
        """Go on with a turn that was stopped: only what has not run is run. By default the last one."""
        return await self.begin_again(turn_id, signal=signal, deadline=deadline)

    def begin_again(
        self, turn_id: str | None = None, *, signal: AbortSignal | None = None, deadline: float | None = None
    ) -> SessionTurn:
        """The same, as a turn that need not be waited for."""
        last = self._past.last_ended
        if last is None or (turn_id is not None and last.id != turn_id) or isinstance(last.outcome, Completed):
            raise UsageError(f"there is no stopped turn to continue: the last one is {last.id if last else None!r}")
        return self._admit((), None, signal, deadline, "queue", caller(1), continues=last.id)

    def stream(
        self,
        messages: "str | Message | Sequence[str | Message] | MessagesFn",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        deadline: float | None = None,
    ) -> TurnStream:
        """The same, as the events of exactly that turn: `async with`; closing it aborts that turn."""
        after = self._log.last
        turn = self._admit(as_messages(messages), turn_id, signal, deadline, "queue", caller(1))
        return TurnStream(turn, self._log, after)

    def _admit(
        self,
        messages: tuple[Message, ...] | MessagesFn,
        turn_id: str | None,
        signal: AbortSignal | None,
        deadline: float | None,
        when_busy: WhenBusy,
        origin: str | None,
        continues: str | None = None,
    ) -> SessionTurn:
        if self._closing:
            raise SessionEnded(f"session {self.id!r} is closed: it takes no more turns. Open it again")
        turn_id = turn_id or uuid.uuid4().hex
        if turn_id in self._past.turns or turn_id in self._turns:
            raise UsageError(f"there was a turn {turn_id!r} already in session {self.id!r}: an id is for life")
        if when_busy not in ("queue", "steer", "interrupt", "reject"):
            raise UsageError(f"when_busy must be queue, steer, interrupt or reject, not {when_busy!r}")
        turn = SessionTurn(turn_id, messages, self._stop_turn, signal=signal, deadline=deadline, origin=origin)
        early = self._tombstones.take(turn_id)
        if early is not None:
            turn.controller._abort(early)
        if turn.signal.aborted:  # no work at all: nothing is stored, nothing waits
            turn.end(never_started(turn, self._clock))
            return turn
        busy = self._loop.turn is not None or bool(self._loop.waiting)
        if busy and when_busy == "reject":
            raise SessionBusy(f"session {self.id!r} is busy with turn {next(iter(self._turns), '?')!r}")
        turn.continues = continues
        self._turns[turn_id] = turn
        stored = None if callable(messages) else messages
        self._add(TurnQueued(**self._stamp(turn_id), turn_id=turn_id, messages=stored, continues=continues), keep=True)
        turn.watch = turn.signal.add_listener(lambda: self._home.post(self._left_the_queue, turn))
        # A new prompt instead of an answer is always possible: it takes the place of the question.
        way = "interrupt" if self._questions.waiting and when_busy == "queue" else when_busy
        turn.urgent = way in ("steer", "interrupt")
        preempt = {"steer": StopAt.AFTER_TOOLS, "interrupt": StopAt.NOW}.get(way)
        self._loop.push(turn, preempt=preempt)
        return turn

    async def _plan(self, turns: list[SessionTurn]) -> TurnPlan[SessionTurn]:
        turn = next((turn for turn in turns if turn.urgent), turns[0])
        rest = [other for other in turns if other is not turn]
        end = partial(self._end, turn)
        return TurnPlan(self._work, turn, [turn], rest, signal=turn.signal, turn_id=turn.id, then=end)

    async def _end(self, turn: SessionTurn, outcome: Outcome[AgentResult]) -> None:
        """The one end of a turn: written, then told. Whoever comes later finds it."""
        turn.deciding = True
        outcome = only_new(outcome, turn.base)
        event = TurnEnded(**self._stamp(turn.id), turn_id=turn.id, outcome=outcome)
        await self._log.flushed(self._add(event, ends=turn.id))
        self._turns.pop(turn.id, None)
        turn.end(TurnResult(turn.id, outcome.status, outcome))

    def _left_the_queue(self, turn: SessionTurn) -> None:
        """A turn that waits was stopped: it leaves the queue at once, and its messages are not part of anything."""
        if turn.ctx is None and not turn.deciding and self._loop.remove(turn):
            turn.deciding = True
            self._home.spawn(self._end(turn, never_started(turn, self._clock).outcome), f"session {self.id}")

    def stop(
        self,
        turn_id: str,
        at: StopAt | None = None,
        *,
        within: float | None = None,
        reason: AbortReason | BaseException | str | None = None,
    ) -> StopAck:
        """Stop this turn, and no other. Answered at once; for an id not seen yet it is remembered. Any thread."""
        turn = self._turns.get(turn_id)
        if turn is not None:
            return self._stop_turn(turn, at, within, reason, caller(1))
        if turn_id in self._past.turns:
            return StopAck("already_finished", "settled", f"turn {turn_id} has ended", turn_id)
        self._tombstones.remember(turn_id, reason_from(reason, caller(1)))
        return StopAck("unknown", "accepted", f"no turn {turn_id} so far: if it comes, it will not begin", turn_id)

    def _stop_turn(
        self, turn: SessionTurn, at: StopAt | None, within: float | None, reason: Any, origin: str | None
    ) -> StopAck:
        now = self._clock.monotonic()
        request = stop_request(
            at, scope="tree", within=within, reason=reason, before=turn.request, now=now, origin=origin
        )
        settled = partial(self._settled, turn)
        if turn.deciding or turn.result is not None:
            return StopAck("already_finished", "settled", f"turn {turn.id} has ended", turn.id, settled)
        before = turn.status == "stopping"
        waits = turn.ctx is None
        turn.ask(request)
        if turn.request.at is StopAt.NOW or (waits and turn.request.at is not StopAt.TURN_END):
            turn.controller._abort(turn.request.reason or AbortReason())
        self._home.post(self._record_stop, turn, turn.request)
        told = f"stops at {turn.request.at.name}"
        return StopAck("already_stopping" if before else "accepted", "accepted", told, turn.id, settled)

    def _record_stop(self, turn: SessionTurn, request: StopRequest) -> None:
        if turn.result is None and not turn.deciding:
            reason = request.reason or AbortReason()
            about: Any = {"at_point": request.at.name, "reason": reason.message, "reason_kind": reason.kind}
            self._add(StopRequested(**self._stamp(turn.id), turn_id=turn.id, **about), keep=True)

    async def _settled(self, turn: SessionTurn, timeout: float | None) -> Any:
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        result = await limit.run(turn.wait())
        return getattr(result.outcome, "receipt", None) or never_started(turn, self._clock).outcome.receipt  # type: ignore[union-attr]

    def answer(self, question_id: str, text: str) -> bool:
        """Answer a question of the running turn. False: it does not wait for one (any more)."""
        return self._questions.answer(question_id, text)

    def edit(self, turn_id: str, text: "str | Message | Sequence[str | Message]") -> bool:
        """Replace the messages of a turn that waits. False: it does not wait (any more)."""
        turn = self._turns.get(turn_id)
        messages = as_messages(text)
        if turn is None or turn.ctx is not None or turn.deciding or callable(messages):
            return False
        turn.messages = messages
        self._add(TurnEdited(**self._stamp(turn_id), turn_id=turn_id, messages=messages), keep=True)
        return True

    def remove(self, turn_id: str) -> bool:
        """Take a turn that waits out of the queue. False: it does not wait (any more)."""
        turn = self._turns.get(turn_id)
        if turn is None or turn.ctx is not None or turn.deciding:
            return False
        self._stop_turn(turn, StopAt.NOW, None, "removed from the queue", caller(1))
        return True

    def forget(self, turn_id: str) -> None:
        """Take the conversation back to before this turn, which must be the last. Raises: UsageError."""
        last = self._past.last_ended
        if last is None or last.id != turn_id:
            raise UsageError(f"only the last turn can be forgotten, which is {last.id if last else None!r}")
        if self._loop.turn is not None:
            raise UsageError("a turn runs: stop it first")
        self._add(TurnForgotten(**self._stamp(turn_id), turn_id=turn_id), keep=True)

    def pause(self) -> None:
        """Begin no turn until `resume()`; the running one ends by itself."""
        self._loop.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._loop.resume()

    async def events(self, after: int = 0) -> AsyncIterator[Recorded]:
        """Everything after this number, then what comes. Closing it stops nothing (but see `on_disconnect`)."""
        self._presence.came()
        try:
            async for recorded in self._log.follow(after):
                yield recorded
        finally:
            self._presence.left()

    def _nobody_is_there(self) -> None:
        if not self._presence.readers:
            for turn in self.turns.values():
                self._stop_turn(turn, StopAt.NOW, None, AbortReason("disconnected", "nobody was there"), None)

    async def saved(self) -> None:
        """Wait until everything that has happened so far is in the store."""
        await self._log.flushed(self._log.last)

    async def close(self, reason: str = "closed") -> None:
        """Stop what runs and waits, at once, and end. A second call waits for the first."""
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        self._presence.end()
        cause = AbortReason("shutdown", reason, caller(1))
        for turn in self.turns.values():
            self._stop_turn(turn, StopAt.NOW, None, cause, None)
        for turn in self.turns.values():
            await turn
        self._loop.stop(StopAt.NOW, cause=reason)
        await self._loop.wait()
        self._add(SessionClosed(**self._stamp(), reason=reason), keep=True)
        await self._log.close()
        await self._home.empty()
        await self._log.release()
        self._closed.set()

    def _heard(self, event: Event) -> None:
        if not isinstance(event, OWN):
            self._log.add(event)

    def _add(self, event: Event, *, keep: bool = False, ends: str | None = None) -> int:
        self._past.apply(event)
        return self._log.add(event, durable=keep or ends is not None, ends=ends)

    def _stamp(self, turn_id: str | None = None) -> Any:
        return {"run_id": turn_id or self.id, "path": (self.agent.name,), "at": self._clock.time()}
