"""Owns the protocols by which clients (page, API, command line) use sessions: ids and plain data.

Knows nothing of the network: a host in this process and one on other machines have the same methods.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ..abort import AbortReason
from ..agent.agent import Agent
from ..agent.conversation import AgentResult
from ..errors import SafepointError, UsageError, describe, require_method
from ..outcome import Outcome
from ..run.stop import AckLevel, Scope, StopAck, StopAt
from .engine import WhenBusy
from .log import LoggedEvent
from .session import Session
from .session_state import SessionState
from .turn import TurnStatus, as_messages

__all__ = [
    "NOT_RECORDED",
    "ChangeAck",
    "Host",
    "NotFound",
    "SessionAccess",
    "SessionView",
    "SessionViews",
    "TurnChanges",
    "TurnCommands",
    "TurnView",
    "agents_by_name",
    "change_ack",
    "refuse_other_text",
    "stop_ack",
    "view_of",
]

# How long an answer waits for the store. This is real time, because a disk does not follow a fake clock.
ANSWER_SECONDS = 0.25
NOT_RECORDED = "(not recorded yet)"


@dataclass(frozen=True, slots=True)
class ChangeAck:
    """The answer to a change of a queued turn. In a condition it is true if the change was made.

    Attributes:
        accepted: Whether the change was made. False if the turn is not queued.
        level: "recorded" if the change is on record, so that it survives a crash; else "accepted".
        message: An explanation for people.
    """

    accepted: bool
    level: AckLevel = "accepted"
    message: str = ""

    def __bool__(self) -> bool:
        return self.accepted


async def stop_ack(session: Session, ack: StopAck) -> StopAck:
    """Complete the answer to a stop that has just been made: wait briefly for its record, and set the level."""
    if ack.status == "unknown":
        return ack  # it is kept in memory only, which its level says
    level, note = await _recorded(session)
    if ack.status == "already_finished" and level == "recorded":
        return ack  # its level is "settled" already
    return replace(ack, level=level, message=f"{ack.message} {note}".strip())


async def change_ack(session: Session, accepted: bool) -> ChangeAck:
    """Make the answer to a change that has just been made, or refused if `accepted` is false."""
    if not accepted:
        return ChangeAck(False, "accepted", "the turn is not queued: it has begun, has ended, or never existed")
    return ChangeAck(True, *await _recorded(session))


async def _recorded(session: Session) -> tuple[AckLevel, str]:
    """Wait briefly until everything that has happened in the session is on record. Returns the level and a note."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await session.saved()
    except TimeoutError:
        return "accepted", NOT_RECORDED
    except Exception as error:  # whatever the store raises
        return "accepted", f"(not recorded: {describe(error)})"
    return "recorded", ""


class NotFound(SafepointError):
    """There is no such session, turn or agent. The message says which one is missing."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as clients see it.

    Attributes:
        id: The id by which it was asked for, even if another turn has gone on with it since.
        status: How far it has come.
        outcome: How it ended, if it has.
        text: Its message. It is set only while the turn is accepted but not yet in the log.
        continued_by: The turn that continues it, because its process has died, its worker has given it back or its
            host was shut down. Status and outcome are those of that turn.
    """

    id: str
    status: TurnStatus
    outcome: Outcome[AgentResult] | None = None
    text: str = ""
    continued_by: str | None = None


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as clients see it.

    Attributes:
        id: The id of the session.
        agent: The name of its agent.
        last_seq: The number of its newest event. `events(after=last_seq)` gives those that come.
        live: Whether it is open.
        turns: The turns that have not ended.
    """

    id: str
    agent: str
    last_seq: int
    live: bool
    turns: tuple[TurnView, ...] = ()


class SessionViews(Protocol):
    """Reads sessions; nothing here opens or writes one.

    Every method of this and of the following protocols may raise `NotFound` for a session, turn or agent that does not
    exist, `SessionEnded` for a session that takes no more turns, and `StoreError`.
    """

    async def agents(self) -> list[str]:
        """Return the names of the agents that a session may have, the default one first."""
        ...

    async def sessions(self) -> list[SessionView]:
        """Return all sessions, the one with the newest event last."""
        ...

    async def session(self, session_id: str) -> SessionView:
        """Return one session, with the turns that have not ended. This opens and writes nothing."""
        ...

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """Return one turn, or the one that continues it. This opens and writes nothing."""
        ...

    def events(self, session_id: str, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Yield all events after this number, then those that come."""
        ...


class TurnCommands(Protocol):
    """Begins turns, stops them, and answers their questions."""

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        turn_id: str | None = None,
        timeout: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> TurnView:
        """Send a message, and wait until it is in the store.

        A call with the same `turn_id` and the same text is taken for the same message, sent again: the answer is how
        far the turn has come. The other arguments are those of `Session.send`.

        Raises:
            UsageError: The message is empty, or the `turn_id` was used with another text.
            SessionBusy: A turn runs or waits, and `when_busy` is "reject".
        """
        ...

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Go on with a turn that was stopped or has failed, without waiting for its end.

        Args:
            session_id: The session.
            turn_id: The turn; by default the last one.

        Raises:
            UsageError: There is nothing to go on with.
            SessionBusy: Another turn has come after it.
        """
        ...

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
        """Stop this turn, or the one that continues it, and no other. The arguments are those of `Session.stop`.

        The turn is stopped at once, and recorded after. The `level` of the answer says how far that has come: a stop
        that is "recorded" survives any crash.
        """
        ...

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question. False if the question does not wait for an answer."""
        ...


class TurnChanges(Protocol):
    """Changes turns that do not run: queued ones and the last one."""

    async def edit(self, session_id: str, turn_id: str, text: str) -> ChangeAck:
        """Replace the message of a queued turn."""
        ...

    async def remove(self, session_id: str, turn_id: str) -> ChangeAck:
        """Take a queued turn out of the queue."""
        ...

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Take the last turn out of the conversation. Raises: UsageError."""
        ...


class SessionAccess(SessionViews, TurnCommands, TurnChanges, Protocol):
    """Everything that clients do with sessions. It can neither recover nor close the host: see `Host`."""

    async def create(self, session_id: str | None = None, agent: str | None = None) -> SessionView:
        """Open a new or a stored session.

        Args:
            session_id: The id of the session. By default it is given a new one.
            agent: The name of its agent. By default it is the default agent, or the one that a stored session has.

        Raises:
            UsageError: The stored session has another agent.
        """
        ...

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Stop all turns of a session, and close it. It stays in the store."""
        ...


class Host(SessionAccess, Protocol):
    """Sessions, in this process or on other machines, and their recovery and shutdown."""

    async def recover(self) -> list[str]:
        """Go on with what a crash or a shutdown has left behind.

        Call it when a host begins. A second call does nothing.

        Returns:
            The ids of the sessions in which there was something to do.
        """
        ...

    async def close(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """Close all sessions so that they can go on later: queued turns stay queued, running ones can be resumed.

        Args:
            within: Seconds in which running turns may reach safe points. Then they are stopped at once.
            reason: Why, for the receipts.
        """
        ...


def view_of(state: SessionState, turn_id: str) -> TurnView | None:
    """Make the view of a turn from the state of its session; `None` if there is no such turn."""
    continued_by = state.successor(turn_id)
    turn = state.turns.get(continued_by)
    if turn is None:
        return None
    return TurnView(turn_id, turn.status, turn.outcome, continued_by=None if continued_by == turn_id else continued_by)


def refuse_other_text(session_id: str, turn_id: str, text: str, sent: object) -> None:
    """Refuse a message under the id of an earlier turn, unless it is the same message, sent again.

    Args:
        session_id: The session.
        turn_id: The id.
        text: The message.
        sent: The messages of the earlier turn.

    Raises:
        UsageError: It is another message.
    """
    if sent != as_messages(text):
        raise UsageError(
            f"session {session_id!r} had a turn {turn_id!r} already, with another message: send this message under"
            " another id"
        )


def agents_by_name(agents: Agent | Mapping[str, Agent]) -> dict[str, Agent]:
    """Return the agents of a host, each under its name.

    Raises:
        UsageError: One of them is not an agent.
    """
    if isinstance(agents, Mapping):
        for name, agent in agents.items():
            require_method(agent, "run", f"agents[{name!r}] must be an Agent")
        return dict(agents)
    require_method(agents, "run", "agents must be an Agent, or a dict of names and agents")
    return {agents.name: agents}
