"""Owns the interface of a live session: send messages, read events, stop turns, go on, close.

Every method that drives a turn takes the caller's signal. Knows nothing of other sessions.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Generic, Literal, Never, Protocol, TypeVar

from ..abort import AbortReason, AbortSignal
from ..abort.clock import check_seconds
from ..abort.reason import caller, reason_from
from ..abort.renamed_arguments import accepts_deadline, renamed_timeout
from ..agent.agent import Agent
from ..agent.conversation import AgentResult
from ..errors import UsageError, require_method
from ..events import Event, SessionClosed, SessionOpened, TurnEdited, TurnEnded, TurnForgotten, TurnStarted
from ..messages import Message
from ..outcome import Outcome
from ..receipt import Receipt
from ..run.stop import Scope, StopAck, StopAt, StopOptions
from .disconnect_timer import DisconnectTimer
from .engine import SessionBusy, SessionEnded, SessionEngine, WhenBusy
from .log import BeforeEffect, LoggedEvent
from .loop_tasks import wait_uninterrupted
from .store import Store, check_store
from .turn import RUNNING, MessagesFn, SessionTurn, TurnOptions, TurnResult, as_messages, check_id, refuse_cycle
from .turn_endings import receipt_of

__all__ = ["AwaitableContext", "Session", "SessionBusy", "SessionEnded", "TurnStream"]

C = TypeVar("C", bound="AsyncClosable")
# Events of the session itself, which belong to no turn.
SESSION_EVENTS = (SessionOpened, SessionClosed)


class AsyncClosable(Protocol):
    """Anything with an async `close()`."""

    async def close(self) -> None:
        """Release it."""
        ...


class AwaitableContext(Generic[C]):
    """Something that is opened when it is awaited or entered. Leaving `async with` closes it.

    Args:
        open: Opens it and returns it.
    """

    def __init__(self, open: Callable[[], Awaitable[C]]) -> None:
        self._open = open
        self._opened: C | None = None

    def __await__(self) -> Generator[object, None, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


class TurnStream:
    """The events of one turn: `async with session.stream(["hi"]) as events: async for event in events: …`.

    Args:
        turn: The turn.
        events: The events of its session, from before the turn was accepted.

    Attributes:
        turn: The turn.
    """

    def __init__(self, turn: SessionTurn, events: AsyncGenerator[LoggedEvent, None]) -> None:
        self.turn = turn
        self._source = events
        self._events = self._follow()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def _follow(self) -> AsyncGenerator[Event, None]:
        if self.turn.result is not None and not self.turn.end_seq:
            return  # it was stopped before it was accepted, so it is not in the log
        with self.turn.awaited("reading its events"):
            async for event in self._events_of_turn():
                yield event

    async def _events_of_turn(self) -> AsyncGenerator[Event, None]:
        running = False
        async with aclosing(self._source) as logged_events:
            async for logged in logged_events:
                event = logged.event
                turn_id = getattr(event, "turn_id", None)
                # While it runs, an event that belongs to no turn of this session was passed on by one of its tools.
                if turn_id == self.turn.id or (running and turn_id is None and not isinstance(event, SESSION_EVENTS)):
                    yield event
                running = running or (turn_id == self.turn.id and isinstance(event, TurnStarted))
                if turn_id == self.turn.id and isinstance(event, TurnEnded):
                    return

    async def __aenter__(self) -> "TurnStream":
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.turn.result is None:
            self.turn.stop(StopAt.NOW, reason=AbortReason("disconnected", "its events were no longer read"))
        await self._events.aclose()
        await self._source.aclose()
        await self.turn.until_ended()


class Session:
    """A conversation with an agent. Make one with `Session.open`.

    Attributes:
        id: The id of the session.
        agent: The agent.
    """

    def __init__(self, session_id: str, agent: Agent, store: Store, on_disconnect: float | None) -> None:
        self.id = check_id("session", session_id)
        self.agent = agent
        self._engine = engine = SessionEngine(session_id, agent, store, lambda: self._disconnect_timer.turn_started())
        self._disconnect_timer = DisconnectTimer(
            engine.clock, on_disconnect, lambda: engine.loop_tasks.call(self._stop_without_readers)
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
        """Open a new or a stored session.

        `async with Session.open("s1", agent=agent) as session:`, or `session = await Session.open(…)`.

        Args:
            session_id: The id of the session.
            agent: The agent.
            store: Where it is kept; by default in memory.
            resume: Continue the turn that a crash has interrupted, or that another owner has given back.
            paused: Begin no turn until `resume()`.
            may_still_run: Whether the previous owner may still be running, such as a worker that has lost its lease.
            on_disconnect: "continue", or the seconds after the last reader has left before the turn is stopped.

        Raises:
            SessionInUse: The session is live elsewhere.
            StoreError: It cannot be read or written.
            UsageError: An argument has the wrong type.
        """
        require_method(agent, "run", "agent must be an Agent")
        checked_store = check_store(store)
        grace = None if on_disconnect == "continue" else float(on_disconnect)

        async def open_session() -> Session:
            session = cls(session_id, agent, checked_store, grace)
            await session._engine.open(resume, paused, may_still_run)
            try:
                await session.saved()
            except BaseException:
                await session.close(reason="it could not be opened")
                raise
            return session

        return AwaitableContext(open_session)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far. Any thread."""
        return self._engine.messages

    @property
    def last_seq(self) -> int:
        """The number of the newest event. Any thread."""
        return self._engine.log.last_seq

    def outcome_of(self, turn_id: str) -> Outcome[AgentResult] | None:
        """Return how a turn ended; `None` if there was no such turn, or it has not ended. Any thread."""
        turn = self._engine.state.turns.get(turn_id)
        return None if turn is None or turn_id in self._engine.turns else turn.outcome

    def sent_messages_of(self, turn_id: str) -> tuple[Message, ...] | None:
        """Return the messages with which a turn was accepted, before any edit.

        `None` if there is no such turn, or a function made its messages.
        """
        turn = self._engine.state.turns.get(turn_id)
        return None if turn is None else turn.sent_messages

    def successor_of(self, turn_id: str) -> str:
        """Return the turn that continues this one after it lost its owner; else itself. Any thread."""
        return self._engine.state.successor(turn_id)

    @property
    def turns(self) -> dict[str, SessionTurn]:
        """The turns that have not ended, in the order of their acceptance. Any thread."""
        return dict(self._engine.turns)

    def send(
        self,
        text: "str | Message",
        *,
        turn_id: str | None = None,
        signal: AbortSignal | None = None,
        timeout: float | None = None,
        when_busy: WhenBusy = "queue",
        **other: Never,
    ) -> SessionTurn:
        """Send a message. The turn has its id at once, and can be stopped from now on.

        Args:
            text: The message.
            turn_id: The id of the turn. By default it is given a new one.
            signal: Stops the turn when it is aborted.
            timeout: Seconds that the turn may take.
            when_busy: "queue": the turn begins after those that run and wait. "steer": the running turn makes way after
                its tool calls. "interrupt": the running turn makes way at once; if it has not a second or more later,
                the next such message no longer waits for what does not end. "reject": raises SessionBusy.
            **other: Nothing else is accepted, except for `deadline`, the old name of `timeout`.

        Returns:
            The turn. Await it for its result.

        Raises:
            SessionBusy: A turn runs or waits, and `when_busy` is "reject".
            SessionEnded: The session takes no more turns.
            UsageError: The message is empty, the id was used before, or the caller is not on the event loop of the
                session.
        """
        if other:
            timeout = renamed_timeout(timeout, other, "Session.send")
        self._require_session_loop("send")
        turn = self._new_turn(turn_id, as_messages(text), TurnOptions(signal, timeout, caller(1)))
        return self._engine.admit(turn, when_busy)

    def refuse(self, turn_id: str, text: str, error: Exception) -> None:
        """Record a turn that cannot be run, and end it as failed. It is not part of the conversation.

        Args:
            turn_id: The id of the turn.
            text: Its message.
            error: Why it cannot be run.

        Raises:
            UsageError: The id is empty or was used before.
            SessionEnded: The session takes no more turns.
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
        """Add messages, let the agent answer, and wait for the result. Any event loop.

        Args:
            messages: A text, a message, several of them, or a function that is given the current messages and returns
                the new ones.
            turn_id: The id of the turn. By default it is given a new one.
            signal: Stops the turn when it is aborted.
            timeout: Seconds that the turn may take.

        Raises:
            SessionEnded: The session takes no more turns.
            UsageError: There is no message, the id was used before, or the call would wait for itself.
        """
        self._refuse_cycle("save_messages()")
        turn = self._new_turn(turn_id, as_messages(messages), TurnOptions(signal, timeout, caller(1)))
        return await self._engine.loop_tasks.run(self._admit_and_wait(turn))

    async def _admit_and_wait(self, turn: SessionTurn) -> TurnResult:
        return await self._engine.admit(turn)

    @accepts_deadline
    def continue_turn(
        self, turn_id: str | None = None, *, signal: AbortSignal | None = None, timeout: float | None = None
    ) -> SessionTurn:
        """Go on with a turn that was stopped or has failed. Only work that has not run is run.

        Args:
            turn_id: The turn to go on with; by default the last one.
            signal: Stops the new turn when it is aborted.
            timeout: Seconds that the new turn may take.

        Returns:
            The new turn, which continues the other one. Await it for its result.

        Raises:
            UsageError: There is no such turn, or nothing to go on with.
            SessionBusy: A turn runs or waits.
        """
        self._refuse_cycle("continue_turn()")
        self._require_session_loop("continue_turn")
        turn = self._new_turn(None, (), TurnOptions(signal, timeout, caller(1)))
        turn.continues = self._engine.turn_to_continue(turn_id)
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
        """Add messages, and read the events of exactly that turn. Closing the stream stops the turn.

        `async with session.stream(["hi"]) as events: async for event in events: …`. Arguments and errors are those of
        `save_messages`.
        """
        self._refuse_cycle("stream()")
        self._require_session_loop("stream")
        after = self.last_seq
        turn = self._new_turn(turn_id, as_messages(messages), TurnOptions(signal, timeout, caller(1)))
        return TurnStream(self._engine.admit(turn), self.events(after))

    def _new_turn(
        self, turn_id: str | None, messages: tuple[Message, ...] | MessagesFn, options: TurnOptions
    ) -> SessionTurn:
        return SessionTurn(turn_id, messages, self._engine.stops.stop, options=options)

    @property
    def _called_by_own_turn(self) -> bool:
        """Whether the calling code is the work of a turn of this session."""
        turn = RUNNING.get()
        return turn is not None and self._engine.turns.get(turn.id) is turn

    def _refuse_cycle(self, what: str) -> None:
        """Refuse to wait for a new turn, which has to wait for all that have not ended. Raises: UsageError."""
        refuse_cycle(f"{what} of session {self.id!r}", list(self._engine.turns.values()))

    def _require_session_loop(self, method: str) -> None:
        """Refuse a call from another thread or event loop.

        Only one thread may add to the log: two could give two events the same number, and one of them would be lost.

        Raises:
            UsageError: The caller is not on the event loop of the session.
        """
        instead = f"call it there with loop.call_soon_threadsafe(session.{method}, …)"
        if method in ("events", "stream"):
            instead = "read the events in a task of that event loop"
        elif method in ("send", "continue_turn"):
            instead += ", or await session.save_messages(…), which works in the event loop of any thread"
        self._engine.loop_tasks.require_loop(f"{method}() of session {self.id!r}", instead)

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
        """Stop this turn and no other. Any thread.

        A stop for an id that does not exist yet is remembered: if such a turn comes, it does not begin. If the turn has
        lost its owner, the turn that continues it is stopped.

        Args:
            turn_id: The turn.
            at: When: at once, which is the default, or at a safe point.
            scope: For a stop at a safe point. "root", the default: agents inside of the turn go on until the turn is at
                its safe point. "tree": each of them stops at its own. A stop at once always stops the whole tree.
            within: Seconds after which the turn is stopped at once if it has not reached its safe point.
            abandon: Seconds from the abort, or from this call if that is later, after which the turn ends without what
                has not ended.
            reason: Why.

        Returns:
            The answer, at once. Await its `settled()` for the receipt.

        Raises:
            UsageError: An argument does not fit.
        """
        options = StopOptions(at, scope, within, abandon, reason)
        successor = self.successor_of(check_id("turn", turn_id))
        outcome = self.outcome_of(successor)
        if outcome is not None:
            receipt = receipt_of(outcome)

            async def settled(timeout: float | None) -> Receipt:
                return receipt

            if self._engine.state.interrupted == successor:
                abort_reason = reason_from(reason, caller(1))
                self._engine.loop_tasks.call(self._engine.stops.stop_resume, successor, abort_reason)
                message = f"turn {turn_id} has lost its process, and will not be resumed"
                return StopAck("accepted", "accepted", message, turn_id, settled)
            return StopAck("already_finished", "settled", f"turn {turn_id} has ended", turn_id, settled)
        ack = self._engine.stops.stop_by_id(successor, options, caller(1))
        if ack is None:
            return StopAck("unknown", "accepted", f"no turn {turn_id} so far: if it comes, it will not begin", turn_id)
        return replace(ack, id=turn_id)

    def answer(self, question_id: str, text: str) -> bool:
        """Answer a question of the running turn. False if the question does not wait for an answer. Any thread."""
        return self._engine.questions.answer(question_id, text)

    def edit(self, turn_id: str, text: "str | Message | Sequence[str | Message]") -> bool:
        """Replace the messages of a queued turn. False if the turn is not queued, or continues another one."""
        self._require_session_loop("edit")
        turn = self._engine.turns.get(turn_id)
        messages = as_messages(text)
        if turn is None or not turn.queued or turn.continues is not None or callable(messages):
            return False
        turn.messages = messages
        self._engine.add(TurnEdited(**self._engine.stamp(turn_id), turn_id=turn_id, messages=messages), durable=True)
        return True

    def remove(self, turn_id: str) -> bool:
        """Take a queued turn out of the queue. False if the turn is not queued."""
        self._require_session_loop("remove")
        turn = self._engine.turns.get(self.successor_of(turn_id))
        if turn is None or not turn.queued:
            return False
        self._engine.stops.stop(turn, StopOptions(StopAt.NOW, reason="removed from the queue"), caller(1))
        return True

    def forget(self, turn_id: str) -> None:
        """Take the last turn out of the conversation. What it did elsewhere is not undone.

        Args:
            turn_id: The last turn.

        Raises:
            UsageError: It is not the last turn, or a turn is running.
            SessionEnded: The session takes no more turns.
        """
        self._require_session_loop("forget")
        self._engine.check_live()
        turn_id, last = self.successor_of(turn_id), self._engine.state.last_ended
        if last is None or last.id != turn_id:
            raise UsageError(f"only the last turn can be forgotten, which is {last.id if last else None!r}")
        if any(not turn.queued for turn in self._engine.turns.values()):
            raise UsageError(f"turn {turn_id!r} cannot be forgotten while another turn runs: stop that one first")
        self._engine.add(TurnForgotten(**self._engine.stamp(turn_id), turn_id=turn_id), durable=True)

    @property
    def unrecorded_stops(self) -> dict[str, AbortReason]:
        """The reasons of the stops that are not in the store because it failed, by turn."""
        return self._engine.stops.unrecorded

    def check_before_effects(self, check: BeforeEffect) -> None:
        """Set a function that is awaited before each effect, to read stops that were recorded elsewhere.

        Args:
            check: Awaited when a tool call is on record and before its body begins, and before a completed end is
                written. If it stops the turn, the call does not begin, or the turn does not complete.
        """
        self._engine.journal.before_effect = check

    def pause(self) -> None:
        """Begin no turn until `resume()`. The running one runs to its end. Any thread."""
        self._engine.pause()

    def resume(self) -> None:
        """Let turns begin again after a pause. Any thread."""
        self._engine.resume()

    async def events(self, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Yield all events after this number, then those that come, until the session is closed.

        Closing it stops no turn, unless the session was opened with a time for `on_disconnect`.

        Args:
            after: The number of the last event that the caller has.

        Raises:
            UsageError: The caller is not on the event loop of the session.
            StoreError: The log cannot be read.
        """
        self._require_session_loop("events")
        self._disconnect_timer.reader_joined()
        try:
            async with aclosing(self._engine.log.follow(after)) as events:
                async for logged in events:
                    yield logged
        finally:
            self._disconnect_timer.reader_left()

    def _stop_without_readers(self) -> None:
        if not self._disconnect_timer.readers:
            for turn in self.turns.values():
                cause = AbortReason("disconnected", "no reader was connected")
                self._engine.stops.stop(turn, StopOptions(StopAt.NOW, reason=cause), None)

    async def saved(self) -> None:
        """Wait until everything that has happened so far is in the store. Raises: what the store raised."""
        await self._engine.loop_tasks.run(self._engine.log.flushed(self.last_seq))

    @property
    def ended(self) -> bool:
        """Whether it was closed, or its store or loop failed. Then it takes no more turns: open it again."""
        return self._engine.ended

    async def close(self, *, within: float = 0.0, reason: str = "closed") -> None:
        """Stop all turns, and close the session. A second call waits for the first. Any event loop.

        A call by the work of one of its own turns does not wait, because that turn would wait for itself. If the event
        loop of the session is closed, the session is only released.

        Args:
            within: Seconds in which the running turn may reach a safe point; then it is stopped at once.
            reason: Why, for the receipts of the turns that are stopped.

        Raises:
            StoreError: Something could not be written. The session is closed all the same.
        """
        shut_down = partial(self._engine.shut_down, within=check_seconds("within", within))
        await self._end(shut_down, AbortReason("shutdown", reason, caller(1)))

    async def hand_over(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """Close the session so that its next owner continues where it was, as a host does that is shut down.

        Queued turns stay queued. The running turn is stopped, and can be resumed.

        Args:
            within: Seconds in which the running turn may reach a safe point; then it is stopped at once.
            reason: Why, for the receipt of the turn that is stopped.

        Raises:
            StoreError: Something could not be written. The session is closed all the same.
        """
        hand_over = partial(self._engine.hand_over, within=check_seconds("within", within))
        await self._end(hand_over, AbortReason("shutdown", reason, caller(1)))

    async def _end(self, end: Callable[[AbortReason], Coroutine[object, None, None]], cause: AbortReason) -> None:
        if self._engine.loop_tasks.loop_closed:
            self._disconnect_timer.end()
            await self._engine.release_after_loop_closed()
        else:
            await self._engine.loop_tasks.run(self._end_in_loop(end, cause))

    async def _end_in_loop(
        self, end: Callable[[AbortReason], Coroutine[object, None, None]], cause: AbortReason
    ) -> None:
        if self._closing is None:
            self._engine.closed = True
            self._disconnect_timer.end()
            self._closing = self._engine.loop_tasks.spawn(end(cause), f"session {self.id}")
        if not self._called_by_own_turn:
            await wait_uninterrupted(self._closing)
