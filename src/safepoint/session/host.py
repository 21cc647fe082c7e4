"""Owns how every edge talks to sessions: by ids, in plain data. `LocalHost` keeps the live sessions of this process.

Knows nothing of the network: a host on other machines has the same face.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, Protocol

from ..abort import AbortError, AbortReason, AbortSignal
from ..abort.clock import check_seconds
from ..agent.agent import Agent
from ..agent.talk import AgentResult
from ..errors import SafepointError
from ..run.events import SessionOpened
from ..run.outcome import Outcome
from ..run.stop import StopAck, StopAt
from .lane import SessionEnded, WhenBusy
from .log import Recorded, read
from .session import Session
from .store import MemoryStore, Store
from .turn import SessionTurn, TurnStatus

__all__ = ["Host", "LocalHost", "NotFound", "SessionView", "TurnView"]


class NotFound(SafepointError):
    """There is no such session, turn or agent: the message says which, and what there is."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as an edge sees it. `said`: of one that is accepted and in no log yet, its message."""

    id: str
    status: TurnStatus
    outcome: Outcome[AgentResult] | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as an edge sees it. `last_seq`: read its events from there on."""

    id: str
    agent: str
    last_seq: int
    live: bool
    turns: tuple[TurnView, ...] = ()


class Host(Protocol):
    """Sessions, wherever they run. Raises: NotFound; what the session raises."""

    async def agents(self) -> list[str]:
        """The agents a session may have, the default one first."""
        ...

    async def create(self, session_id: str | None = None, agent: str | None = None) -> SessionView:
        """Open a session, new or stored."""
        ...

    async def sessions(self) -> list[SessionView]:
        """All sessions, the newest last."""
        ...

    async def session(self, session_id: str) -> SessionView:
        """One session, with the turns that have not ended."""
        ...

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        turn_id: str | None = None,
        deadline: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> TurnView:
        """Say something. When it returns, the message is in the store."""
        ...

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Go on with a turn that was stopped; does not wait for its end."""
        ...

    async def stop(
        self,
        session_id: str,
        turn_id: str,
        *,
        at: StopAt | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | str | None = None,
    ) -> StopAck:
        """Stop this turn and no other. The arguments are those of `Session.stop`."""
        ...

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question."""
        ...

    async def edit(self, session_id: str, turn_id: str, text: str) -> bool:
        """Replace the message of a turn that waits."""
        ...

    async def remove(self, session_id: str, turn_id: str) -> bool:
        """Take a turn that waits out of the queue."""
        ...

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Take the conversation back to before its last turn."""
        ...

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """One turn, with its outcome if it has ended."""
        ...

    def events(self, session_id: str, after: int = 0) -> AsyncGenerator[Recorded, None]:
        """Everything after this number, then what comes."""
        ...

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Stop what runs there, and let it go. It stays in the store."""
        ...

    async def close(self, within: float = 0.0, reason: str = "shutdown") -> None:
        """Stop everything: at safe points for so many seconds, then at once."""
        ...


class LocalHost:
    """The sessions of this process.

    agents         one agent, or several by name; the first is the default
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
        self._agents = {agents.name: agents} if isinstance(agents, Agent) else dict(agents)
        self._store: Store = store or MemoryStore()
        self._resume = resume
        self._on_disconnect: Literal["continue"] | float = on_disconnect
        self._live: dict[str, Session] = {}
        self._names: dict[str, str] = {}
        self._gate = asyncio.Lock()
        self._closed = False

    async def agents(self) -> list[str]:
        """The agents, the default one first."""
        return list(self._agents)

    async def create(self, session_id: str | None = None, agent: str | None = None) -> SessionView:
        """Open a session."""
        session_id = session_id or uuid.uuid4().hex
        await self._open(session_id, agent, new=True)
        return await self.session(session_id)

    async def live(self, session_id: str) -> Session:
        """The session itself, for code in this process: a tool that drives a turn of it, say. Raises: NotFound."""
        return await self._open(session_id)

    async def _open(self, session_id: str, agent: str | None = None, *, new: bool = False) -> Session:
        if session_id in self._live:  # nobody who wants to stop something waits for a session that is being opened
            return self._live[session_id]
        async with self._gate:  # two who ask at once get one session
            if session_id in self._live:
                return self._live[session_id]
            self._check_open()
            name = await self._stored_agent(session_id)
            if name is None and not new:
                raise NotFound(f"there is no session {session_id!r}: create it first")
            name = name or agent or next(iter(self._agents))
            if name not in self._agents:
                raise NotFound(f"there is no agent {name!r}: the agents are {', '.join(self._agents)}")
            opening = Session.open(
                session_id,
                agent=self._agents[name],
                store=self._store,
                resume=self._resume,
                on_disconnect=self._on_disconnect,
            )
            session = self._live[session_id] = await opening
            self._names[session_id] = name
            return session

    async def _stored_agent(self, session_id: str) -> str | None:
        """The agent a stored session has had: by its own name, or the name it has here."""
        for record in await self._store.read(session_id, 0, 1):
            event = read(record).event
            if isinstance(event, SessionOpened):
                names = [name for name, agent in self._agents.items() if event.agent in (name, agent.name)]
                return names[0] if names else event.agent
        return None

    async def sessions(self) -> list[SessionView]:
        """All sessions."""
        views = []
        for info in await self._store.sessions():
            live = info.id in self._live
            name = self._names.get(info.id) or await self._stored_agent(info.id) or "?"
            views.append(await self.session(info.id) if live else SessionView(info.id, name, info.last_seq, False))
        return views

    async def session(self, session_id: str) -> SessionView:
        """One session."""
        session = await self._open(session_id)
        turns = tuple(TurnView(turn.id, turn.status) for turn in session.turns.values())
        return SessionView(session_id, self._names[session_id], session.last_seq, True, turns)

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        turn_id: str | None = None,
        deadline: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> TurnView:
        """Say something."""
        session = await self._open(session_id)
        self._check_open()
        return await self._accepted(
            session, session.send(text, turn_id=turn_id, deadline=deadline, when_busy=when_busy)
        )

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Go on with a stopped turn."""
        session = await self._open(session_id)
        self._check_open()
        return await self._accepted(session, session.begin_again(turn_id))

    def _check_open(self) -> None:
        if self._closed:
            raise SessionEnded("the host is closed: it takes no more turns")

    async def _accepted(self, session: Session, turn: SessionTurn) -> TurnView:
        await session.saved()
        return TurnView(turn.id, turn.status, None if turn.result is None else turn.result.outcome)

    async def stop(
        self,
        session_id: str,
        turn_id: str,
        *,
        at: StopAt | None = None,
        within: float | None = None,
        abandon: float | None = None,
        reason: AbortReason | str | None = None,
    ) -> StopAck:
        """Stop a turn."""
        session = await self._open(session_id)
        return session.stop(turn_id, at, within=within, abandon=abandon, reason=reason)

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question."""
        return (await self._open(session_id)).answer(question_id, text)

    async def edit(self, session_id: str, turn_id: str, text: str) -> bool:
        """Replace the message of a turn that waits."""
        return (await self._open(session_id)).edit(turn_id, text)

    async def remove(self, session_id: str, turn_id: str) -> bool:
        """Take a turn that waits out of the queue."""
        return (await self._open(session_id)).remove(turn_id)

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Take the conversation back."""
        session = await self._open(session_id)
        session.forget(turn_id)
        await session.saved()

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """One turn."""
        session = await self._open(session_id)
        live = session.turns.get(turn_id)
        if live is not None:
            return TurnView(turn_id, live.status)
        outcome = session.outcome_of(turn_id)
        if outcome is None:
            raise NotFound(f"there is no turn {turn_id!r} in session {session_id!r}")
        return TurnView(turn_id, outcome.status, outcome)

    async def events(self, session_id: str, after: int = 0) -> AsyncGenerator[Recorded, None]:
        """Everything after this number, then what comes."""
        session = await self._open(session_id)
        async with aclosing(session.events(after)) as events:
            async for recorded in events:
                yield recorded

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Let a session go."""
        session = self._live.get(session_id)
        if session is None:
            raise NotFound(f"session {session_id!r} is not live")
        try:
            await session.close(reason)
        finally:
            self._live.pop(session_id, None)
            self._names.pop(session_id, None)

    async def close(self, within: float = 0.0, reason: str = "shutdown") -> None:
        """Stop everything, and let it go. Raises: what a store raised, when all that is done."""
        check_seconds("within", within)
        self._closed = True
        if within > 0:
            await self._at_safe_points(within, reason)
        failures: list[Exception] = []

        async def let_go(session: Session) -> None:
            try:
                await session.close(reason)
            except Exception as error:  # the others are closed all the same
                failures.append(error)

        async with self._gate, asyncio.TaskGroup() as group:  # one that is being opened is closed too
            for session in self._live.values():
                group.create_task(let_go(session))
        self._live.clear()
        await self._store.close()
        if failures:
            raise failures[0]

    async def _at_safe_points(self, within: float, reason: str) -> None:
        cause = AbortReason("shutdown", reason)
        turns = [turn for session in self._live.values() for turn in session.turns.values()]
        for turn in turns:
            turn.stop(StopAt.SAFE_POINT, within=within, reason=cause)
        try:
            for turn in turns:
                await AbortSignal.timeout(within).run(turn.wait())
        except AbortError:
            pass  # what is left is stopped at once
