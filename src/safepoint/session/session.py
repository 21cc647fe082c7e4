"""Owns a live session as its users hold it: say something, follow what happens, stop a turn, go on, close.

Every method that drives a turn takes the caller's signal. Knows nothing of who is connected, nor of other sessions.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from ..abort import AbortReason, AbortSignal
from ..abort.clock import check_seconds
from ..abort.reason import caller, reason_from
from ..abort.renamed_arguments import accepts_deadline
from ..agent.agent import Agent
from ..agent.conversation import AgentResult
from ..errors import UsageError, require_method
from ..run.events import TurnEdited, TurnForgotten
from ..run.messages import Message
from ..run.outcome import Outcome
from ..run.receipt import Receipt
from ..run.stop import Scope, StopAck, StopAt, StopOptions
from .admission import as_messages
from .awaitable_context import AwaitableContext
from .disconnect_timer import DisconnectTimer
from .engine import SessionBusy, SessionEnded, SessionEngine, WhenBusy
from .journal import BeforeEffect
from .log import LoggedEvent
from .loop_tasks import wait_uninterrupted
from .store import Store, check_store
from .turn import MessagesFn, SessionTurn, TurnResult, check_id
from .turn_endings import receipt_of
from .turn_stream import TurnStream
from .wait_cycles import RUNNING, refuse_cycle

__all__ = ["Session", "SessionBusy", "SessionEnded"]


class Session:
    """A conversation with an agent. Make one with `Session.open`."""

    def __init__(self, session_id: str, agent: Agent, store: Store, on_disconnect: float | None) -> None:
        self.id = check_id("session", session_id)
        self.agent = agent
        self._engine = engine = SessionEngine(session_id, agent, store, lambda: self._presence.turn_begins())
        self._presence = DisconnectTimer(
            engine.clock, on_disconnect, lambda: engine.loop_tasks.post(self._nobody_is_there)
        )
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
    ) -> "AwaitableContext[Session]":
        """`async with Session.open("s1", agent=agent) as session:`, or `session = await Session.open(…)`.

        resume         continue the turn that a crash has interrupted, or that another owner has given back
        paused         begin no turn until `resume()`
        may_still_run  whoever had the session before may be at work on it, as a worker that has lost its lease
        on_disconnect  "continue", or the seconds after the last reader has gone before the turn is stopped
        """
        require_method(agent, "run", "agent must be an Agent")
        kept = check_store(store)
        grace = None if on_disconnect == "continue" else float(on_disconnect)

        async def opens() -> Session:
            session = cls(session_id, agent, kept, grace)
            await session._engine.open(resume, paused, may_still_run)
            try:
                await session.saved()
            except BaseException:
                await session.close(reason="it could not be opened")
                raise
            return session

        return AwaitableContext(opens)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far. Any thread."""
        return self._engine.messages

    @property
    def last_seq(self) -> int:
        """The number of the newest event. Any thread."""
        return self._engine.log.last

    def outcome_of(self, turn_id: str) -> Outcome[AgentResult] | None:
        """How a turn ended; None: there was no such turn, or it has not ended. Any thread."""
        turn = self._engine.state.turns.get(turn_id)
        return None if turn is None or turn_id in self._engine.turns else turn.outcome

    def said_of(self, turn_id: str) -> tuple[Message, ...] | None:
        """The messages with which a turn was accepted, before any edit. None: no such turn, or a function made them."""
        turn = self._engine.state.turns.get(turn_id)
        return None if turn is None else turn.asked

    def successor_of(self, turn_id: str) -> str:
        """The turn that goes on with this one, if it has lost its owner; else itself. Any thread."""
        return self._engine.state.successor(turn_id)

    @property
    def turns(self) -> dict[str, SessionTurn]:
        """The turns that have not ended, in the order of their acceptance. Any thread."""
        return dict(self._engine.turns)

    @accepts_deadline
    def send(
        self,
        text: "str | Message",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        timeout: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> SessionTurn:
        """Say something. The turn has its id at once, and can be stopped from now on.

        when_busy  "queue": after what runs and waits; "steer": the running turn makes way after its tool calls;
                   "interrupt": it makes way at once, and if it still has not a second or more later, the next such
                   message leaves behind what does not end; "reject": raises SessionBusy
        """
        self._refuse_elsewhere("send")
        turn = self._turn(turn_id, as_messages(text), signal, timeout, caller(1))
        return self._engine.admit(turn, when_busy)

    def refuse(self, turn_id: str, text: str, error: Exception) -> None:
        """Put a turn on record that cannot be worked on, and end it as failed. It is not part of the conversation.

        Raises:
            UsageError: the id is empty or was used before.
            SessionEnded: the session takes no more turns.
        """
        messages = as_messages(text) if text.strip() else ()
        self._engine.refuse(SessionTurn(turn_id, messages, self._engine.stops.stop), error)

    @accepts_deadline
    async def save_messages(
        self,
        messages: "str | Message | Sequence[str | Message] | MessagesFn",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        timeout: float | None = None,
    ) -> TurnResult:
        """Add messages, or what a function makes of the current ones, and let the agent answer. Any event loop."""
        self._refuse_cycle("save_messages()")
        turn = self._turn(turn_id, as_messages(messages), signal, timeout, caller(1))
        return await self._engine.loop_tasks.bring(self._admitted(turn))

    async def _admitted(self, turn: SessionTurn) -> TurnResult:
        return await self._engine.admit(turn)

    @accepts_deadline
    def continue_turn(
        self, turn_id: str | None = None, *, signal: AbortSignal | None = None, timeout: float | None = None
    ) -> SessionTurn:
        """Go on with a turn that was stopped or has failed: only what has not run is run.

        Args:
            turn_id: Which one; by default the last.
            signal: Stops the new turn when it is aborted.
            timeout: Seconds that the new turn may take.

        Returns:
            The new turn, which continues the other one. Await it for its result.

        Raises:
            UsageError: There is no such turn, or nothing to go on with.
            SessionBusy: A turn runs or waits.
        """
        self._refuse_cycle("continue_turn()")
        self._refuse_elsewhere("continue_turn")
        turn = self._turn(None, (), signal, timeout, caller(1))
        turn.continues = self._engine.to_continue(turn_id)
        return self._engine.admit(turn)

    @accepts_deadline
    def stream(
        self,
        messages: "str | Message | Sequence[str | Message] | MessagesFn",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        timeout: float | None = None,
    ) -> TurnStream:
        """The same, as the events of exactly that turn: `async with`; closing it aborts that turn."""
        self._refuse_cycle("stream()")
        self._refuse_elsewhere("stream")
        after = self.last_seq
        turn = self._turn(turn_id, as_messages(messages), signal, timeout, caller(1))
        return TurnStream(self._engine.admit(turn), self.events(after))

    def _turn(
        self,
        turn_id: str | None,
        messages: tuple[Message, ...] | MessagesFn,
        signal: AbortSignal | None,
        timeout: float | None,
        origin: str | None,
    ) -> SessionTurn:
        stop = self._engine.stops.stop
        return SessionTurn(turn_id, messages, stop, signal=signal, timeout=timeout, origin=origin)

    @property
    def _inside(self) -> bool:
        """True: the code that asks is the work of a turn of this session."""
        turn = RUNNING.get()
        return turn is not None and self._engine.turns.get(turn.id) is turn

    def _refuse_cycle(self, what: str) -> None:
        """A turn that is accepted now has to wait for all that have not ended. Raises: UsageError."""
        refuse_cycle(f"{what} of session {self.id!r}", list(self._engine.turns.values()))

    def _refuse_elsewhere(self, method: str) -> None:
        """What changes the log is done by one thread: two would give two events one number, and lose one of them."""
        instead = f"hand it over with loop.call_soon_threadsafe(session.{method}, …)"
        if method in ("events", "stream"):
            instead = "read the events in a task of that event loop"
        elif method in ("send", "continue_turn"):
            instead += ", or await session.save_messages(…), which any thread's event loop may do"
        self._engine.loop_tasks.require(f"{method}() of session {self.id!r}", instead)

    def stop(
        self,
        turn_id: str,
        at: StopAt | None = None,
        *,
        scope: Scope | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | BaseException | str | None = None,
    ) -> StopAck:
        """Stop this turn, and no other. Answered at once; for an id not seen yet it is remembered. Any thread.

        A turn that has lost its owner is stopped by its id too: what stops is the turn that goes on with it.

        at       when: at once, or at a safe point
        scope    of a safe point: "root" (the default), agents inside of it go on until its own; "tree", each stops at
                 its own. At once always means the whole tree
        within   seconds; a safe point that is not reached by then is not waited for
        abandon  seconds from the abort, or from this call if that is later; what has not ended by then is left behind
        """
        options = StopOptions(at, scope, within, abandon, reason)
        successor = self.successor_of(check_id("turn", turn_id))
        outcome = self.outcome_of(successor)
        if outcome is not None:
            receipt = receipt_of(outcome)

            async def settled(timeout: float | None) -> Receipt:
                return receipt

            if self._engine.state.interrupted == successor:
                why = reason_from(reason, caller(1))
                self._engine.loop_tasks.post(self._engine.give_up, successor, why)
                told = f"turn {turn_id} has lost its process, and will not be resumed"
                return StopAck("accepted", "accepted", told, turn_id, settled)
            return StopAck("already_finished", "settled", f"turn {turn_id} has ended", turn_id, settled)
        ack = self._engine.stops.by_id(successor, options, caller(1))
        if ack is None:
            return StopAck("unknown", "accepted", f"no turn {turn_id} so far: if it comes, it will not begin", turn_id)
        return replace(ack, id=turn_id)

    def answer(self, question_id: str, text: str) -> bool:
        """Answer a question of the running turn. False: it does not wait for one (any more). Any thread."""
        return self._engine.questions.answer(question_id, text)

    def edit(self, turn_id: str, text: "str | Message | Sequence[str | Message]") -> bool:
        """Replace the messages of a turn that waits. False: it does not wait (any more)."""
        self._refuse_elsewhere("edit")
        turn = self._engine.turns.get(turn_id)
        messages = as_messages(text)
        if turn is None or not turn.waits or turn.continues is not None or callable(messages):
            return False
        turn.messages = messages
        self._engine.add(TurnEdited(**self._engine.stamp(turn_id), turn_id=turn_id, messages=messages), keep=True)
        return True

    def remove(self, turn_id: str) -> bool:
        """Take a turn that waits out of the queue. False: it does not wait (any more)."""
        self._refuse_elsewhere("remove")
        turn = self._engine.turns.get(self.successor_of(turn_id))
        if turn is None or not turn.waits:
            return False
        self._engine.stops.stop(turn, StopOptions(StopAt.NOW, reason="removed from the queue"), caller(1))
        return True

    def forget(self, turn_id: str) -> None:
        """Take the conversation back to before this turn, which must be the last. Raises: UsageError."""
        self._refuse_elsewhere("forget")
        self._engine.check_live()
        turn_id, last = self.successor_of(turn_id), self._engine.state.last_ended
        if last is None or last.id != turn_id:
            raise UsageError(f"only the last turn can be forgotten, which is {last.id if last else None!r}")
        if any(not turn.waits for turn in self._engine.turns.values()):
            raise UsageError("a turn runs: stop it first")
        self._engine.add(TurnForgotten(**self._engine.stamp(turn_id), turn_id=turn_id), keep=True)

    @property
    def unrecorded_stops(self) -> dict[str, AbortReason]:
        """Of a session that broke down: the stops that are not in the store, with their reasons, by turn."""
        return self._engine.unrecorded_stops

    def check_before_effects(self, check: BeforeEffect) -> None:
        """Await this when a tool call is on record and before its body begins, and before a completed end is written.

        A worker looks here for stops that were recorded elsewhere. What it stops then does not begin, or complete.
        """
        self._engine.journal.before_effect = check

    def pause(self) -> None:
        """Begin no turn until `resume()`; the running one ends by itself. Any thread."""
        self._engine.loop.pause()

    def resume(self) -> None:
        """Go on after a pause. Any thread."""
        self._engine.loop.resume()

    async def events(self, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Everything after this number, then what comes. Closing it stops nothing (but see `on_disconnect`)."""
        self._refuse_elsewhere("events")
        self._presence.came()
        try:
            async with aclosing(self._engine.log.follow(after)) as events:
                async for recorded in events:
                    yield recorded
        finally:
            self._presence.left()

    def _nobody_is_there(self) -> None:
        if not self._presence.readers:
            for turn in self.turns.values():
                cause = AbortReason("disconnected", "nobody was there")
                self._engine.stops.stop(turn, StopOptions(StopAt.NOW, reason=cause), None)

    async def saved(self) -> None:
        """Wait until everything that has happened so far is in the store. Raises: what the store raised."""
        await self._engine.loop_tasks.bring(self._engine.log.flushed(self.last_seq))

    @property
    def ended(self) -> bool:
        """True: it was closed, or broke down. It takes no more turns: open it again."""
        return self._engine.ended

    async def close(self, *, within: float = 0.0, reason: str = "closed") -> None:
        """Stop what runs and waits, and end. A second call waits for the first. Any event loop.

        Called by the work of one of its own turns, it does not wait. If the event loop of the session is closed, only
        what the session holds is released.

        Args:
            within: Seconds in which the running turn may reach a safe point; then it is stopped at once.
            reason: Why, for the receipts of the turns that are stopped.

        Raises:
            StoreError: Something could not be written. The session is closed all the same.
        """
        shut_down = partial(self._engine.shut_down, within=check_seconds("within", within))
        await self._end(shut_down, AbortReason("shutdown", reason, caller(1)))

    async def hand_over(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """End as a host does that is shut down: whoever opens the session next goes on where it was.

        Messages that wait stay queued. The running turn is stopped and can be resumed.

        Args:
            within: Seconds in which the running turn may reach a safe point; then it is stopped at once.
            reason: Why, for the receipt of the turn that is stopped.

        Raises:
            StoreError: Something could not be written. The session is closed all the same.
        """
        hand_over = partial(self._engine.hand_over, within=check_seconds("within", within))
        await self._end(hand_over, AbortReason("shutdown", reason, caller(1)))

    async def _end(self, end: Callable[[AbortReason], Coroutine[Any, Any, None]], cause: AbortReason) -> None:
        if self._engine.loop_tasks.gone:
            self._presence.end()
            await self._engine.let_go()
        else:
            await self._engine.loop_tasks.bring(self._end_at_home(end, cause))

    async def _end_at_home(self, end: Callable[[AbortReason], Coroutine[Any, Any, None]], cause: AbortReason) -> None:
        if self._closing is None:
            self._engine.closed = True
            self._presence.end()
            self._closing = self._engine.loop_tasks.spawn(end(cause), f"session {self.id}")
        if not self._inside:
            await wait_uninterrupted(self._closing)
