"""Owns the sessions of this process: which are live, which are stored, and which have turns left to run.

Knows nothing of the network.

**One live session per id.** A session is opened by its first command. Opening awaits the store, so two commands for the
same session could both find it not live and open it twice. `_with_session` therefore takes a lock per session id, and
looks again when it has the lock. A session that is live is used without the lock: a stop must not wait while another
command opens something. Looking and acting happen without an await in between, so the session cannot be closed
meanwhile. The locks are in a weak dictionary: one that nothing holds or waits for is gone.

**Nothing begins before the first command.** A session that is opened for a command is opened paused, the command is
carried out, and only then do turns begin. So a stop for a queued turn of a stored session arrives before that turn can
begin, although opening the session queues it again.

**A broken session.** If the store of a session has failed, the next command closes it and opens it again. Stops that
the store did not take are kept in `_unrecorded_stops` and repeated in the new session before anything begins there;
otherwise the reopened session would go on with a turn that a person has stopped.

**Recovery.** It runs at most once at a time, in a task of its own, because it may be started by a view that must not
wait for it. A recovery that failed is started again by the next use. A session that cannot be opened is logged and does
not keep the others from going on.

**Hand-over.** `close` sets `_closed` first, so that no command opens or accepts anything from then on. Then it waits
for the recovery and, by taking each lock once, for every session that is being opened at that moment; such a session is
live afterwards and is handed over with the others. In the other order it would be left open, and no other process could
have it.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

from ..abort import AbortReason
from ..abort.clock import check_seconds
from ..abort.event_loop import Broadcast
from ..abort.renamed_arguments import accepts_deadline
from ..agent.agent import Agent
from ..errors import UsageError, describe
from ..run.stop import Scope, StopAck, StopAt, StopKeywords
from .engine import SessionEnded, WhenBusy
from .host import (
    ChangeAck,
    NotFound,
    SessionView,
    TurnView,
    agents_by_name,
    change_ack,
    refuse_other_text,
    stop_ack,
    view_of,
)
from .log import PAGE, LoggedEvent, decode_record
from .loop_tasks import LoopTasks
from .session import Session
from .store import Store, check_store
from .stored_sessions import StoredSession, StoredSessions
from .turn import SessionTurn, as_messages, check_id

__all__ = ["LocalHost"]

log = logging.getLogger("safepoint")
R = TypeVar("R")


class LocalHost:
    """The sessions of this process.

    Args:
        agents: One agent, or several by name. The first one is the default.
        store: Where sessions are kept; by default in memory.
        resume: Go on with the turns that a crash or a shutdown has interrupted, from the first use of the host on.
        on_disconnect: As in `Session.open`.

    Raises:
        UsageError: An argument has the wrong type.
    """

    def __init__(
        self,
        agents: Agent | Mapping[str, Agent],
        store: Store | None = None,
        *,
        resume: bool = False,
        on_disconnect: Literal["continue"] | float = "continue",
    ) -> None:
        self._agents = agents_by_name(agents)
        self._store = check_store(store)
        self._stored = StoredSessions(self._store)
        self._resume = resume
        self._on_disconnect: Literal["continue"] | float = on_disconnect
        self._live: dict[str, Session] = {}
        self._names: dict[str, str] = {}
        # Stops that the store of a broken session did not take: session → turn → reason.
        self._unrecorded_stops: dict[str, dict[str, AbortReason]] = {}
        self._opening_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._sessions_changed = Broadcast()  # a session has become live, or the host is closed
        self._recovery: asyncio.Task[list[str]] | None = None
        self._closed = False

    async def agents(self) -> list[str]:
        """Return the names of the agents, the default one first."""
        return list(self._agents)

    # Sessions that are live

    async def create(self, session_id: str | None = None, agent: str | None = None) -> SessionView:
        """Open a new or a stored session. Raises: UsageError if it has another agent."""
        session_id = uuid.uuid4().hex if session_id is None else check_id("session", session_id)
        await self._with_session(session_id, lambda session: None, agent, new=True)
        if agent is not None and agent != (has := self._names.get(session_id, agent)):
            raise UsageError(f"session {session_id!r} exists already, with the agent {has!r}: it keeps that one")
        return await self.session(session_id)

    async def live(self, session_id: str) -> Session:
        """Return the session itself, for code in this process, such as a tool that sends to it. Raises: NotFound."""
        return (await self._with_session(session_id, lambda session: None))[0]

    def _live_session(self, session_id: str) -> Session | None:
        """Return the live session, if there is one that takes turns. While the host closes, any live session counts."""
        session = self._live.get(check_id("session", session_id))
        return None if session is None or (session.ended and not self._closed) else session

    async def _with_session(
        self, session_id: str, act: Callable[[Session], R], agent: str | None = None, *, new: bool = False
    ) -> tuple[Session, R]:
        """Carry out a command in a session, which is opened if it is not live.

        In a session that is opened for the command, the command is carried out before any turn begins there.

        Args:
            session_id: The session.
            act: The command.
            agent: The agent of a new session.
            new: Whether a session that does not exist is made.

        Returns:
            The session, and what the command returned.
        """
        self._recover_on_use()
        session = self._live_session(session_id)
        if session is not None:  # without the lock: a stop must not wait while a session is being opened
            return session, act(session)
        lock = self._opening_locks.setdefault(session_id, asyncio.Lock())
        async with lock:  # two commands at once get one session
            session = self._live_session(session_id)
            if session is not None:
                return session, act(session)
            session = await self._open(session_id, agent, new)
            try:
                return session, act(session)
            finally:
                session.resume()

    async def _open(self, session_id: str, agent: str | None, new: bool) -> Session:
        """Open a session, in which no turn begins yet."""
        self._check_open()
        name = self._agent_name(await self._stored.agent_of(session_id))
        if name is None and not new:
            raise NotFound(f"there is no session {session_id!r}: create it first")
        if name is not None and agent not in (None, name):
            raise UsageError(f"session {session_id!r} exists already, with the agent {name!r}: it keeps that one")
        name = name or agent or next(iter(self._agents))
        if name not in self._agents:
            raise NotFound(f"there is no agent {name!r}: the agents are {', '.join(self._agents)}")
        await self._close_broken(session_id)
        session = await Session.open(
            session_id,
            agent=self._agents[name],
            store=self._store,
            resume=self._resume,
            paused=True,
            on_disconnect=self._on_disconnect,
        )
        for turn_id, reason in self._unrecorded_stops.pop(session_id, {}).items():
            session.stop(turn_id, reason=reason)  # the session is paused: the turn has not gone on yet
        self._live[session_id], self._names[session_id] = session, name
        self._stored.discard(session_id)
        self._sessions_changed.notify()
        return session

    async def _close_broken(self, session_id: str) -> None:
        """Close a session that was closed elsewhere or whose store or loop failed, so that it can be opened again.

        Its callers have the error already.
        """
        session = self._live.get(session_id)
        if session is None:
            return
        try:
            await session.close(reason="it broke down")
        except Exception as error:
            log.warning("session %s broke down, and is opened again: %s", session_id, describe(error))
            self._unrecorded_stops.setdefault(session_id, {}).update(session.unrecorded_stops)
        self._drop(session_id, session)

    def _drop(self, session_id: str, session: Session) -> None:
        if self._live.get(session_id) is session:
            del self._live[session_id], self._names[session_id]

    def _agent_name(self, stored: str | None) -> str | None:
        """Return the name that the agent of a stored session has in this host. The log has the agent's own name."""
        if stored is None:
            return None
        names = [name for name, agent in self._agents.items() if stored in (name, agent.name)]
        return names[0] if names else stored

    def _check_open(self) -> None:
        if self._closed:
            raise SessionEnded("the host is closed: it takes no more turns")

    # Turns that a crash or a shutdown has left behind

    def _recover_on_use(self) -> None:
        if self._resume and not self._closed:
            self._recovery_task()

    def _recovery_task(self) -> "asyncio.Task[list[str]]":
        """Return the task of the recovery. The first call starts it, and so does a call after it has failed."""
        recovery = self._recovery
        if recovery is None or (recovery.done() and (recovery.cancelled() or recovery.exception() is not None)):
            self._recovery = recovery = LoopTasks().spawn(self._recover(), "recovery")
            recovery.add_done_callback(_log_failure)
        return recovery

    async def recover(self) -> list[str]:
        """Open the sessions in which turns are queued or can be resumed, so that they go on.

        The first call does it, or the first use of a host with `resume=True`. Later calls return the same ids.

        Returns:
            The ids of these sessions.

        Raises:
            StoreError: The store cannot list its sessions. Errors of one session are logged.
        """
        if self._recovery is None:
            self._check_open()
        return await asyncio.shield(self._recovery_task())

    async def _recover(self) -> list[str]:
        opened = []
        for info in await self._store.sessions():
            if self._closed:
                break
            try:
                if info.id not in self._live and await self._stored.has_turns(info, self._resume):
                    await self._with_session(info.id, lambda session: None)
                    opened.append(info.id)
            except Exception as error:  # one session must not keep the others from going on
                log.warning("session %s cannot go on: %s", info.id, describe(error))
        return opened

    # Views, which read and open nothing

    async def sessions(self) -> list[SessionView]:
        """Return all sessions, the one with the newest event last."""
        self._recover_on_use()
        views = []
        for info in await self._store.sessions():
            if self._live_session(info.id) is not None:
                views.append(await self.session(info.id))
            else:
                name = self._agent_name(await self._stored.agent_of(info.id))
                views.append(SessionView(info.id, name or "?", info.last_seq, False))
        return views

    async def session(self, session_id: str) -> SessionView:
        """Return one session, with the turns that have not ended."""
        self._recover_on_use()
        session = self._live_session(session_id)
        if session is not None:
            turns = tuple(TurnView(turn.id, turn.status) for turn in session.turns.values())
            return SessionView(session_id, self._names[session_id], session.last_seq, True, turns)
        stored = await self._read(session_id)
        turns = tuple(TurnView(turn.id, turn.status) for turn in stored.state.open_turns)
        return SessionView(session_id, self._agent_name(stored.agent) or "?", stored.seq, False, turns)

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """Return one turn, or the one that continues it."""
        self._recover_on_use()
        session, check = self._live_session(session_id), check_id("turn", turn_id)
        view = view_of((await self._read(session_id)).state, check) if session is None else _view(session, check)
        if view is None:
            raise NotFound(f"there is no turn {turn_id!r} in session {session_id!r}")
        return view

    async def _read(self, session_id: str) -> StoredSession:
        stored = await self._stored.get(session_id)
        if stored is None:
            raise NotFound(f"there is no session {session_id!r}: create it first")
        return stored

    async def events(self, session_id: str, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Yield all events after this number, then those that come, even if the session is not live yet."""
        self._recover_on_use()
        if self._live_session(session_id) is None:
            await self._read(session_id)
        while (session := self._live_session(session_id)) is None:
            changed = self._sessions_changed.next  # taken before the look, so that a change in between is not missed
            page = await self._store.read(session_id, after, PAGE)
            for record in page:
                yield decode_record(record)
                after = record.seq
            if self._closed:
                return
            if not page:
                await changed.wait()
        async with aclosing(session.events(after)) as events:
            async for logged in events:
                yield logged

    # Commands

    @accepts_deadline
    async def send(
        self,
        session_id: str,
        text: str,
        *,
        turn_id: str | None = None,
        timeout: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> TurnView:
        """Send a message, and wait until it is in the store."""
        as_messages(text)

        def send(session: Session) -> SessionTurn | None:
            self._check_open()
            sent = None if turn_id is None else session.sent_messages_of(check_id("turn", turn_id))
            if sent is not None:
                refuse_other_text(session_id, str(turn_id), text, sent)
                return None
            return session.send(text, turn_id=turn_id, timeout=timeout, when_busy=when_busy)

        session, turn = await self._with_session(session_id, send)
        if turn is None:
            await session.saved()
            return await self.turn(session_id, str(turn_id))
        return await self._accepted(session, turn)

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Go on with a turn that was stopped or has failed."""

        def continue_turn(session: Session) -> SessionTurn:
            self._check_open()
            return session.continue_turn(turn_id)

        return await self._accepted(*await self._with_session(session_id, continue_turn))

    async def _accepted(self, session: Session, turn: SessionTurn) -> TurnView:
        await session.saved()
        return TurnView(turn.id, turn.status, None if turn.result is None else turn.result.outcome)

    async def stop(
        self,
        session_id: str,
        turn_id: str,
        at: StopAt | None = None,
        *,
        scope: Scope | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | str | None = None,
    ) -> StopAck:
        """Stop this turn, or the one that continues it, and no other."""
        how: StopKeywords = {"scope": scope, "within": within, "abandon": abandon, "reason": reason}
        session = self._live.get(check_id("session", session_id))
        if session is not None and session.successor_of(check_id("turn", turn_id)) in session.turns:
            return await stop_ack(session, session.stop(turn_id, at, **how))  # even while the session is being closed
        return await stop_ack(*await self._with_session(session_id, lambda opened: opened.stop(turn_id, at, **how)))

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question. False if the question does not wait for an answer."""
        return (await self._with_session(session_id, lambda session: session.answer(question_id, text)))[1]

    async def edit(self, session_id: str, turn_id: str, text: str) -> ChangeAck:
        """Replace the message of a queued turn."""
        return await change_ack(*await self._with_session(session_id, lambda session: session.edit(turn_id, text)))

    async def remove(self, session_id: str, turn_id: str) -> ChangeAck:
        """Take a queued turn out of the queue."""
        return await change_ack(*await self._with_session(session_id, lambda session: session.remove(turn_id)))

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Take the last turn out of the conversation."""
        session, _ = await self._with_session(session_id, lambda session: session.forget(turn_id))
        await session.saved()

    # Closing

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Stop all turns of a session, and close it. It stays in the store."""
        session = self._live.get(session_id)
        if session is None:
            raise NotFound(f"session {session_id!r} is not live")
        try:
            await session.close(reason=reason)
        finally:
            self._drop(session_id, session)

    async def close(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """Hand all sessions over to their next owner: see `Host.close`.

        Raises:
            StoreError: Something could not be written. All sessions are closed all the same.
        """
        check_seconds("within", within)
        self._closed = True
        self._sessions_changed.notify()
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
        for lock in list(self._opening_locks.values()):  # wait for sessions that are being opened now
            async with lock:
                pass
        failures: list[Exception] = []

        async def hand_over(session: Session) -> None:
            try:
                await session.hand_over(within=within, reason=reason)
            except Exception as error:  # the other sessions are handed over all the same
                failures.append(error)

        async with asyncio.TaskGroup() as group:
            for session in self._live.values():
                group.create_task(hand_over(session))
        self._live.clear()
        await self._store.close()
        if failures:
            raise failures[0]


def _log_failure(recovery: "asyncio.Task[list[str]]") -> None:
    """Log why the recovery failed: it may be that nothing awaits it."""
    if not recovery.cancelled() and (error := recovery.exception()) is not None:
        log.error("the host cannot go on with the turns that were left behind: %s", describe(error))


def _view(session: Session, turn_id: str) -> TurnView | None:
    """Make the view of a turn of a live session; `None` if there is no such turn."""
    continued_by = session.successor_of(turn_id)
    live, outcome = session.turns.get(continued_by), session.outcome_of(continued_by)
    if live is None and outcome is None:
        return None
    status = live.status if live is not None else outcome.status if outcome is not None else "queued"
    return TurnView(turn_id, status, outcome, continued_by=None if continued_by == turn_id else continued_by)
