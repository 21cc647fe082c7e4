"""Owns what a server knows of sessions that run elsewhere: which there are, who works, and how each one stands.

All of it is read from the broker whenever it is asked for. Knows nothing of how something is asked of a session.
"""

import asyncio
import uuid
from collections.abc import Iterable
from typing import TypeVar

from ..errors import UsageError
from ..session.engine import SessionEnded
from ..session.host import NotFound, SessionView, TurnView, view_of
from ..session.loop_tasks import LoopTasks
from ..session.turn import TurnStatus, check_id
from .broker import Broker, BrokerConnection, Fenced, StreamEntry
from .log_follower import LogFollower
from .log_reader import last_seq
from .protocol import Placement, SendCallHead, Unreadable, WorkerInfo, from_json, to_json

__all__ = ["Directory"]

T = TypeVar("T")


class Directory:
    """The sessions of a broker, to look at."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._places: dict[str, Placement] = {}
        self._followers: dict[str, LogFollower] = {}
        self._connecting = asyncio.Lock()
        self._connected: BrokerConnection | None = None
        self._loop_tasks: LoopTasks
        self._closed = False

    async def _connection(self) -> BrokerConnection:
        async with self._connecting:
            if self._closed:
                raise SessionEnded("the host is closed: it takes no more turns")
            if self._connected is None:
                self._connected = await self._broker.connect("server")
                self._loop_tasks = LoopTasks()
            return self._connected

    async def workers(self) -> list[WorkerInfo]:
        """The workers that are there."""
        connection = await self._connection()
        return _readable(WorkerInfo, await connection.lasts("workers"))

    async def agents(self) -> list[str]:
        """The agents that workers offer, the first one's first."""
        return _offered(await self.workers())

    async def create(
        self,
        session_id: str | None = None,
        agent: str | None = None,
        *,
        worker: str | None = None,
        sub_agent: bool = False,
    ) -> SessionView:
        """Open a session.

        Args:
            session_id: Its id; by default a new one.
            agent: The agent; by default the first one that is offered.
            worker: It runs there and nowhere else.
            sub_agent: A turn of another session waits for it: it may run in the place of a turn that waits.

        Raises:
            UsageError: It is there already, and has another agent.
        """
        session_id = uuid.uuid4().hex if session_id is None else check_id("session", session_id)
        connection = await self._connection()
        if await connection.last("sessions", (session_id,)) is None:
            place = Placement(await self._agent_for(agent, worker), worker, sub_agent)
            try:
                await connection.append("sessions", (session_id,), to_json(place), after=0)
            except Fenced:
                pass  # somebody else has made it in this very moment
        has = (await self._place(session_id)).agent
        if agent not in (None, has):
            raise UsageError(f"session {session_id!r} is there already, with the agent {has!r}: it keeps that one")
        return await self.session(session_id)

    async def _agent_for(self, agent: str | None, worker: str | None) -> str:
        """The agent of a new session: one that is offered, by its own worker if that is there. Raises: NotFound."""
        workers = await self.workers()
        if not workers:
            raise NotFound("there is no worker: start one with `safepoint worker module:agent --nats URL`")
        own = [one for one in workers if one.name == worker]
        offered = _offered(own or workers)
        if agent is not None and agent not in offered:
            who = f"{worker} offers" if own else "the workers offer"
            raise NotFound(f"there is no agent {agent!r}: {who} {', '.join(offered)}")
        return agent or offered[0]

    async def _place(self, session_id: str) -> Placement:
        if check_id("session", session_id) not in self._places:
            entry = await (await self._connection()).last("sessions", (session_id,))
            if entry is None:
                raise NotFound(f"there is no session {session_id!r}: create it first")
            self._places[session_id] = from_json(Placement, entry.data)
        return self._places[session_id]

    async def sessions(self) -> list[SessionView]:
        """All sessions, the newest last."""
        connection = await self._connection()
        entries, live = await connection.lasts("sessions"), await connection.ordered()
        async with asyncio.TaskGroup() as group:
            lasts = [group.create_task(connection.last("log", entry.key)) for entry in entries]
        newest = {entry.key[0]: task.result() for entry, task in zip(entries, lasts, strict=True)}
        views = []
        for entry in sorted(entries, key=lambda one: getattr(newest[one.key[0]], "position", 0)):
            name, last = entry.key[0], newest[entry.key[0]]
            place: Placement = from_json(Placement, entry.data)
            seq = 0 if last is None else last_seq(last.data)
            views.append(await self.session(name) if name in live else SessionView(name, place.agent, seq, False))
        return views

    async def _follower(self, session_id: str) -> LogFollower:
        """The session as far as it is known, which is up to now."""
        await self._place(session_id)
        connection = await self._connection()
        follower = self._followers.setdefault(session_id, LogFollower(connection, session_id, self._loop_tasks))
        await follower.catch_up()
        return follower

    async def session(self, session_id: str) -> SessionView:
        """One session, with the turns that have not ended: those that no worker has seen yet included."""
        place, follower = await self._place(session_id), await self._follower(session_id)
        unseen = await self._unseen(session_id, follower)
        turns = [TurnView(turn.id, turn.status) for turn in follower.state.open_turns]
        turns += unseen.values()
        return SessionView(session_id, place.agent, follower.seq, True, tuple(turns))

    async def _unseen(self, session_id: str, follower: LogFollower) -> dict[str, TurnView]:
        """The turns in the inbox that are not in the log."""
        connection = await self._connection()
        entries = await connection.read("inbox", (session_id,))
        await follower.catch_up()  # what has left the inbox, also before it was read, is there
        new = [one for one in _readable(SendCallHead, entries) if one.turn_id not in follower.state.turns]
        stopped = {entry.key[-1] for entry in await connection.lasts("stops", (session_id,))} if new else ()
        views: dict[str, TurnView] = {}
        for one in new:  # of two with one id the first counts: whoever takes them drops the second
            status: TurnStatus = "stopping" if one.turn_id in stopped else "queued"
            views.setdefault(one.turn_id, TurnView(one.turn_id, status, said=one.text))
        return views

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """One turn, or the one that goes on with it."""
        follower = await self._follower(session_id)
        view = view_of(follower.state, turn_id)
        if view is None:
            unseen = await self._unseen(session_id, follower)
            view = unseen.get(turn_id) or view_of(follower.state, turn_id)
        if view is None:
            raise NotFound(f"there is no turn {turn_id!r} in session {session_id!r}")
        return view


def _offered(workers: Iterable[WorkerInfo]) -> list[str]:
    """Their agents, each once, the first one's first."""
    return list(dict.fromkeys(agent for worker in workers for agent in worker.agents))


def _readable(kind: type[T], entries: Iterable[StreamEntry]) -> list[T]:
    """What the entries say; without those of another version, which hide nothing of the rest."""
    found: list[T] = []
    for entry in entries:
        try:
            found.append(from_json(kind, entry.data))
        except Unreadable:
            continue
    return found
