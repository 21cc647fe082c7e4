"""The sessions and workers of a broker, for a server to look at: which there are, and the state of each.

Everything is read from the broker when it is requested. Knows nothing of how a call is sent to a session.
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
from .protocol import Placement, SendCallHead, Unreadable, WorkerInfo, from_json, to_json
from .store import last_seq

__all__ = ["Directory"]

T = TypeVar("T")


class Directory:
    """Reads which sessions and workers a broker has."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._placements: dict[str, Placement] = {}
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
        """The live workers."""
        connection = await self._connection()
        return _readable(WorkerInfo, await connection.last_per_key("workers"))

    async def agents(self) -> list[str]:
        """The agents that workers offer, those of the first worker first."""
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
            worker: Pins the session to the worker of this name.
            sub_agent: True if a turn of another session waits for it: then it may run in the place of a turn that
                waits.

        Raises:
            UsageError: The session exists and has another agent.
            NotFound: No worker offers the agent.
        """
        session_id = uuid.uuid4().hex if session_id is None else check_id("session", session_id)
        connection = await self._connection()
        if await connection.last("sessions", (session_id,)) is None:
            placement = Placement(await self._agent_for(agent, worker), worker, sub_agent)
            try:
                await connection.append("sessions", (session_id,), to_json(placement), expected_last=0)
            except Fenced:
                pass  # another process has created it at the same moment
        current = (await self._placement(session_id)).agent
        if agent not in (None, current):
            raise UsageError(f"session {session_id!r} exists already, with the agent {current!r}: it keeps that one")
        return await self.session(session_id)

    async def _agent_for(self, agent: str | None, worker: str | None) -> str:
        """The agent of a new session: one that is offered, by its own worker if that is live. Raises: NotFound."""
        workers = await self.workers()
        if not workers:
            raise NotFound("there is no worker: start one with `safepoint worker module:agent --nats URL`")
        own = [one for one in workers if one.name == worker]
        offered = _offered(own or workers)
        if agent is not None and agent not in offered:
            offering = f"{worker} offers" if own else "the workers offer"
            raise NotFound(f"there is no agent {agent!r}: {offering} {', '.join(offered)}")
        return agent or offered[0]

    async def _placement(self, session_id: str) -> Placement:
        if check_id("session", session_id) not in self._placements:
            entry = await (await self._connection()).last("sessions", (session_id,))
            if entry is None:
                raise NotFound(f"there is no session {session_id!r}: create it first")
            self._placements[session_id] = from_json(Placement, entry.data)
        return self._placements[session_id]

    async def sessions(self) -> list[SessionView]:
        """All sessions, the newest last."""
        connection = await self._connection()
        entries, live = await connection.last_per_key("sessions"), await connection.pending_sessions()
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(connection.last("log", entry.key)) for entry in entries]
        newest = {entry.key[0]: task.result() for entry, task in zip(entries, reads, strict=True)}
        views = []
        for entry in sorted(entries, key=lambda one: getattr(newest[one.key[0]], "position", 0)):
            name, last = entry.key[0], newest[entry.key[0]]
            placement = from_json(Placement, entry.data)
            seq = 0 if last is None else last_seq(last.data)
            views.append(await self.session(name) if name in live else SessionView(name, placement.agent, seq, False))
        return views

    async def _follower(self, session_id: str) -> LogFollower:
        """The follower of a session, caught up with its log."""
        await self._placement(session_id)
        connection = await self._connection()
        follower = self._followers.setdefault(session_id, LogFollower(connection, session_id, self._loop_tasks))
        await follower.catch_up()
        return follower

    async def session(self, session_id: str) -> SessionView:
        """One session, with its open turns, including those that no worker has seen yet."""
        placement, follower = await self._placement(session_id), await self._follower(session_id)
        unseen = await self._unseen(session_id, follower)
        turns = [TurnView(turn.id, turn.status) for turn in follower.state.open_turns]
        turns += unseen.values()
        return SessionView(session_id, placement.agent, follower.seq, True, tuple(turns))

    async def _unseen(self, session_id: str, follower: LogFollower) -> dict[str, TurnView]:
        """The turns in the inbox that are not in the log."""
        connection = await self._connection()
        entries = await connection.read("inbox", (session_id,))
        await follower.catch_up()  # after the inbox was read: a message that has left the inbox is in the log by then
        new = [one for one in _readable(SendCallHead, entries) if one.turn_id not in follower.state.turns]
        stopped = {entry.key[-1] for entry in await connection.last_per_key("stops", (session_id,))} if new else ()
        views: dict[str, TurnView] = {}
        for one in new:  # of two messages with the same id the first one counts, and the worker drops the second
            status: TurnStatus = "stopping" if one.turn_id in stopped else "queued"
            views.setdefault(one.turn_id, TurnView(one.turn_id, status, text=one.text))
        return views

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """One turn, or the turn that continues it."""
        follower = await self._follower(session_id)
        view = view_of(follower.state, turn_id)
        if view is None:
            unseen = await self._unseen(session_id, follower)
            view = unseen.get(turn_id) or view_of(follower.state, turn_id)
        if view is None:
            raise NotFound(f"there is no turn {turn_id!r} in session {session_id!r}")
        return view


def _offered(workers: Iterable[WorkerInfo]) -> list[str]:
    """The agents of the workers, each once, those of the first worker first."""
    return list(dict.fromkeys(agent for worker in workers for agent in worker.agents))


def _readable(kind: type[T], entries: Iterable[StreamEntry]) -> list[T]:
    """The entries that can be decoded. One from another version must not hide the others."""
    found: list[T] = []
    for entry in entries:
        try:
            found.append(from_json(kind, entry.data))
        except Unreadable:
            continue
    return found
