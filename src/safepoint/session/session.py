"""Owns a live session as its users hold it: say something, follow what happens, stop a turn, go on, close.

Every method that drives a turn takes the caller's signal. Knows nothing of who is connected, nor of other sessions.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from ..abort import AbortReason, AbortSignal
from ..abort.reason import caller
from ..agent.agent import Agent
from ..agent.talk import AgentResult
from ..errors import UsageError
from ..run.events import TurnEdited, TurnForgotten
from ..run.messages import Message
from ..run.outcome import Outcome
from ..run.receipt import Receipt
from ..run.stop import StopAck, StopAt
from .admission import as_messages
from .ending import receipt_of
from .home import outlast
from .journal import BeforeEffect
from .lane import Lane, SessionBusy, SessionEnded, WhenBusy
from .log import Recorded
from .opening import Opening
from .presence import Presence
from .store import MemoryStore, Store
from .streaming import TurnStream
from .turn import MessagesFn, SessionTurn, TurnResult, check_id
from .working import RUNNING

__all__ = ["Session", "SessionBusy", "SessionEnded"]


class Session:
    """A conversation with an agent. Make one with `Session.open`."""

    def __init__(self, session_id: str, agent: Agent, store: Store, on_disconnect: float | None) -> None:
        self.id = check_id("session", session_id)
        self.agent = agent
        self._lane = lane = Lane(session_id, agent, store)
        self._presence = Presence(lane.clock, on_disconnect, lambda: lane.home.post(self._nobody_is_there))
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def open(
        cls,
        session_id: str,
        *,
        agent: Agent,
        store: Store | None = None,
        resume: bool = False,
        paused: bool = False,
        may_still_run: bool = False,
        on_disconnect: Literal["continue"] | float = "continue",
    ) -> "Opening[Session]":
        """`async with Session.open("s1", agent=agent) as session:`, or `session = await Session.open(…)`.

        resume         continue the turn that a crash has interrupted, or that another owner has given back
        paused         begin no turn until `resume()`
        may_still_run  whoever had the session before may be at work on it, as a worker that has lost its lease
        on_disconnect  "continue", or the seconds after the last reader has gone before the turn is stopped
        """
        grace = None if on_disconnect == "continue" else float(on_disconnect)

        async def opens() -> Session:
            session = cls(session_id, agent, MemoryStore() if store is None else store, grace)
            await session._lane.open(resume, paused, may_still_run)
            try:
                await session.saved()
            except BaseException:
                await session.close("it could not be opened")
                raise
            return session

        return Opening(opens)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self._lane.past.messages

    @property
    def last_seq(self) -> int:
        """The number of the newest event."""
        return self._lane.log.last

    def outcome_of(self, turn_id: str) -> Outcome[AgentResult] | None:
        """How a turn ended; None: there was no such turn, or it has not ended."""
        turn = self._lane.past.turns.get(turn_id)
        return None if turn is None or turn_id in self._lane.turns else turn.outcome

    def heir_of(self, turn_id: str) -> str:
        """The turn that goes on with this one, if it has lost its owner; else itself. Any thread."""
        return self._lane.past.heir(turn_id)

    @property
    def turns(self) -> dict[str, SessionTurn]:
        """The turns that have not ended, in the order of their acceptance."""
        return dict(self._lane.turns)

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
                   "interrupt": it makes way at once, and if it still has not a second or more later, the next such
                   message leaves behind what does not end; "reject": raises SessionBusy
        """
        turn = self._turn(turn_id, as_messages(text), signal, deadline, caller(1))
        return self._lane.admit(turn, when_busy)

    async def save_messages(
        self,
        messages: "str | Message | Sequence[str | Message] | MessagesFn",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        deadline: float | None = None,
    ) -> TurnResult:
        """Add messages, or what a function makes of the current ones, and let the agent answer."""
        self._refuse_inside("save_messages()")
        return await self._lane.admit(self._turn(turn_id, as_messages(messages), signal, deadline, caller(1)))

    async def continue_turn(
        self, turn_id: str | None = None, *, signal: AbortSignal | None = None, deadline: float | None = None
    ) -> TurnResult:
        """Go on with a turn that was stopped: only what has not run is run. By default the last one."""
        self._refuse_inside("continue_turn()")
        return await self.begin_again(turn_id, signal=signal, deadline=deadline)

    def begin_again(
        self, turn_id: str | None = None, *, signal: AbortSignal | None = None, deadline: float | None = None
    ) -> SessionTurn:
        """The same, as a turn that need not be waited for. Raises: UsageError; SessionBusy if one runs or waits."""
        turn = self._turn(None, (), signal, deadline, caller(1))
        turn.continues = self._lane.to_continue(turn_id)
        return self._lane.admit(turn)

    def stream(
        self,
        messages: "str | Message | Sequence[str | Message] | MessagesFn",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        deadline: float | None = None,
    ) -> TurnStream:
        """The same, as the events of exactly that turn: `async with`; closing it aborts that turn."""
        self._refuse_inside("stream()")
        after = self.last_seq
        turn = self._turn(turn_id, as_messages(messages), signal, deadline, caller(1))
        return TurnStream(self._lane.admit(turn), self.events(after))

    def _turn(
        self,
        turn_id: str | None,
        messages: tuple[Message, ...] | MessagesFn,
        signal: AbortSignal | None,
        deadline: float | None,
        origin: str | None,
    ) -> SessionTurn:
        stop = self._lane.stops.stop
        return SessionTurn(turn_id, messages, stop, signal=signal, deadline=deadline, origin=origin)

    @property
    def _inside(self) -> bool:
        """True: the code that asks is the work of a turn of this session."""
        turn = RUNNING.get()
        return turn is not None and self._lane.turns.get(turn.id) is turn

    def _refuse_inside(self, what: str) -> None:
        if self._inside:
            raise UsageError(f"{what} inside of a turn of session {self.id!r} would wait for itself: use send()")

    def stop(
        self,
        turn_id: str,
        at: StopAt | None = None,
        *,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | BaseException | str | None = None,
    ) -> StopAck:
        """Stop this turn, and no other. Answered at once; for an id not seen yet it is remembered. Any thread.

        at       when: at once, or at a safe point
        within   seconds; a safe point that is not reached by then is not waited for
        abandon  seconds from the abort, or from this call if that is later; what has not ended by then is left behind
        """
        outcome = self.outcome_of(turn_id)
        if outcome is not None:
            receipt = receipt_of(outcome)

            async def settled(timeout: float | None) -> Receipt:
                return receipt

            return StopAck("already_finished", "settled", f"turn {turn_id} has ended", turn_id, settled)
        ack = self._lane.stops.by_id(turn_id, at, within, abandon, reason, caller(1))
        told = f"no turn {turn_id} so far: if it comes, it will not begin"
        return ack or StopAck("unknown", "accepted", told, turn_id)

    def answer(self, question_id: str, text: str) -> bool:
        """Answer a question of the running turn. False: it does not wait for one (any more)."""
        return self._lane.questions.answer(question_id, text)

    def edit(self, turn_id: str, text: "str | Message | Sequence[str | Message]") -> bool:
        """Replace the messages of a turn that waits. False: it does not wait (any more)."""
        turn = self._lane.turns.get(turn_id)
        messages = as_messages(text)
        if turn is None or not turn.waits or turn.continues is not None or callable(messages):
            return False
        turn.messages = messages
        self._lane.add(TurnEdited(**self._lane.stamp(turn_id), turn_id=turn_id, messages=messages), keep=True)
        return True

    def remove(self, turn_id: str) -> bool:
        """Take a turn that waits out of the queue. False: it does not wait (any more)."""
        turn = self._lane.turns.get(turn_id)
        if turn is None or not turn.waits:
            return False
        self._lane.stops.stop(turn, StopAt.NOW, None, None, "removed from the queue", caller(1))
        return True

    def forget(self, turn_id: str) -> None:
        """Take the conversation back to before this turn, which must be the last. Raises: UsageError."""
        self._lane.check_live()
        last = self._lane.past.last_ended
        if last is None or last.id != turn_id:
            raise UsageError(f"only the last turn can be forgotten, which is {last.id if last else None!r}")
        if any(not turn.waits for turn in self._lane.turns.values()):
            raise UsageError("a turn runs: stop it first")
        self._lane.add(TurnForgotten(**self._lane.stamp(turn_id), turn_id=turn_id), keep=True)

    def check_before_effects(self, check: BeforeEffect) -> None:
        """Await this when a tool call is on record and before its body begins, and before a completed end is written.

        A worker looks here for stops that were recorded elsewhere. What it stops then does not begin, or complete.
        """
        self._lane.journal.before_effect = check

    def pause(self) -> None:
        """Begin no turn until `resume()`; the running one ends by itself."""
        self._lane.loop.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._lane.loop.resume()

    async def events(self, after: int = 0) -> AsyncGenerator[Recorded, None]:
        """Everything after this number, then what comes. Closing it stops nothing (but see `on_disconnect`)."""
        self._presence.came()
        try:
            async with aclosing(self._lane.log.follow(after)) as events:
                async for recorded in events:
                    yield recorded
        finally:
            self._presence.left()

    def _nobody_is_there(self) -> None:
        if not self._presence.readers:
            for turn in self.turns.values():
                cause = AbortReason("disconnected", "nobody was there")
                self._lane.stops.stop(turn, StopAt.NOW, None, None, cause, None)

    async def saved(self) -> None:
        """Wait until everything that has happened so far is in the store. Raises: what the store raised."""
        await self._lane.log.flushed(self.last_seq)

    async def close(self, reason: str = "closed") -> None:
        """Stop what runs and waits, at once, and end. A second call waits for the first.

        Called by the work of one of its own turns, it does not wait. Raises: what the store raised.
        """
        if self._closing is None:
            self._lane.closed = True
            self._presence.end()
            shut_down = self._lane.shut_down(AbortReason("shutdown", reason, caller(1)))
            self._closing = self._lane.home.spawn(shut_down, f"session {self.id}")
        if not self._inside:
            await outlast(self._closing)
