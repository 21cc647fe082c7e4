"""Owns how every edge talks to sessions, wherever they run: by ids, in plain data.

Knows nothing of the network: a host in this process and one on other machines have the same face.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..abort import AbortReason
from ..agent.agent import Agent
from ..agent.conversation import AgentResult
from ..errors import SafepointError, UsageError, require_method
from ..run.outcome import Outcome
from ..run.stop import Scope, StopAck, StopAt
from .acknowledgements import ChangeAck
from .admission import as_messages
from .engine import WhenBusy
from .log import LoggedEvent
from .session_state import SessionState
from .turn import TurnStatus

__all__ = ["Host", "NotFound", "SessionView", "TurnView", "agents_by_name", "refuse_other_text", "view_of"]


class NotFound(SafepointError):
    """There is no such session, turn or agent: the message says which, and what there is."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as an edge sees it.

    Attributes:
        id: The id by which it was asked for: the first one, whatever has gone on with the turn since.
        status: Where it is on its way.
        outcome: How it has ended, if it has.
        said: Of a turn that is accepted and in no log yet, its message.
        continued_by: The turn that goes on with it, because its process has died, its worker has given it back or its
            host was shut down. Status and outcome are those of that turn.
    """

    id: str
    status: TurnStatus
    outcome: Outcome[AgentResult] | None = None
    said: str = ""
    continued_by: str | None = None


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
        """Open a session, new or stored. Raises: UsageError for a stored one that has another agent."""
        ...

    async def sessions(self) -> list[SessionView]:
        """All sessions, the newest last."""
        ...

    async def session(self, session_id: str) -> SessionView:
        """One session, with the turns that have not ended. Looking at it opens and writes nothing."""
        ...

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        turn_id: str | None = None,
        timeout: float | None = None,
        when_busy: WhenBusy = "queue",
    ) -> TurnView:
        """Say something. When it returns, the message is in the store.

        The same `turn_id` with the same text is the same message, sent again: the answer is how the turn stands now.
        Raises: UsageError for the same `turn_id` with another text.
        """
        ...

    async def continue_turn(self, session_id: str, turn_id: str | None = None) -> TurnView:
        """Go on with a turn that was stopped; does not wait for its end."""
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
        """Stop this turn, or the one that goes on with it, and no other. The arguments are those of `Session.stop`.

        The stop is signalled at once. The `level` of the answer says how far it has come; one that is recorded survives
        any crash.
        """
        ...

    async def answer(self, session_id: str, question_id: str, text: str) -> bool:
        """Answer a question."""
        ...

    async def edit(self, session_id: str, turn_id: str, text: str) -> ChangeAck:
        """Replace the message of a turn that waits."""
        ...

    async def remove(self, session_id: str, turn_id: str) -> ChangeAck:
        """Take a turn that waits out of the queue."""
        ...

    async def forget(self, session_id: str, turn_id: str) -> None:
        """Take the conversation back to before its last turn."""
        ...

    async def turn(self, session_id: str, turn_id: str) -> TurnView:
        """One turn, with its outcome if it has ended: or the one that goes on with it. It opens and writes nothing."""
        ...

    def events(self, session_id: str, after: int = 0) -> AsyncGenerator[LoggedEvent, None]:
        """Everything after this number, then what comes."""
        ...

    async def recover(self) -> list[str]:
        """Go on with what a crash or a shutdown has left behind. The sessions in which there was something to do.

        Call it when a host begins; a second call does nothing.
        """
        ...

    async def close_session(self, session_id: str, reason: str = "closed") -> None:
        """Stop what runs there, and let it go. It stays in the store."""
        ...

    async def close(self, *, within: float = 0.0, reason: str = "shutdown") -> None:
        """Stop what runs here, at safe points for so many seconds, then at once, so that it can go on later.

        What waits stays queued. Whoever serves the sessions next takes both up.
        """
        ...


def view_of(state: SessionState, turn_id: str) -> TurnView | None:
    """A turn as a log tells it, or the turn that goes on with it; None if there is none."""
    continued_by = state.successor(turn_id)
    turn = state.turns.get(continued_by)
    if turn is None:
        return None
    return TurnView(turn_id, turn.status, turn.outcome, continued_by=None if continued_by == turn_id else continued_by)


def refuse_other_text(session_id: str, turn_id: str, text: str, said: object) -> None:
    """The id of a turn was used before: only the same message may be sent again under it. Raises: UsageError."""
    if said != as_messages(text):
        raise UsageError(
            f"there was a turn {turn_id!r} already in session {session_id!r}, with another message: an id is for life."
            " Send this message under an id of its own"
        )


def agents_by_name(agents: Agent | Mapping[str, Agent]) -> dict[str, Agent]:
    """The agents of a host, each under its name.

    Raises:
        UsageError: One of them is no agent.
    """
    if isinstance(agents, Mapping):
        for name, agent in agents.items():
            require_method(agent, "run", f"agents[{name!r}] must be an Agent")
        return dict(agents)
    require_method(agents, "run", "agents must be an Agent, or a dict of names and agents")
    return {agents.name: agents}
