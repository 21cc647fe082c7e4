"""Owns the sessions of this process: which are live, which are stored, and which of them have work left to do.

Knows nothing of the network.
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
from ..abort.renamed_arguments import accepts_deadline
from ..agent.agent import Agent
from ..errors import UsageError, describe
from ..run.stop import Scope, StopAck, StopAt
from .acknowledgements import ChangeAck, change_ack, stop_ack
from .admission import as_messages
from .engine import SessionEnded, WhenBusy
from .host import NotFound, SessionView, TurnView, agents_by_name, refuse_other_text, view_of
from .log import PAGE, LoggedEvent, read
from .loop_tasks import LoopTasks
from .session import Session
from .store import Store, check_store
from .stored_sessions import StoredSession, StoredSessions
from .turn import SessionTurn, check_id

__all__ = ["LocalHost"]

log = logging.getLogger("safepoint")
R = TypeVar("R")


class LocalHost:
    """The sessions of this process.

    agents         one agent, or several by name; the first is the default
    resume         go on with the turns that a crash or a shutdown has interrupted, from the first use of the host on
    on_disconnect  as in `Session.open`
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
        # What somebody has stopped in a session that broke down, and the store does not know of: by session and turn.
        self._unrecorded: dict[str, dict[str, AbortReason]] = {}
        # One opens a session at a time. A lock lives as long as somebody holds it or waits for it.
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._news = asyncio.Event()  # a session has become live, or the host was closed
        self._recovery: asyncio.Task[list[str]] | None = None
        self._closed = False

    async def agents(self) -> list[str]:
        """The agents, the default one first."""
        return list(self._agents)

    # Sessions that are live

    async def create(self, session_id: str | None = None, agent: str | None = None) -> SessionView:
        """Open a session. Raises: UsageError if it is there already and has another agent."""
        session_id = uuid.uuid4().hex if session_id is None else check_id("session", session_id)
        await self._with(session_id, lambda session: None, agent, new=True)
        if agent is not None and agent != (has := self._names.get(session_id, agent)):
            raise UsageError(f"session {session_id!r} is there already, with the agent {has!r}: it keeps that one")
        return await self.session(session_id)

    async def live(self, session_id: str) -> Session:
        """The session itself, for code in this process: a tool that drives a turn of it, say. Raises: NotFound."""
        return (await self._with(session_id, lambda session: None))[0]

    def _alive(self, session_id: str) -> Session | None:
        """The live session. One that was closed or broke down is none; a host that goes keeps those it has."""
        session = self._live.get(check_id("session", session_id))
        return None if session is None or (session.ended and not self._closed) else session

    async def _with(
        self, session_id: str, act: Callable[[Session], R], agent: str | None = None, *, new: bool = False
    ) -> tuple[Session, R]:
        """Do something with a session, which is opened if it is not live.

        In one that is opened for it, it is done before any turn begins there.
        """
        self._used()
        session = self._alive(session_id)
        if session is not None:  # nobody who wants to stop something waits for a session that is being opened
            return session, act(session)
        gate = self._gates.setdefault(session_id, asyncio.Lock())
        async with gate:  # two who ask at once get one session
            session = self._alive(session_id)
            if session is not None:
                return session, act(session)
            session = await self._open(session_id, agent, new)
            try:
                return session, act(session)
            finally:
                session.resume()

    async def _open(self, session_id: str, agent: str | None, new: bool) -> Session:
        """Open a session, and begin no turn in it yet."""
        self._check_open()
        name = self._name_of(await self._stored.agent_of(session_id))
        if name is None and not new:
            raise NotFound(f"there is no session {session_id!r}: create it first")
        if name is not None and agent not in (None, name):
            raise UsageError(f"session {session_id!r} is there already, with the agent {name!r}: it keeps that one")
        name = name or agent or next(iter(self._agents))
        if name not in self._agents:
            raise NotFound(f"there is no agent {name!r}: the agents are {', '.join(self._agents)}")
        await self._let_go(session_id)
        session = await Session.open(
            session_id,
            agent=self._agents[name],
            store=self._store,
            resume=self._resume,
            paused=True,
            on_disconnect=self._on_disconnect,
        )
        for turn_id, reason in self._unrecorded.pop(session_id, {}).items():
            session.stop(turn_id, reason=reason)  # before anything begins there, so that it does not go on
        self._live[session_id], self._names[session_id] = session, name
        self._stored.forget(session_id)
        self._tell()
        return session

    async def _let_go(self, session_id: str) -> None:
        """A session that was closed or broke down is over; what went wrong there was told to those concerned."""
        session = self._live.get(session_id)
        if session is None:
            return
        try:
            await session.close(reason="it broke down")
        except Exception as error:
            log.warning("session %s broke down, and is opened anew: %s", session_id, describe(error))
            self._unrecorded.setdefault(session_id, {}).update(session.unrecorded_stops)
        self._drop(session_id, session)

    def _drop(self, session_id: str, session: Session) -> None:
        if self._live.get(session_id) is session:
            del self._live[session_id], self._names[session_id]

    def _name_of(self, stored: str | None) -> str | None:
        """How the agent of a stored session is called here: by its own name, or the name it has here."""
        if stored is None:
            return None
        names = [name for name, agent in self._agents.items() if stored in (name, agent.name)]
        return names[0] if names else stored

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionEnded("the host is closed: it takes no more turns")

    # What a crash or a shutdown has left behind

    def _used(self) -> None:
        if self._resume and not self._closed:
            self._recovering()

    def _recovering(self) -> "asyncio.Task[list[str]]":
        """The recovery, which begins with the first call, and again if it has failed."""
        recovery = self._recovery
        if recovery is None or (recovery.done() and (recovery.cancelled() or recovery.exception() is not None)):
            self._recovery = recovery = LoopTasks().spawn(self._recover(), "recovery")
            recovery.add_done_callback(_log_failure)
        return recovery

    async def recover(self) -> list[str]:
        """Open the sessions with turns that wait or can be resumed: they go on without anybody looking.

        The first call does it, or the first use of a host with `resume=True`; later ones give the same answer.

        Returns:
            The ids of these sessions.

        Raises:
            StoreError: The store cannot say which sessions there are. What fails in one session is logged.
        """
        if self._recovery is None:
            self._check_open()
        return await asyncio.shield(self._recovering())

    async def _recover(self) -> list[str]:
        opened = []
        for info in await self._store.sessions():
            if self._closed:
                break
            try:
                if info.id not in self._live and await self._stored.has_turns(info, self._resume):
                    await self._with(info.id, lambda session: None)
                    opened.append(info.id)
            except Exception as error:  # the others go on all the same
                log.warning("session %s cannot go on: %s", info.id, describe(error))
        return opened

    # Views: they read, and open nothing

    async def sessions(self) -> list[SessionView]:
        """All sessions."""
        self._used()
        views = []
        for info in await self._store.sessions():
            if self._alive(info.id) is not None:
                views.append(await self.session(info.id))
            else:
                name = self._name_of(await self._stored.agent_of(info.id))
                views.append(SessionView(info.id, name or "?", info.last_seq, False))
        return views

    async def session(self, session_id: str) -> SessionView:
        """One session."""
        self._used()
        session = self._alive(session_id)
        if session is not None:
            turns = tuple(TurnView(turn.id, turn.status) for turn in session.turns.values())
            return SessionView(session_id, self._names[session_id], session.last_seq, True, turns)
        stored = await self._read(session_id)
        turns = tuple(TurnView(turn.id, turn.status) for turn in stored.state.open_turns)
        return SessionView(session_id, self._name_of(stored.agent) or "?", stored.seq, False, turns)

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """One turn."""
        self._used()
        session, check = self._alive(session_id), check_id("turn", turn_id)
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
        """Everything after this number, then what comes: also of a session that is not live yet."""
        self._used()
        if self._alive(session_id) is None:
            await self._read(session_id)
        while (session := self._alive(session_id)) is None:
            news = self._news
            page = await self._store.read(session_id, after, PAGE)
            for record in page:
                yield read(record)
                after = record.seq
            if self._closed:
                return
            if not page:
                await news.wait()
        async with aclosing(session.events(after)) as events:
            async for recorded in events:
                yield recorded

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
        """Say something."""
        as_messages(text)

        def send(session: Session) -> SessionTurn | None:
            self._check_open()
            said = None if turn_id is None else session.said_of(check_id("turn", turn_id))
            if said is not None:
                refuse_other_text(session_id, str(turn_id), text, said)
                return None
            return session.send(text, turn_id=turn_id, timeout=timeout, when_busy=when_busy)

        session, turn = await self._with(session_id, send)
        if turn is None:
            await session.saved()
            return await self.turn(session_id, str(turn_id))
        return await self._accepted(session, turn)

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Go on with a stopped turn."""

        def continued(session: Session) -> SessionTurn:
            self._check_open()
            return session.continue_turn(turn_id)

        return await self._accepted(*await self._with(session_id, continued))

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
        """Stop a turn."""

        def stop(session: Session) -> StopAck:
            return session.stop(turn_id, at, scope=scope, within=within, abandon=abandon, reason=reason)

        session = self._live.get(check_id("session", session_id))
        if session is not None and session.successor_of(check_id("turn", turn_id)) in session.turns:
            return await stop_ack(session, stop(session))  # also while the session is being closed
        return await stop_ack(*await self._with(session_id, stop))

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question."""
        return (await self._with(session_id, lambda session: session.answer(question_id, text)))[1]

    async def edit(self, session_id: str, turn_id: str, text: str) -> ChangeAck:
        """Replace the message of a turn that waits."""
        return await change_ack(*await self._with(session_id, lambda session: session.edit(turn_id, text)))

    async def remove(self, session_id: str, turn_id: str) -> ChangeAck:
        """Take a turn that waits out of the queue."""
        return await change_ack(*await self._with(session_id, lambda session: session.remove(turn_id)))

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Take the conversation back."""
        session, _ = await self._with(session_id, lambda session: session.forget(turn_id))
        await session.saved()

    # The end

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Let a session go."""
        session = self._live.get(session_id)
        if session is None:
            raise NotFound(f"session {session_id!r} is not live")
        try:
            await session.close(reason=reason)
        finally:
            self._drop(session_id, session)

    async def close(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """Leave everything to whoever serves these sessions next. Raises: what a store raised, when all is done."""
        check_seconds("within", within)
        self._closed = True
        self._tell()
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
        for gate in list(self._gates.values()):  # one that is being opened is closed too
            async with gate:
                pass
        failures: list[Exception] = []

        async def let_go(session: Session) -> None:
            try:
                await session.hand_over(within=within, reason=reason)
            except Exception as error:  # the others are closed all the same
                failures.append(error)

        async with asyncio.TaskGroup() as group:
            for session in self._live.values():
                group.create_task(let_go(session))
        self._live.clear()
        await self._store.close()
        if failures:
            raise failures[0]


def _log_failure(recovery: "asyncio.Task[list[str]]") -> None:
    """Nobody may await the recovery."""
    if not recovery.cancelled() and (error := recovery.exception()) is not None:
        log.error("the host cannot go on with what was left behind: %s", describe(error))


def _view(session: Session, turn_id: str) -> TurnView | None:
    """A turn of a live session, or the one that goes on with it."""
    continued_by = session.successor_of(turn_id)
    live, outcome = session.turns.get(continued_by), session.outcome_of(continued_by)
    if live is None and outcome is None:
        return None
    status = live.status if live is not None else outcome.status if outcome is not None else "queued"
    return TurnView(turn_id, status, outcome, continued_by=None if continued_by == turn_id else continued_by)
