"""Owns the work of one turn of a session: its messages, its record, then the agent. Knows nothing of the queue."""

import inspect
from typing import TYPE_CHECKING, Any

from ..agent.talk import AgentResult
from ..agent.tool import AskUserFn
from ..run.context import Context
from ..run.events import (
    LoopIdle,
    LoopStopping,
    RunEnded,
    RunStarted,
    TurnEdited,
    TurnEnded,
    TurnPlanned,
    TurnPreempted,
    TurnStarted,
)
from ..run.leaf import leaf
from ..run.messages import Message
from .admission import as_messages
from .turn import SessionTurn

if TYPE_CHECKING:
    from .session import Session

__all__ = ["OWN", "TurnWork"]

# What the loop says of itself and the session says in its own words.
OWN = (LoopIdle, LoopStopping, RunEnded, RunStarted, TurnEnded, TurnPlanned, TurnPreempted, TurnStarted)


class AskingContext(Context):
    """The context of a turn: questions go to the session."""

    __slots__ = ("_ask",)
    _ask: AskUserFn


class TurnWork:
    """What a session's loop runs. An object, because it guards its own leaves: from outside it is not interrupted."""

    guards_its_leaves = True

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.name = session.agent.name

    async def __call__(self, ctx: Context, turn: SessionTurn, /) -> AgentResult:
        """Raises: AbortError with a partial; what failed."""
        session = self._session
        turn.begin(ctx)
        history = session.messages
        value: Any
        if turn.continues is not None:
            value, turn.base = session._past.resumed(turn.continues)
        else:
            value, turn.base = [*history, *await self._messages(ctx, turn, history)], len(history)
        started = TurnStarted(**session._stamp(turn.id), turn_id=turn.id, items=1)
        # From here on there may be effects: a crash must find that it had begun.
        await session._log.flushed(session._add(started, keep=True))
        ctx.signal.raise_if_aborted()
        asking = ctx.child("", kind=AskingContext)
        assert isinstance(asking, AskingContext)  # for the type checker: it was asked for
        asking.path, asking.is_run, asking._ask = ctx.path, True, session._questions.ask
        return await session.agent(asking, value)

    async def _messages(self, ctx: Context, turn: SessionTurn, history: tuple[Message, ...]) -> tuple[Message, ...]:
        given = turn.messages
        if not callable(given):
            return given
        make = given

        async def call(leaf_ctx: Context, current: tuple[Message, ...]) -> Any:
            made = make(current)
            return await made if inspect.isawaitable(made) else made

        messages = as_messages(await leaf(ctx, call, history, name="messages"))
        assert not callable(messages)  # for the type checker: a function was called already
        turn.messages = messages
        edited = TurnEdited(**self._session._stamp(turn.id), turn_id=turn.id, messages=messages)
        self._session._add(edited, keep=True)
        return messages
